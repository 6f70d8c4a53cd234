"""`k8s-rdma explain pod`, `top` and `doctor cluster` for ResourceClaims, by the API server."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from claim_cases import claim, container, devices, request
from cli.asking import Ran, k8s_rdma
from cluster.control_plane import Json, write_kubeconfig
from cluster.real import obstacle
from cluster.test_resource_slices import SINCE, Published, publishing
from cluster.world import Cluster as World
from cluster.world import cluster
from deviceplugin.offered_pf import offer
from k8s_rdma.cli.dra import explain_claims, read_pod
from k8s_rdma.kube.documents import Documents
from k8s_rdma.wire.claims import DRIVER, Offers
from k8s_rdma.wire.extended_resources import claim_spec
from k8s_rdma.wire.pod_spec import quantity
from k8s_rdma.wire.resource_slice import slice_specs
from k8s_rdma_demo.cluster.resource_slices import CONSUMABLE_CAPACITY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

API = "/apis/resource.k8s.io/v1"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
PODS = "/api/v1/namespaces/default/pods"
OUR_DRIVER = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
NO_EXTENDER = ("--extender", "http://127.0.0.1:1")


@dataclass
class Cluster:
    """An API server with the slice of a node w1, its PFs f0 and f1."""

    published: Published
    kubeconfig: Path

    async def create(self, path: str, document: Json) -> Json:
        made = await self.published.http.post(path, json=document)
        assert made.status_code == 201, made.text
        return made.json()

    async def create_claim(self, name: str, *requests: Json, **fields: Any) -> Json:
        return await self.create(CLAIMS, claim(devices(*requests) | fields, name))

    async def allocate(self, name: str, pf: str, bandwidth: str) -> None:
        """Write the allocation of a claim of one interface, as kube-scheduler does."""
        made = await self.create_claim(name, request(bandwidth=bandwidth))
        result = {
            "request": "a",
            "driver": DRIVER,
            "pool": "w1",
            "device": pf,
            "shareID": f"11111111-2222-4333-8444-{len(name):012}",
            "consumedCapacity": {"bandwidth": bandwidth, "vfs": "1"},
        }
        made["status"] = {"allocation": {"devices": {"results": [result]}}}
        written = await self.published.http.put(f"{CLAIMS}/{name}/status", json=made)
        assert written.status_code == 200, written.text

    async def create_pod(self, name: str, *claims: str, scheduler: str = "default-scheduler") -> None:
        meta = {"name": name}
        spec = {
            "schedulerName": scheduler,
            "containers": [{"name": "c", "image": "i"}],
            "resourceClaims": [{"name": f"net-{each}", "resourceClaimName": each} for each in claims],
        }
        await self.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})

    async def run(self, *arguments: str) -> Ran:
        return await k8s_rdma(*arguments, "--kubeconfig", str(self.kubeconfig), *NO_EXTENDER)


@asynccontextmanager
async def claims_cluster(kind: str, directory: Path) -> AsyncIterator[Cluster]:
    async with publishing(kind, directory) as p:
        p.offer(*(offer(f"f{at}", pci=f"0000:03:00.{at}", bandwidth_mbps=100_000) for at in (0, 1)))
        await p.until_published("f0", "f1")
        cluster = Cluster(p, directory / "publisher.kubeconfig")
        document = {"metadata": {"name": "rdma"}, "spec": {"selectors": [OUR_DRIVER]}}
        await cluster.create(f"{API}/deviceclasses", document)
        yield cluster


async def test_pod_that_fits_is_explained_with_nodes_and_unjudged_conditions(kind: str, tmp_path: Path):
    async with claims_cluster(kind, tmp_path) as c:
        await c.allocate("held", "f0", "80G")
        selector = {"cel": {"expression": "device.attributes['rdma.k8s-rdma.io'].mtu % 2 == 0"}}
        await c.create_claim("one", request(bandwidth="30G", selectors=[selector]))
        await c.create_pod("p", "one")
        ran = await c.run("explain", "pod", "default/p")
    assert "1 node: fits" in ran.out.splitlines()
    [f1] = [line for line in ran.out.splitlines() if " f1 " in line]
    assert f1.split()[1:7] == ["f1", "1", "8/8", "100000/100000Mb/s", "1", "1"]
    assert (
        "note: a selector is not judged, as if every PF met it: "
        "device.attributes['rdma.k8s-rdma.io'].mtu % 2 == 0" in ran.out
    )
    assert "note: what else the pod needs of a node is not judged: kubectl describe pod" in ran.out


async def test_constraint_or_taint_that_keeps_a_pod_waiting_is_named(kind: str, tmp_path: Path):
    async with claims_cluster(kind, tmp_path) as c:
        spread = {"distinctAttribute": "rdma.k8s-rdma.io/pf"}
        await c.create_claim("three", *map(request, "abc"), constraints=[spread])
        await c.create_pod("p", "three")
        ran = await c.run("explain", "pod", "default/p")
        assert (
            "1 node: no: needs 3 interfaces; distinctAttribute rdma.k8s-rdma.io/pf cannot be met"
            in ran.out.splitlines()
        )
        c.published.offer(offer("f0", link_up=False))
        await c.published.until_published("f0")
        ran = await c.run("explain", "pod", "default/p")
        assert "1 node: no: needs 3 interfaces; f0: taint k8s-rdma.io/link-down" in ran.out.splitlines()


async def test_claim_that_no_node_ever_allocates_says_why(kind: str, tmp_path: Path):
    async with claims_cluster(kind, tmp_path) as c:
        await c.create_claim("wrong", request(deviceClassName="rmda"))
        await c.create_pod("p", "wrong")
        ran = await c.run("explain", "pod", "default/p")
        missing = await c.run("explain", "pod", "default/q")
    assert missing.err.startswith("k8s-rdma: no extender answers at")
    assert "has no pod default/q" in missing.err
    assert "never allocated: claim net-wrong: request a: there is no DeviceClass rmda" in ran.out


async def test_pod_by_annotation_and_claims_is_explained_by_extender_and_api_server(
    kind: str, tmp_path: Path
):
    async with cluster(kind, tmp_path, "w1") as c:
        if c.plane.release < SINCE:
            pytest.skip("no claims with capacities")
        extender = await c.running_extender()
        [spec] = slice_specs(Offers(node="w1", pfs=(offer("f0"),)))
        pool = spec["pool"] | {"generation": 1}
        await post(c, f"{API}/resourceslices", {"metadata": {"name": "s"}, "spec": spec | {"pool": pool}})
        document = {"metadata": {"name": "rdma"}, "spec": {"selectors": [OUR_DRIVER]}}
        await post(c, f"{API}/deviceclasses", document)
        await post(c, CLAIMS, claim(devices(request(bandwidth="96G"))))
        entry = {"name": "net", "resourceClaimName": "c"}
        await c.create_pod("p", 1_000, resourceClaims=[entry])
        admin = write_kubeconfig(tmp_path / "admin.kubeconfig", c.plane, c.plane.admin_token)
        options = ("--kubeconfig", str(admin), "--extender", extender.url)
        ran = await k8s_rdma("explain", "pod", "default/p", *options)
        document = json.loads((await k8s_rdma("explain", "pod", "default/p", "--json", *options)).out)
        account = await c.account("k8s-rdma-extender")
        denied = await k8s_rdma("explain", "pod", "default/p", "--kubeconfig", str(account))
    assert "asks for 1 interface; 1000 Mb/s reserved" in ran.out
    assert '  1 x {"min_tx_rate": 1000}' in ran.out
    assert "asks for 1 interface by claims; 96000 Mb/s reserved" in ran.out
    assert "needs 1 interface of 96000 Mb/s; best PF has 95000 Mb/s" in ran.out
    assert (document["extender"]["role"], document["claims"]["reserved_mbps"]) == ("active", 96_000)
    assert denied.status == 2
    assert "resourceclaims" in denied.err
    assert "HTTP 403" in denied.err


async def post(c: World, path: str, document: Json) -> None:
    made = await c.http.post(path, json=document)
    assert made.status_code == 201, made.text


async def test_pod_that_waits_is_explained_node_by_node_in_mbps_and_vfs(kind: str, tmp_path: Path):
    async with claims_cluster(kind, tmp_path) as c:
        await c.allocate("held", "f1", "30G")
        await c.create_claim("three", *(request(name, "90G") for name in "abc"))
        await c.create_pod("p", "three")
        ran = await c.run("explain", "pod", "default/p")
        document = json.loads((await c.run("explain", "pod", "default/p", "--json", "--node", "w1")).out)
    assert (ran.status, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0].startswith("pod default/p (")
    assert lines[0].endswith("): waiting")
    assert lines[1] == "asks for 3 interfaces by claims; 270000 Mb/s reserved"
    assert (
        "1 node: no: needs 270000 Mb/s for 3 interfaces; 2 PFs have 200000 Mb/s and 16 VFs when empty"
        in lines
    )
    [node] = document["claims"]["nodes"]
    assert [(pf["name"], pf["unreserved_mbps"], pf["free_vfs"]) for pf in node["pfs"]] == [
        ("f0", 100_000, 8),
        ("f1", 70_000, 7),
    ]


async def test_top_shows_pfs_for_claims_without_an_extender(kind: str, tmp_path: Path):
    async with claims_cluster(kind, tmp_path) as c:
        await c.allocate("held", "f1", "30G")
        ran = await c.run("top", "--once")
        document = json.loads((await c.run("top", "--json")).out)
    lines = ran.out.splitlines()
    assert lines[0] == "1 node, 0 with problems; 0 pods placed, 0 pending; extender absent"
    assert lines[1] == "for claims: 2 PFs; reserved 30000 of 200000 Mb/s (15%); 15 of 16 VFs free"
    assert "f0 0% 8 free, f1 30% 7 free" in ran.out
    assert document["claims"]["free_vfs"] == 15
    assert {pf["use"] for pf in document["nodes"][0]["pfs"]} == {"claims"}


@pytest.mark.parametrize("parameters", [b'{"a":' + b"[" * 5_000 + b"]" * 5_000 + b"}", b'{"a":"\xff"}'])
async def test_claim_of_any_parameters_is_counted(tmp_path: Path, parameters: bytes):
    """A real API server stores them as they come; the stand-in decodes them."""
    if (why := obstacle()) is not None:
        pytest.skip(why)
    async with claims_cluster("real", tmp_path) as c:
        opaque = {"opaque": {"driver": "d.example.com", "parameters": "PARAMETERS"}}
        document = claim(devices(request()) | {"config": [opaque]}, "odd")
        body = json.dumps(document).encode().replace(b'"PARAMETERS"', parameters)
        headers = {"content-type": "application/json"}
        made = await c.published.http.post(CLAIMS, content=body, headers=headers)
        assert made.status_code == 201, made.text
        await c.allocate("held", "f1", "30G")
        await c.create_claim("one", request(bandwidth="90G"))
        await c.create_pod("p", "one")
        explained, shown = await c.run("explain", "pod", "default/p"), await c.run("top", "--once")
        found = await claims_findings(c)
    assert "1 node: fits" in explained.out.splitlines()
    assert "for claims: 2 PFs; reserved 30000 of 200000 Mb/s (15%); 15 of 16 VFs free" in shown.out
    assert "claims-ok" in found


async def claims_findings(c: Cluster) -> dict[str, str]:
    """The doctor's findings on claims and their policies, by id and subject."""
    ran = await k8s_rdma("doctor", "cluster", "--kubeconfig", str(c.kubeconfig), "--json")
    findings = json.loads(ran.out)["findings"]
    return {
        each["id"] if each["subject"] == "claims" else f"{each['id']} {each['about']}": each["found"]
        for each in findings
        if each["subject"] in ("claims", "policies")
    }


async def test_doctor_finds_missing_parts_for_claims(kind: str, tmp_path: Path):
    async with claims_cluster(kind, tmp_path) as c:
        found = await claims_findings(c)
        assert found["claims-ok"] == "PFs in ResourceSlices: 2, of 1 node; DeviceClass rdma"
        policies = {key for key in found if key.startswith("policies-missing")}
        assert {
            f"policies-missing k8s-rdma-{name}" for name in ("claims", "claim-caps", "one-pod", "slices")
        } <= policies
        await c.create_claim("one", request())
        await c.create_claim("two", request())
        await c.create_pod("p", "one")
        await c.create_pod("q", "two", scheduler="second")
        assert "claims-schedulers-unknown" not in await claims_findings(c)
        for name in ("p", "q"):
            target = {"kind": "Node", "name": "w1"}
            await c.create(f"{PODS}/{name}/binding", {"metadata": {"name": name}, "target": target})
        assert "default-scheduler (1), second (1)" in (await claims_findings(c))["claims-schedulers-unknown"]
        await c.published.http.delete(f"{API}/deviceclasses/rdma")
        assert "claims-no-class" in await claims_findings(c)


async def test_doctor_sees_that_the_feature_gate_is_off(tmp_path: Path):
    if (why := obstacle()) is not None:
        pytest.skip(why)
    async with publishing("real", tmp_path, CONSUMABLE_CAPACITY) as p:
        c = Cluster(p, tmp_path / "publisher.kubeconfig")
        document = {"metadata": {"name": "rdma"}, "spec": {"selectors": [OUR_DRIVER]}}
        await c.create(f"{API}/deviceclasses", document)
        assert "claims-gate-off" in await claims_findings(c)


def alternatives(*amounts: str) -> Json:
    found = [
        {"name": f"s{index}", "deviceClassName": "rdma", "capacity": {"requests": {"bandwidth": amount}}}
        for index, amount in enumerate(amounts)
    ]
    return {"name": "a", "firstAvailable": found}


SCHEDULER = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
PF, NUMA = "rdma.k8s-rdma.io/pf", "resource.kubernetes.io/numaNode"
OURS = "device.attributes['rdma.k8s-rdma.io']"
DOWN = {"key": "k8s-rdma.io/link-down", "operator": "Exists"}
REFUSED: dict[str, Json] = {
    "too-much": devices(*(request(name, "90G") for name in "abc")),
    "too-large": devices(request("a", "101G")),
    "three-pfs": {**devices(*map(request, "abc")), "constraints": [{"distinctAttribute": PF}]},
    "count": devices(request(count=3)),
    "one-pf": {**devices(request("a", "60G"), request("b", "60G")), "constraints": [{"matchAttribute": PF}]},
    "unlike": {
        **devices(request("a"), request("b")),
        "constraints": [{"matchAttribute": NUMA}, {"distinctAttribute": PF}],
    },
    "selected": devices(request(selectors=[{"cel": {"expression": f"{OURS}.mtu >= 9000"}}])),
    "alternatives": devices(alternatives("200G", "101G")),
}
FITTING: dict[str, Json] = {
    "two": devices(request("a", "30G"), request("b", "30G")),
    "together": {**devices(request("a", "5G"), request("b", "5G")), "constraints": [{"matchAttribute": PF}]},
    "apart": {**devices(request("a"), request("b")), "constraints": [{"distinctAttribute": PF}]},
    "pair": devices(request(count=2)),
    "tolerant": devices(request(count=3, tolerations=[DOWN])),
    "only-f1": devices(request("a", "1G", selectors=[{"cel": {"expression": f"{OURS}.pf == 'f1'"}}])),
    "lesser": devices(alternatives("200G", "1G")),
}


@asynccontextmanager
async def scheduling(directory: Path) -> AsyncIterator[tuple[World, Documents]]:
    """A cluster with kube-scheduler and a node of three PFs, one of them down; with its documents."""
    if (why := obstacle()) is not None:
        pytest.skip(why)
    pfs = (
        offer("f0", bandwidth_mbps=100_000, numa_node=0),
        offer("f1", bandwidth_mbps=100_000, least_mbps=1_000),
    )
    async with cluster("real", directory, "w1") as c:
        if c.plane.release < SINCE:
            pytest.skip("no claims with capacities")
        [spec] = slice_specs(Offers(node="w1", pfs=(*pfs, offer("f2", numa_node=2, link_up=False))))
        pool = spec["pool"] | {"generation": 1}
        await post(c, f"{API}/resourceslices", {"metadata": {"name": "s"}, "spec": spec | {"pool": pool}})
        await post(
            c, f"{API}/deviceclasses", {"metadata": {"name": "rdma"}, "spec": {"selectors": [OUR_DRIVER]}}
        )
        admin = write_kubeconfig(directory / "admin.kubeconfig", c.plane, c.plane.admin_token)
        async with c.plane.scheduler(SCHEDULER):
            with Documents(str(admin)) as api:
                yield c, api


async def decide(c: World, api: Documents, name: str, **spec: Any) -> tuple[Json, str, Json]:
    """A new pod; its verdict by `explain` before kube-scheduler may see it; and the pod as decided."""
    gates = {"schedulingGates": [{"name": "example.com/wait"}]}
    await c.create_pod(name, **spec, **gates)
    pod = read_pod(api, "default", name)
    assert pod is not None
    explained = explain_claims(api, pod, nodes=("w1",), every=False)
    assert explained is not None
    [node] = explained.nodes
    await c.patch(f"/api/v1/namespaces/default/pods/{name}", {"spec": {"schedulingGates": None}})
    return pod, node.verdict, await c.when(name, is_decided)


async def test_explanation_agrees_with_kube_scheduler(tmp_path: Path):
    async with scheduling(tmp_path) as (c, api):
        for name, requested in (REFUSED | FITTING).items():
            await post(c, CLAIMS, claim(requested, name))
            entry = {"name": "net", "resourceClaimName": name}
            _, verdict, pod = await decide(c, api, name, resourceClaims=[entry])
            bound = bool(pod["spec"].get("nodeName"))
            assert (name, verdict, bound) == (name, "fits" if bound else "refused", name in FITTING)


def of_f1(name: str, bandwidth: str | None = None) -> Json:
    return request(name, bandwidth, selectors=[{"cel": {"expression": f"{OURS}.pf == 'f1'"}}])


async def test_least_reservation_of_a_pf_is_consumed_by_requests_for_less(tmp_path: Path):
    """Of 100 Gb/s 1 Mb/s is left after 97999, 1000 and 1000: an interface without a reservation waits."""
    claims = {"large": of_f1("a", "97999M"), "none": of_f1("a"), "zero": of_f1("a", "0"), "last": of_f1("a")}
    async with scheduling(tmp_path) as (c, api):
        for name, requested in claims.items():
            await post(c, CLAIMS, claim(devices(requested), name))
            entry = {"name": "net", "resourceClaimName": name}
            _, verdict, pod = await decide(c, api, name, resourceClaims=[entry])
            assert (name, verdict) == (name, "refused" if name == "last" else "fits")
            assert bool(pod["spec"].get("nodeName")) == (name != "last")
        consumed = [_consumed(api.get(f"{CLAIMS}/{name}")) for name in ("large", "none", "zero")]
    assert consumed == [97_999, 1_000, 1_000]


def _consumed(claim: Json | None) -> int:
    assert claim is not None
    [result] = claim["status"]["allocation"]["devices"]["results"]
    return int(quantity(result["consumedCapacity"]["bandwidth"]) / 1_000_000)


EXTENDED_RESOURCES: dict[str, Json] = {
    "pair": {"containers": [container("a", 2)]},
    "each": {"containers": [container("a", 2), container("b"), container("c", 2)]},
    "init": {"initContainers": [container("a", 2), container("b", 1)], "containers": [container("c", 1)]},
    "sidecar": {
        "initContainers": [
            container("a", 2, restartPolicy="Always"),
            container("b", 2),
            container("c", 1),
        ],
        "containers": [container("d", 1)],
    },
    "three": {"containers": [container("a", 3)]},
}


async def test_extended_resources_are_explained_as_kube_scheduler_claims_them(tmp_path: Path):
    async with scheduling(tmp_path) as (c, api):
        for name, spec in EXTENDED_RESOURCES.items():
            before, verdict, pod = await decide(c, api, name, **spec)
            bound = bool(pod["spec"].get("nodeName"))
            assert (name, verdict, bound) == (name, "fits" if bound else "refused", name != "three")
            if bound:
                status = pod["status"]["extendedResourceClaimStatus"]
                expected = claim_spec(before, api.items(f"{API}/deviceclasses"))
                made = api.get(f"{CLAIMS}/{status['resourceClaimName']}")
                explained = explain_claims(api, pod, nodes=(), every=False)
                assert made
                assert expected
                assert explained
                requests = counts(expected)
                assert counts(made["spec"]) == requests
                [has] = explained.allocated.values()
                assert sum(pf.interfaces for pf in has.pfs) == sum(requests.values())


def counts(spec: Json) -> dict[str, int]:
    """The number of devices that each request of a claim is for."""
    return {each["name"]: each["exactly"]["count"] for each in spec["devices"]["requests"]}


def is_decided(pod: Json) -> bool:
    """Whether kube-scheduler has bound a pod, or said that no node takes it."""
    conditions = pod["status"].get("conditions") or ()
    return bool(pod["spec"].get("nodeName")) or any(
        each.get("reason") == "Unschedulable" for each in conditions
    )
