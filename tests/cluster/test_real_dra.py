"""Pods by ResourceClaims: real kube-scheduler, kubelet and runtime, the driver and the agent between them."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import tempfile
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cluster.control_plane import Json, write_kubeconfig
from cluster.controllers import controllers
from cluster.controllers import obstacle as no_controllers
from cluster.dra_recorder import UID, recording
from cluster.kubelet import NODE, Kubelet, obstacle, programs, release_of
from cluster.test_real_kubelet import (
    build_dir,
    kubelet_of,
    make_node,
    node,
    program,
    start_agent,
    verbs,
    with_address,
    with_cdi,
)
from e2e.container_runtime import IMAGE
from e2e.node import Node
from k8s_rdma.agent.cdi_specs import CLAIM_VARIABLE
from k8s_rdma.core.node_paths import CLAIMS_SOCKET
from k8s_rdma.deviceplugin.dra import ClaimsAgent
from k8s_rdma.deviceplugin.prepared_claims import AbandonedClaims, AbandonmentTimes
from k8s_rdma.kube.client import connect
from k8s_rdma.wire.claims import DRIVER, ClaimAnswer, ClaimQuestion, decode_offers, encode_line
from k8s_rdma.wire.dra import WATCH_HEALTH
from k8s_rdma_demo.kubelet.device_manager import in_background

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator


__all__ = ["build_dir", "make_node", "node", "program"]

SINCE = (1, 36)
"""The release from which DRAConsumableCapacity is on."""


def release_obstacle() -> str | None:
    if why := obstacle() or no_controllers():
        return why
    return None if release_of(programs() / "kubelet") >= SINCE else "needs Kubernetes 1.36"


WHY_NOT = release_obstacle()
pytestmark = [pytest.mark.anyio, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)), with_cdi]

API = "/apis/resource.k8s.io/v1"
METADATA = "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/p/net/rdma.k8s-rdma.io-metadata.json"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
SCHEDULER = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "podInitialBackoffSeconds": 1,
    "podMaxBackoffSeconds": 1,
}
POLL_S = 0.02
LATEST_S = 2.0
RECORD = "K8S_RDMA_RECORD"
RECORDINGS = Path(__file__).parents[1] / "recordings" / "dra"
SIXTY = 60
"""Interfaces of a pod, and VFs of a PF."""
LINK = 1_000
"""Mb/s of the node's PFs."""


@dataclass
class Cluster:
    """A node whose first PF is for claims."""

    node: Node
    kubelet: Kubelet
    pf: str
    driver: subprocess.Popen[bytes]
    config: Path

    async def get(self, path: str) -> Json:
        answer = await self.kubelet.cluster.http.get(path)
        return answer.json() if answer.status_code == 200 else {}

    async def post(self, path: str, document: Json) -> None:
        made = await self.kubelet.cluster.http.post(path, json=document)
        assert made.status_code == 201, made.text

    async def slices(self) -> list[Json]:
        return (await self.get(f"{API}/resourceslices"))["items"]

    async def until_published(self) -> Json:
        """Wait until the PF is in a slice; its device."""
        found: list[Json] = []

        async def published() -> bool:
            found[:] = [device for each in await self.slices() for device in each["spec"]["devices"]]
            return bool(found)

        assert self.kubelet.program is not None
        await self.kubelet.program.until(published)
        [device] = found
        return device

    async def replace_driver(self) -> subprocess.Popen[bytes]:
        """Start another one, and wait until kubelet has registered it; the former, which runs still."""
        log = self.node.directory / "device-plugin.log"
        registered = log.read_text().count("driver_registered")
        former, self.driver = self.driver, self.node.start("device-plugin", self.config)
        await self.kubelet.until(lambda: log.read_text().count("driver_registered") > registered)
        return former

    async def delete_by_force(self, pod: str) -> None:
        """Delete the object of a pod that runs still, as `kubectl delete --force` does."""
        path = f"/api/v1/namespaces/default/pods/{pod}?gracePeriodSeconds=0"
        gone = await self.kubelet.cluster.http.delete(path)
        assert gone.status_code == 200, gone.text

    async def uid(self, pod: str) -> str:
        found = await self.kubelet.cluster.pod(pod)
        return str(found["metadata"]["uid"])

    async def end_of(self, pod: str) -> float:
        """Wait until a pod has no interfaces, by its UID; no other one has any before."""
        while pod in (uids := {each.pod.uid for each in self.node.try_report().allocations}):
            assert uids == {pod}
            await asyncio.sleep(POLL_S)
        return time.monotonic()

    async def create_claim(self, claim: str, bandwidth: str, requests: int = 1, **config: Any) -> None:
        """A claim of equal requests: `net`, or `r0` and so on. config: parameters of all."""
        request = {"deviceClassName": "rdma", "capacity": {"requests": {"bandwidth": bandwidth}}}
        names = ["net"] if requests == 1 else [f"r{index}" for index in range(requests)]
        head = {"apiVersion": "k8s-rdma.io/v1", "kind": "InterfaceConfig"}
        opaque = {"driver": DRIVER, "parameters": head | config}
        devices = {
            "requests": [{"name": name, "exactly": request} for name in names],
            "config": [{"opaque": opaque}],
        }
        document = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": claim},
            "spec": {"devices": devices},
        }
        await self.post(CLAIMS, document)

    async def create_pod(self, name: str, **spec: Any) -> None:
        container = {
            "name": "c",
            "image": IMAGE,
            "imagePullPolicy": "Never",
            "resources": {"claims": [{"name": "net"}]},
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "terminationGracePeriodSeconds": 0,
                "restartPolicy": "Never",
                "containers": [container, {"name": "other", "image": IMAGE, "imagePullPolicy": "Never"}],
                "resourceClaims": [{"name": "net", "resourceClaimName": name}],
            }
            | spec,
        }
        await self.post("/api/v1/namespaces/default/pods", pod)

    async def when_status(self, claim: str, ready: str) -> Json:
        """Wait until the condition `Ready` of a claim's device has this status; the claim."""
        found: Json = {}

        async def holds() -> bool:
            found.update(await self.get(f"{CLAIMS}/{claim}"))
            devices = found["status"].get("devices", [])
            return [each["conditions"][0]["status"] for each in devices] == [ready]

        assert self.kubelet.program is not None
        await self.kubelet.program.until(holds)
        return found

    async def when_unhealthy(self, pod: str) -> None:
        """Wait until a pod's status says so of its interface."""

        def unhealthy(pod: Json) -> bool:
            return any(
                resource["health"] == "Unhealthy"
                for container in pod["status"]["containerStatuses"]
                for status in container.get("allocatedResourcesStatus", ())
                for resource in status["resources"]
            )

        await self.kubelet.cluster.when(pod, unhealthy)

    async def interfaces(self, name: str) -> dict[str, tuple[int, int]]:
        """Rates of a running pod's interfaces by name, as the agent reports them."""
        await self.kubelet.running(name)
        return {
            interface.ifname: (interface.min_tx_rate, interface.max_tx_rate)
            for allocation in self.node.try_report().allocations
            if allocation.pod.name == name
            for interface in allocation.interfaces
        }


@asynccontextmanager
async def claims_cluster(
    node: Node, tmp_path: Path, claims: dict[str, str] | None = None, rules: tuple[Json, ...] = ()
) -> AsyncIterator[Cluster]:
    """claims: settings of the driver. rules: of PFs beside the first one."""
    async with kubelet_of(node, tmp_path) as kubelet:
        plane = kubelet.cluster.plane
        kubeconfig = write_kubeconfig(node.directory / "plugin.kubeconfig", plane, plane.admin_token)
        config = {
            "resources": [],
            "runDir": str(node.run_dir),
            "port": None,
            "node": NODE,
            "kubeconfig": str(kubeconfig),
            "claims": claims or {},
        }
        pf = node.pfs[0].name
        node.settings |= {
            "hardware": {"pfs": [{"names": [pf], "use": "claims"}, *rules], "all": True},
            "node": NODE,
            "kubeconfig": str(kubeconfig),
        }
        plugin = node.config("device-plugin", config)
        start_agent(node, kubelet, str(plugin))
        driver = node.start("device-plugin", plugin)
        cluster = Cluster(node, kubelet, pf, driver, plugin)
        selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
        await cluster.post(
            f"{API}/deviceclasses", {"metadata": {"name": "rdma"}, "spec": {"selectors": [selector]}}
        )
        async with controllers(plane, "resourceclaim-controller"), plane.scheduler(SCHEDULER):
            yield cluster


async def test_pod_gets_the_interfaces_of_its_claim_and_gives_them_back(node: Node, tmp_path: Path):
    async with claims_cluster(node, tmp_path) as cluster:
        device = await cluster.until_published()
        assert device["name"] == cluster.pf
        assert device["capacity"]["bandwidth"]["value"] == "1G"
        await cluster.create_claim("p", "400M", maxTxRate="600M", name="storage")
        await cluster.create_pod("p")
        assert await cluster.interfaces("p") == {"storage": (400, 600)}
        pod = await cluster.kubelet.running("p")
        look = cluster.kubelet.look(pod, "c")
        pci = look.env["K8S_RDMA_CLAIM_NET_NET"]
        assert look.opens == {"rdma_cm", verbs(node)[pci]}
        assert cluster.kubelet.look(pod, "other").opens == set()
        metadata = cluster.kubelet.read(pod, "c", METADATA)
        [described] = json.loads(metadata.splitlines()[0])["requests"][0]["devices"]
        assert described["networkData"]["interfaceName"] == "storage"
        assert described["attributes"]["resource.kubernetes.io/pciBusID"] == {"string": pci}
        with pytest.raises(FileNotFoundError):
            cluster.kubelet.read(pod, "other", METADATA)
        await cluster.kubelet.delete_pod("p")
        await cluster.kubelet.until(lambda: not node.try_report().allocations)
        await cluster.kubelet.until(lambda: not list(cluster.kubelet.cdi.glob("*claim*")))
        assert node.leftovers() == {}


async def test_pod_that_waits_for_bandwidth_starts_when_another_has_ended(node: Node, tmp_path: Path):
    async with claims_cluster(node, tmp_path) as cluster:
        await cluster.until_published()
        for name in ("p", "q"):
            await cluster.create_claim(name, "800M")
        await cluster.create_pod("p")
        assert await cluster.interfaces("p") == {"rdma0": (800, 0)}
        await cluster.create_pod("q")
        assert "cannot allocate all claims" in await cluster.kubelet.event("q", "FailedScheduling")
        await cluster.kubelet.delete_pod("p")
        assert await cluster.interfaces("q") == {"rdma0": (800, 0)}


async def test_claims_that_the_scheduler_gives_twice_are_refused_with_numbers(node: Node, tmp_path: Path):
    """The claim's status is written as a second scheduler would, which does not know of the first one's."""
    async with claims_cluster(node, tmp_path) as cluster:
        await cluster.until_published()
        await cluster.create_claim("p", "800M")
        await cluster.create_pod("p")
        await cluster.kubelet.running("p")
        await cluster.create_claim("q", "800M")
        await cluster.create_pod("q", schedulerName="second")
        allocation = (await cluster.get(f"{CLAIMS}/p"))["status"]["allocation"]
        pod = await cluster.kubelet.cluster.pod("q")
        claim = await cluster.get(f"{CLAIMS}/q")
        [result] = allocation["devices"]["results"]
        result["shareID"] = "11111111-2222-4333-8444-555555555555"
        allocation["devices"].pop("config", None)
        claim["status"] = {
            "allocation": allocation,
            "reservedFor": [{"resource": "pods", "name": "q", "uid": pod["metadata"]["uid"]}],
        }
        written = await cluster.kubelet.cluster.http.put(f"{CLAIMS}/q/status", json=claim)
        assert written.status_code == 200, written.text
        target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
        await cluster.post(
            "/api/v1/namespaces/default/pods/q/binding", {"metadata": {"name": "q"}, "target": target}
        )
        event = await cluster.kubelet.event("q", "FailedPrepareDynamicResources")
        assert f"PF {cluster.pf}: the claim needs 800 Mb/s; 200 of {LINK} are unreserved" in event
        [device] = (await cluster.when_status("q", "False"))["status"]["devices"]
        [condition] = device["conditions"]
        assert condition["reason"] == "PreparationRefused"
        assert condition["message"] in event


async def test_quantity_that_the_scheduler_grants_as_zero_is_refused(node: Node, tmp_path: Path):
    """Without the policy `claims`: rounded up to the step, it overflows."""
    async with claims_cluster(node, tmp_path) as cluster:
        await cluster.until_published()
        await cluster.create_claim("p", "9300000000000000000")
        await cluster.create_pod("p")
        event = await cluster.kubelet.event("p", "FailedPrepareDynamicResources")
        claim = await cluster.get(f"{CLAIMS}/p")
        [result] = claim["status"]["allocation"]["devices"]["results"]
        assert result["consumedCapacity"]["bandwidth"] == "0"
        assert "consumedCapacity.bandwidth: 0 is less than the 9300P that the request asks for" in event
        assert not prepared_on(node)


async def test_pod_of_the_hosts_network_does_not_start(node: Node, tmp_path: Path):
    async with claims_cluster(node, tmp_path) as cluster:
        await cluster.until_published()
        await cluster.create_claim("p", "100M")
        await cluster.create_pod("p", hostNetwork=True)
        event = await cluster.kubelet.event("p", "FailedPrepareDynamicResources")
        assert "spec.hostNetwork: a pod in its node's network gets no interfaces" in event


async def test_second_pod_of_a_claim_does_not_start(node: Node, tmp_path: Path):
    """Without the policy `one-pod`: kubelet starts it without a call of the driver."""
    async with claims_cluster(node, tmp_path) as cluster:
        await cluster.until_published()
        await cluster.create_claim("p", "100M")
        await cluster.create_pod("p")
        assert await cluster.interfaces("p") == {"rdma0": (100, 0)}
        shared = [{"name": "net", "resourceClaimName": "p"}]
        await cluster.create_pod("q", resourceClaims=shared)
        event = await cluster.kubelet.event("q", "FailedCreatePodSandBox")
        assert "ResourceClaim default/p is prepared for another pod" in event
        assert "use a resourceClaimTemplateName" in event
        assert await cluster.interfaces("p") == {"rdma0": (100, 0)}
        await cluster.kubelet.delete_pod("p")
        await cluster.kubelet.until(lambda: not node.try_report().allocations)
        await cluster.kubelet.delete_pod("q")
        await cluster.kubelet.until(lambda: not list((node.run_dir / "claims").iterdir()))
        await cluster.create_pod("r", resourceClaims=shared)
        assert await cluster.interfaces("r") == {"rdma0": (100, 0)}


async def test_link_that_is_down_is_a_taint_and_written_once(node: Node, tmp_path: Path):
    """The API server adds a time to each taint, which is no change of ours."""
    async with claims_cluster(node, tmp_path) as cluster:
        assert "taints" not in await cluster.until_published()
        node.ip("link", "set", cluster.pf, "down")

        async def tainted() -> bool:
            return "taints" in await cluster.until_published()

        assert cluster.kubelet.program is not None
        await cluster.kubelet.program.until(tainted)
        await cluster.create_claim("p", "1M")
        await cluster.create_pod("p")
        assert "cannot allocate all claims" in await cluster.kubelet.event("p", "FailedScheduling")
        [found] = await cluster.slices()
        assert found["spec"]["pool"]["generation"] == 2
        node.ip("link", "set", cluster.pf, "up")
        assert await cluster.interfaces("p") == {"rdma0": (1, 0)}


async def test_status_has_the_interfaces_of_a_pod_and_a_link_down_evicts_no_pod(node: Node, tmp_path: Path):
    async with claims_cluster(node, tmp_path) as cluster:
        await cluster.until_published()
        await cluster.create_claim("p", "400M", maxTxRate="600M")
        await cluster.create_pod("p")
        await cluster.interfaces("p")
        [allocation] = node.try_report().allocations
        [interface] = allocation.interfaces
        claim = await cluster.when_status("p", "True")
        [result] = claim["status"]["allocation"]["devices"]["results"]
        [device] = claim["status"]["devices"]
        assert device["shareID"] == result["shareID"]
        assert device["networkData"]["interfaceName"] == "rdma0"
        assert device["networkData"]["hardwareAddress"] == interface.mac
        data = device["data"]
        assert (data["pci"], data["minTxRate"], data["maxTxRate"]) == (interface.pci, 400, 600)
        assert data["enforced"] == {"min": "software", "max": "software"}
        version = claim["metadata"]["resourceVersion"]
        ended_s = time.monotonic()
        node.ip("link", "set", cluster.pf, "down")

        async def tainted() -> bool:
            return "taints" in await cluster.until_published()

        async def after(wait: Awaitable[None]) -> float:
            await wait
            return time.monotonic() - ended_s

        assert cluster.kubelet.program is not None
        delays_s = await asyncio.gather(
            after(cluster.when_unhealthy("p")), after(cluster.kubelet.program.until(tainted))
        )
        assert max(delays_s) < LATEST_S, delays_s
        await cluster.replace_driver()
        pod = await cluster.kubelet.running("p")
        assert "deletionTimestamp" not in pod["metadata"]
        assert (await cluster.get(f"{CLAIMS}/p"))["metadata"]["resourceVersion"] == version
        events = (await cluster.get("/api/v1/namespaces/default/events"))["items"]
        assert not {event["reason"] for event in events} & {"TaintManagerEviction", "Evicted", "Killing"}


async def test_prepared_claim_that_kubelet_has_lost_ends_with_its_pod(node: Node, tmp_path: Path):
    """As when a node loses kubelet's directory, or a pod is deleted by force meanwhile."""
    async with claims_cluster(node, tmp_path) as cluster:
        await cluster.until_published()
        await cluster.create_claim("p", "400M")
        await cluster.create_pod("p")
        await cluster.interfaces("p")
        async with checking_claims(cluster) as checked:
            await checked(3)
            await cluster.kubelet.end()
            (cluster.kubelet.lib / "dra_manager_state").unlink()
            gone = await cluster.kubelet.cluster.http.delete(
                "/api/v1/namespaces/default/pods/p", params={"gracePeriodSeconds": "0"}
            )
            assert gone.status_code == 200, gone.text
            await checked(3)
            assert prepared_on(node) == ["p"]
            assert [allocation.pod.name for allocation in node.try_report().allocations] == ["p"]
            await cluster.kubelet.start()
            await cluster.kubelet.until(lambda: not node.try_report().allocations)
            await cluster.kubelet.until(lambda: not prepared_on(node))
        assert node.leftovers() == {}


def prepared_on(node: Node) -> list[str]:
    """The claims that are prepared on a node."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(node.deadline_s)
        connection.connect(str(node.run_dir / CLAIMS_SOCKET))
        connection.sendall(encode_line(ClaimQuestion(follow=True)))
        with connection.makefile("rb") as lines:
            return [each.claim.name for each in decode_offers(lines.readline()).claims]


@asynccontextmanager
async def checking_claims(
    cluster: Cluster,
) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
    """Check every moment for claims that are abandoned; a call that waits for so many more checks."""
    client = connect(str(cluster.node.directory / "plugin.kubeconfig"))
    agent = ClaimsAgent(cluster.node.run_dir / CLAIMS_SOCKET)

    async def ask(question: ClaimQuestion) -> ClaimAnswer:
        return await agent.ask(lambda: question, time.monotonic())

    times = AbandonmentTimes(youngest_s=0.2, every_s=0.2)
    checks = AbandonedClaims(client, agent.offers, ask, times)

    async def checked(count: int) -> None:
        before = checks.count
        async with asyncio.timeout(cluster.node.deadline_s):
            while checks.count < before + count:  # noqa: ASYNC110 - no event for it
                await asyncio.sleep(0.05)

    try:
        async with in_background(agent.follow()), in_background(checks.run()):
            yield checked
    finally:
        await client.close()


async def test_recorded_calls_are_those_of_a_real_kubelet(node: Node, tmp_path: Path):
    """Their order and their fields; claims, devices and times differ."""
    with tempfile.TemporaryDirectory(prefix="dra-") as name:  # paths of sockets are short
        place = Path(name)
        directories = {"registryDir": str(place / "registry"), "pluginsDir": str(place / "plugins")}
        async with claims_cluster(node, tmp_path, {**directories, "uid": UID}) as cluster:
            registry = cluster.kubelet.lib / "plugins_registry"
            async with recording(place / "registry", registry, place / "relay.sock") as recorder:
                await cluster.until_published()
                await cluster.create_claim("p", "400M")
                await cluster.create_pod("p")
                await cluster.interfaces("p")
                await cluster.kubelet.delete_pod("p")
                await cluster.kubelet.until(lambda: not prepared_on(node))  # unprepared
                await cluster.create_claim("q", "100M")
                await cluster.create_pod("q", hostNetwork=True)
                await cluster.kubelet.event("q", "FailedPrepareDynamicResources")
    if os.environ.get(RECORD):
        recorder.write(RECORDINGS)
    kept = [json.loads(path.read_bytes()) for path in sorted(RECORDINGS.glob("*.json"))]
    assert order(recorder.calls) == order(kept)


async def test_sixty_interfaces_are_in_just_the_containers_that_name_them(
    make_node: Callable[[int], Node], tmp_path: Path
):
    """Two claims of 30 for three containers and an init container, some of which name single requests."""
    used = {"whole": ("a",), "some": ("b", "a/r0"), "none": (), "init": ("a/r1", "b/r2")}
    node = with_address(make_node(SIXTY))
    async with claims_cluster(node, tmp_path) as cluster:
        await cluster.until_published()
        for name in ("a", "b"):
            await cluster.create_claim(name, "10M", requests=SIXTY // 2)
        await cluster.create_pod(
            "p",
            containers=[container(name, *used[name]) for name in ("whole", "some", "none")],
            initContainers=[container("init", *used["init"]) | {"command": ["/look"]}],
            resourceClaims=[{"name": name, "resourceClaimName": name} for name in ("a", "b")],
        )
        assert len(await cluster.interfaces("p")) == SIXTY
        pod = await cluster.kubelet.running("p")
        looks = {name: cluster.kubelet.look(pod, name) for name in ("whole", "some", "none")}
        looks["init"] = cluster.kubelet.init_look(pod, "init")
        functions = looks["whole"].env | looks["some"].env  # every interface is in one of these
        expected = {name: set(variables(*used[name])) for name in used}
        for name, look in looks.items():
            assert {key for key in look.env if key.startswith(CLAIM_VARIABLE)} == expected[name]
            nodes = {verbs(node)[functions[key]] for key in expected[name]}
            assert look.opens == nodes | ({"rdma_cm"} if nodes else set())
        assert len({functions[key] for key in expected["whole"] | expected["some"]}) == SIXTY
        await cluster.kubelet.delete_pod("p")
        await cluster.kubelet.until(lambda: not list(cluster.kubelet.cdi.glob("*claim*")))


def container(name: str, *used: str) -> Json:
    """One that has claims (`a`), or single requests of them (`a/r0`)."""
    claims = [dict(zip(("name", "request"), use.split("/"), strict=False)) for use in used]
    return {"name": name, "image": IMAGE, "imagePullPolicy": "Never", "resources": {"claims": claims}}


def variables(*used: str) -> Iterator[str]:
    """Those of the devices that a container has by claims of 30 requests, or single ones of them."""
    for use in used:
        claim, _, request = use.partition("/")
        for name in [request] if request else [f"r{index}" for index in range(SIXTY // 2)]:
            yield f"{CLAIM_VARIABLE}_{claim}_{name}".upper()


def order(calls: list[Json]) -> list[tuple[str, bool, bool]]:
    """Methods, and whether requests and answers have content; health is reported whenever it is due."""
    return [
        (each["method"], bool(each["request_hex"]), bool(each["answer_hex"]))
        for each in calls
        if each["method"] != WATCH_HEALTH.path
    ]
