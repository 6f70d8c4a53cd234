"""Pods by ResourceClaims on the stand-ins: controller, scheduler, kubelet, and a driver that says yes."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cluster.allocations import claim, pfs, request
from k8s_rdma.deviceplugin.resource import Followers, open_endpoint
from k8s_rdma.kube.grpc_calls import handler
from k8s_rdma.wire.claims import DRIVER, ClaimAnswer, PreparedDevice
from k8s_rdma.wire.dra import GET_INFO, NOTIFY, PREPARE, UNPREPARE, PluginInfo
from k8s_rdma_demo.cluster.dynamic_resources import controlling_claims
from k8s_rdma_demo.cluster.kubelet import running_kubelet
from k8s_rdma_demo.cluster.node_devices import DevicesConfig, KubeletConfig
from k8s_rdma_demo.cluster.scheduler import SchedulerConfig, scheduling
from k8s_rdma_demo.kubelet.device_manager import DeviceManagerConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from k8s_rdma.wire.dra import Claims, RegistrationStatus

pytestmark = pytest.mark.anyio

API = "/apis/resource.k8s.io/v1"
SLICES, CLASSES = f"{API}/resourceslices", f"{API}/deviceclasses"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
TEMPLATES = f"{API}/namespaces/default/resourceclaimtemplates"
PODS = "/api/v1/namespaces/default/pods"
NODE = "node-1"
REFUSAL = "0/1 nodes are available: 1 cannot allocate all claims."
Json = dict[str, Any]


@dataclass
class Driver:
    """A DRA driver.

    calls: which, and of how many claims. errors: of the next calls of a name. requests: of all claims, with
    their CDI devices.
    """

    directory: Path
    calls: list[tuple[str, int]] = field(default_factory=list)
    errors: dict[str, list[str]] = field(default_factory=dict)
    registered: asyncio.Event = field(default_factory=asyncio.Event)
    requests: dict[str, str] = field(default_factory=lambda: {"a": "a", "b": "b"})

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        endpoint = self.directory / "dra.sock"
        info = PluginInfo(name=DRIVER, endpoint=str(endpoint))

        async def get_info(_: None) -> PluginInfo:
            return info

        async with AsyncExitStack() as opened:
            for path, handlers in (
                (endpoint, {m: handler(m, call) for m, call in self._methods()}),
                (
                    self.directory / "registry" / "reg.sock",
                    {GET_INFO: handler(GET_INFO, get_info), NOTIFY: handler(NOTIFY, self._notified)},
                ),
            ):
                served = await open_endpoint(path, handlers, Followers(b"", lambda: None))
                opened.push_async_callback(served.close)
            await self.registered.wait()
            yield

    def _methods(self):
        async def prepare(claims: Claims) -> Mapping[str, ClaimAnswer]:
            return self._answer("prepare", claims)

        async def unprepare(claims: Claims) -> Mapping[str, ClaimAnswer]:
            return self._answer("unprepare", claims)

        return ((PREPARE, prepare), (UNPREPARE, unprepare))

    def _answer(self, name: str, claims: Claims) -> Mapping[str, ClaimAnswer]:
        self.calls.append((name, len(claims)))
        if self.errors.get(name):
            error = self.errors[name].pop()
            return {claim.uid: ClaimAnswer(error=error) for claim in claims}
        return {claim.uid: ClaimAnswer(devices=_devices(self.requests)) for claim in claims}

    async def _notified(self, status: RegistrationStatus) -> None:
        assert status.registered
        self.registered.set()


def _devices(requests: Mapping[str, str]) -> tuple[PreparedDevice, ...]:
    return tuple(
        PreparedDevice(request=name, pool=NODE, device="f0", share_id="s", cdi=(f"lab.local/claim={cdi}",))
        for name, cdi in requests.items()
    )


@dataclass
class World:
    """A node with a driver, and all that is around it."""

    c: Any
    driver: Driver
    kubelet: Any

    async def post(self, path: str, document: Json) -> Json:
        made = await self.c.http.post(path, json=document)
        assert made.status_code == 201, made.text
        return made.json()

    async def items(self, path: str) -> list[Json]:
        return (await self.c.http.get(path)).json()["items"]

    async def create_template(self, name: str, *requests: Json) -> None:
        await self.post(TEMPLATES, {"metadata": {"name": name}, "spec": {"spec": claim(*requests)}})

    async def create_pod(self, name: str, template: str, *, container_claims: tuple[Json, ...] = ()) -> None:
        container = {
            "name": "c",
            "image": "lab.local/busybox:1",
            "resources": {"claims": list(container_claims)},
        }
        claims = [{"name": "net", "resourceClaimTemplateName": template}]
        spec = {"containers": [container], "resourceClaims": claims, "terminationGracePeriodSeconds": 0}
        await self.post(
            PODS, {"metadata": {"name": name}, "spec": spec | {"terminationGracePeriodSeconds": 1}}
        )

    async def running(self, name: str) -> Json:
        return await self.c.pod_when(name, lambda pod: pod.get("status", {}).get("phase") == "Running")

    async def refused(self, name: str) -> str:
        def reason(pod: Json) -> str:
            conditions = pod.get("status", {}).get("conditions") or [{}]
            return conditions[0].get("message", "") if not pod["spec"].get("nodeName") else ""

        return reason(await self.c.pod_when(name, lambda pod: bool(pod) and bool(reason(pod))))

    async def delete(self, name: str) -> None:
        assert (await self.c.http.delete(f"{PODS}/{name}")).is_success
        await self.c.pod_when(name, lambda pod: not pod)

    async def no_claim(self) -> None:
        """Wait until all claims are gone."""
        while await self.items(CLAIMS):  # noqa: ASYNC110 - the controller deletes them
            await asyncio.sleep(0.01)


@pytest.fixture
def world(cluster, plugins, netns_dir, directory):
    """`async with world() as w`: a node of two PFs of 1,000 Mb/s."""
    plugins.install("first")
    cdi = directory / "cdi"
    cdi.mkdir()
    devices = ",".join(f'{{"name": "{name}", "containerEdits": {{"env": ["{name}=1"]}}}}' for name in "ab")
    text = f'{{"cdiVersion": "0.5.0", "kind": "lab.local/claim", "devices": [{devices}]}}'
    (cdi / "claims.json").write_text(text)
    manager = DeviceManagerConfig(
        plugin_dir=directory / "plugins", pod_resources=directory / "pod-resources.sock"
    )
    config = KubeletConfig(
        node=NODE,
        conflist=plugins.conflist("first"),
        cni_path=[plugins.path],
        netns_dir=netns_dir,
        start_retry_s=0.01,
        stop_retry_s=0.01,
        late_delete_s=None,
        devices=DevicesConfig(manager=manager, cdi_dirs=(cdi,), registry=directory / "registry"),
    )

    @asynccontextmanager
    async def opened():
        async with cluster() as c:
            selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
            spec = {
                "driver": DRIVER,
                "nodeName": NODE,
                "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
                "devices": pfs(1_000, 1_000),
            }
            w = World(c, Driver(directory), None)
            stale = {"metadata": {"name": "stale"}, "spec": {**spec, "driver": "stale"}}
            await w.post(SLICES, stale)
            await w.post(CLASSES, {"metadata": {"name": "rdma"}, "spec": {"selectors": [selector]}})
            async with (
                controlling_claims(c.api.url),
                scheduling(c.api.url, SchedulerConfig()),
                running_kubelet(c.api.url, config) as w.kubelet,
                w.driver.serving(),
            ):
                assert await w.items(SLICES) == []  # kubelet deletes them when it starts
                await w.post(SLICES, {"metadata": {"name": "s"}, "spec": spec})
                yield w

    return opened


async def test_pod_has_a_claim_of_its_own_that_is_allocated_and_prepared(world, plugins):
    async with world() as w:
        await w.create_template("net", request("a", "600M"), request("b"))
        await w.create_pod("p", "net", container_claims=({"name": "net", "request": "a"},))
        pod = await w.running("p")
        [status] = pod["status"]["resourceClaimStatuses"]
        [made] = await w.items(CLAIMS)
        assert status == {"name": "net", "resourceClaimName": made["metadata"]["name"]}
        assert made["metadata"]["name"].startswith("p-net-")
        assert made["metadata"]["annotations"] == {"resource.kubernetes.io/pod-claim-name": "net"}
        [owner] = made["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Pod", pod["metadata"]["uid"])
        reserved = {"resource": "pods", "name": "p", "uid": pod["metadata"]["uid"]}
        assert made["status"]["reservedFor"] == [reserved]
        results = made["status"]["allocation"]["devices"]["results"]
        assert [(each["request"], each["device"]) for each in results] == [("a", "f0"), ("b", "f0")]
        assert w.kubelet.containers_of("default", "p")["c"].envs == {"a": "1"}
        assert w.driver.calls == [("prepare", 1)]
        assert plugins.short() == ["ADD first"]


async def test_claim_is_unprepared_after_del_and_deleted_with_its_pod(world, plugins):
    async with world() as w:
        await w.create_template("net", request("a", "600M"))
        await w.create_pod("p", "net")
        await w.running("p")
        plugins.on("DEL", "first", "exit 1")
        assert (await w.c.http.delete(f"{PODS}/p")).is_success
        while not plugins.short().count("DEL first"):  # noqa: ASYNC110 - a program does it
            await asyncio.sleep(0.01)
        assert w.driver.calls == [("prepare", 1)]
        w.driver.errors["unprepare"] = ["busy"]
        plugins.on("DEL", "first", "")
        await w.c.pod_when("p", lambda pod: not pod)
        assert w.driver.calls == [("prepare", 1), ("unprepare", 1), ("unprepare", 1)]
        await w.no_claim()


async def test_pod_waits_until_its_claim_fits(world):
    async with world() as w:
        await w.create_template("wide", request("a", "600M"), request("b", "600M"))
        await w.create_pod("p", "wide")
        await w.running("p")
        await w.create_pod("q", "wide")
        assert (await w.refused("q")).startswith(REFUSAL)
        await w.delete("p")
        await w.running("q")


async def test_pod_whose_template_comes_late_is_not_tried_before(world):
    async with world() as w:
        await w.create_pod("p", "late")
        await w.create_template("late", request("a"))
        await w.running("p")
        assert await w.c.events("p", "FailedScheduling") == []


async def test_many_pods_at_once_get_no_more_than_there_is(world):
    async with world() as w:
        await w.create_template("third", request("a", "300M"))
        async with asyncio.TaskGroup() as tasks:
            for index in range(8):
                tasks.create_task(w.create_pod(f"p{index}", "third"))

        def is_settled(pod: Json) -> bool:
            return bool(pod["spec"].get("nodeName") or pod["status"].get("conditions"))

        for index in range(8):
            await w.c.pod_when(f"p{index}", is_settled)
        claims = await w.items(CLAIMS)
        devices = [
            result["device"]
            for each in claims
            if (allocation := each["status"].get("allocation"))
            for result in allocation["devices"]["results"]
        ]
        assert sorted(devices) == ["f0"] * 3 + ["f1"] * 3


async def test_claim_of_a_finished_pod_is_free_although_the_pod_is_there(world):
    async with world() as w:
        await w.create_template("wide", request("a", "1G"), request("b", "1G"))
        await w.create_pod("p", "wide")
        pod = await w.running("p")
        pod["status"]["phase"] = "Succeeded"
        assert (await w.c.http.put(f"{PODS}/p/status", json=pod)).is_success
        await w.no_claim()
        await w.create_pod("q", "wide")
        await w.running("q")


async def test_claim_that_several_pods_name_is_prepared_once_and_kept_until_the_last_ends(world):
    async with world() as w:
        await w.post(CLAIMS, {"metadata": {"name": "shared"}, "spec": claim(request("a", "600M"))})
        for name in "pq":
            spec = {
                "containers": [{"name": "c", "image": "lab.local/busybox:1"}],
                "resourceClaims": [{"name": "net", "resourceClaimName": "shared"}],
                "terminationGracePeriodSeconds": 1,
            }
            await w.post(PODS, {"metadata": {"name": name}, "spec": spec})
            await w.running(name)
        await w.delete("p")
        assert w.driver.calls == [("prepare", 1)]
        [shared] = await w.items(CLAIMS)
        while len(shared["status"]["reservedFor"]) > 1:
            [shared] = await w.items(CLAIMS)
        assert shared["status"]["reservedFor"][0]["name"] == "q"
        await w.delete("q")
        assert w.driver.calls == [("prepare", 1), ("unprepare", 1)]
        while shared["status"]:
            [shared] = await w.items(CLAIMS)


async def test_prepare_that_fails_is_an_event_and_is_tried_again(world, plugins):
    async with world() as w:
        w.driver.errors["prepare"] = ["PF f0: too full"]
        await w.create_template("net", request("a"))
        await w.create_pod("p", "net")
        await w.running("p")
        [why] = await w.c.events("p", "FailedPrepareDynamicResources")
        assert why.startswith("Failed to prepare dynamic resources: NodePrepareResources failed for Resource")
        assert why.endswith("PF f0: too full")
        assert w.driver.calls == [("prepare", 1), ("prepare", 1)]
        assert plugins.short() == ["ADD first"]


async def test_sandbox_that_died_is_made_anew_without_another_prepare(world, plugins):
    async with world() as w:
        await w.create_template("net", request("a"))
        await w.create_pod("p", "net")
        pod = await w.running("p")
        plugins.give("first", "10.0.0.9")
        w.kubelet.lose_sandbox(pod["metadata"]["uid"])
        await w.c.pod_when("p", lambda pod: pod["status"]["podIP"] == "10.0.0.9")
        assert w.driver.calls == [("prepare", 1)]
        assert plugins.short() == ["ADD first", "DEL first", "ADD first"]


async def test_claim_that_cannot_be_simulated_is_reported_in_a_sentence(world):
    async with world() as w:
        await w.create_template("net", request("a", adminAccess=True))
        await w.create_pod("p", "net")
        why = await w.refused("p")
        assert why.startswith("0/1 nodes are available: 1 claim p-net-")
        assert ": request a: adminAccess is not simulated." in why


VF = "example.com/vf"


def requesting(name: str, number: int = 1) -> Json:
    return {"name": name, "image": "lab.local/busybox:1", "resources": {"limits": {VF: str(number)}}}


async def create_requesting(w: World, name: str, *containers: Json, **spec: Any) -> None:
    spec |= {"containers": list(containers), "terminationGracePeriodSeconds": 1}
    await w.post(PODS, {"metadata": {"name": name}, "spec": spec})


async def create_class(w: World) -> None:
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    await w.post(
        CLASSES,
        {"metadata": {"name": "vf"}, "spec": {"selectors": [selector], "extendedResourceName": VF}},
    )


async def test_pod_gets_a_claim_for_its_limits_and_each_container_its_own_devices(world, plugins):
    async with world() as w:
        await create_class(w)
        w.driver.requests = {"container-0-request-0": "a", "container-2-request-0": "b"}
        plain = {"name": "y", "image": "lab.local/busybox:1"}
        await create_requesting(w, "p", requesting("x"), plain, requesting("z", 2))
        pod = await w.running("p")
        status = pod["status"]["extendedResourceClaimStatus"]
        assert status["requestMappings"] == [
            {"containerName": name, "resourceName": VF, "requestName": f"container-{index}-request-0"}
            for index, name in ((0, "x"), (2, "z"))
        ]
        [made] = await w.items(CLAIMS)
        assert made["metadata"]["name"] == status["resourceClaimName"]
        assert made["metadata"]["annotations"] == {"resource.kubernetes.io/extended-resource-claim": "true"}
        assert made["metadata"]["ownerReferences"][0]["uid"] == pod["metadata"]["uid"]
        assert made["status"]["reservedFor"][0]["name"] == "p"
        results = made["status"]["allocation"]["devices"]["results"]
        assert [result["request"][:11] for result in results] == ["container-0", "container-2", "container-2"]
        assert len({result["device"] for result in results[1:]}) == 2
        env = {name: each.envs for name, each in w.kubelet.containers_of("default", "p").items()}
        assert env == {"x": {"a": "1"}, "y": {}, "z": {"b": "1"}}
        await w.delete("p")
        await w.no_claim()


async def test_pod_whose_limits_find_no_devices_waits(world):
    async with world() as w:
        await create_class(w)
        await create_requesting(w, "p", requesting("x", 3))
        assert (await w.refused("p")).startswith(REFUSAL)
        assert await w.items(CLAIMS) == []


async def test_many_pods_by_limits_get_no_more_than_there_is(world):
    async with world() as w:
        await create_class(w)
        w.driver.requests = {"container-0-request-0": "a"}
        for number in range(18):
            await create_requesting(w, f"p{number:02}", requesting("x"))
        for number in range(16):
            await w.running(f"p{number:02}")
        assert (await w.refused("p16")).startswith(REFUSAL)


async def test_node_that_counts_the_resource_itself_makes_no_claim(world):
    async with world() as w:
        await create_class(w)
        body = {"status": {"allocatable": {VF: "1"}, "capacity": {VF: "1"}}}
        headers = {"content-type": "application/merge-patch+json"}
        patched = await w.c.http.patch(f"/api/v1/nodes/{NODE}/status", json=body, headers=headers)
        assert patched.is_success, patched.text
        await create_requesting(w, "p", requesting("x"))
        await w.c.pod_when("p", lambda pod: bool(pod) and bool(pod["spec"].get("nodeName")))
        assert await w.items(CLAIMS) == []
        await create_requesting(w, "q", requesting("x"))
        assert f"Insufficient {VF}" in await w.refused("q")
