"""A real kube-scheduler allocates the examples of ResourceClaims on our slices, and the agent reads them."""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import yaml

from cluster.controllers import controllers
from cluster.controllers import obstacle as no_controllers
from cluster.real import Real, obstacle
from cluster.test_dra_policies import API, EXAMPLES, SINCE, SLICES
from cluster.world import Cluster, cluster, collection, documents
from deploy.rendering.chart import render
from k8s_rdma.core.types import LinkType, NodeName
from k8s_rdma.wire.annotation import read_pod
from k8s_rdma.wire.claim_template import TemplateNames, claim_templates
from k8s_rdma.wire.claims import DRIVER, ClaimName, Offers, PfOffer, Prepare
from k8s_rdma.wire.resource_claim import decode_prepare
from k8s_rdma.wire.resource_slice import slice_name, slice_specs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from cluster.control_plane import Json
    from k8s_rdma.core.claims import ClaimedInterface
    from k8s_rdma.core.request import Request

WHY_NOT = obstacle() or no_controllers()
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(WHY_NOT), reason=f"no real cluster: {WHY_NOT}"),
]
NODE = "w1"
GPUS = "gpu.nvidia.com"
SCHEDULER: Json = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}


def pf(index: int, mbps: int) -> PfOffer:
    return PfOffer(
        name=f"enp{index}s0",
        pf=f"enp{index}s0",
        pci=f"0000:0{index}:00.0",
        driver="mlx5_core",
        vendor="15b3:1017",
        link_type=LinkType.ETHERNET,
        mtu=9000 if index else 1500,
        min_rate="hardware",
        max_rate="hardware",
        rdma=True,
        bandwidth_mbps=mbps,
        vfs=63,
        numa_node=index // 4,
        pcie_root=f"pci0000:0{index}",
    )


def gpu_slice(count: int) -> Json:
    """GPUs in an order that is not the PFs'."""
    gpus = [
        {
            "name": f"gpu-{index}",
            "attributes": {"resource.kubernetes.io/pcieRoot": {"string": f"pci0000:0{count - 1 - index}"}},
        }
        for index in range(count)
    ]
    pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    return {"driver": GPUS, "nodeName": NODE, "pool": pool, "devices": gpus}


@asynccontextmanager
async def scheduled(directory: Path, *pfs: PfOffer) -> AsyncIterator[Cluster]:
    """A node with PFs for claims and as many GPUs, kube-scheduler, and the controller that makes claims."""
    async with cluster("real", directory, NODE) as c:
        if c.plane.release < SINCE:
            pytest.skip(f"Kubernetes {c.plane.release}: capacities of claims are of {SINCE} and later")
        assert isinstance(c.plane, Real)
        chart = render({"dra": {"enabled": True}, "placementKey": {"create": False}})
        rdma = yaml.safe_load(chart["templates/device-class.yaml"])
        selector = {"cel": {"expression": f"device.driver == '{GPUS}'"}}
        gpus = {**rdma, "metadata": {"name": GPUS}, "spec": {"selectors": [selector]}}
        [spec] = slice_specs(Offers(node=NODE, pfs=pfs))
        spec["pool"]["generation"] = 1
        head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
        for path, document in (
            (f"{API}/deviceclasses", rdma),
            (f"{API}/deviceclasses", gpus),
            (SLICES, {**head, "metadata": {"name": slice_name(NODE, 0)}, "spec": spec}),
            (SLICES, {**head, "metadata": {"name": "gpus"}, "spec": gpu_slice(len(pfs))}),
        ):
            made = await c.http.post(path, json=document)
            assert made.status_code == 201, made.text
        async with controllers(c.plane, "resourceclaim-controller"), c.plane.scheduler(SCHEDULER):
            yield c


async def create(c: Cluster, *objects: Json) -> str:
    """Create templates and a pod, of a workload's template if need be; the pod's name."""
    name = ""
    for document in objects:
        found = document
        if document["kind"] not in ("Pod", "ResourceClaim", "ResourceClaimTemplate"):
            spec = document["spec"]["template"]["spec"]
            found = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": document["metadata"]["name"]},
                "spec": spec,
            }
        made = await c.http.post(collection(found), json=found)
        assert made.status_code == 201, made.text
        name = found["metadata"]["name"]
    return name


async def prepared(c: Cluster, name: str) -> list[ClaimedInterface]:
    """The interfaces of a pod's claims, once it is bound, as the agent reads them."""
    pod = await c.bound(name)
    interfaces = []
    for entry in pod["status"]["resourceClaimStatuses"]:
        claim = entry["resourceClaimName"]
        found = (await c.http.get(f"{API}/namespaces/default/resourceclaims/{claim}")).json()
        question = Prepare(
            claim=ClaimName(namespace="default", name=claim, uid=found["metadata"]["uid"]),
            resource=msgspec.Raw(msgspec.json.encode(found)),
            pod=msgspec.Raw(msgspec.json.encode(pod)),
        )
        interfaces += decode_prepare(question, NodeName(NODE)).claim.interfaces
    return interfaces


def loads(interfaces: list[ClaimedInterface]) -> Counter[str]:
    """Mb/s by PF."""
    found: Counter[str] = Counter()
    for entry in interfaces:
        found[entry.device] += entry.interface.min_tx_rate_mbps
    return found


async def test_examples_are_allocated_as_they_say(tmp_path: Path):
    async with scheduled(tmp_path, pf(0, 1000), pf(1, 1000)) as c:
        found = {}
        for name in ("one-interface", "dpdk", "job", "deployment"):
            found[name] = await prepared(c, await create(c, *documents(EXAMPLES / f"{name}.yaml")))
        [data] = found["one-interface"]
        assert (data.interface.min_tx_rate_mbps, data.interface.max_tx_rate_mbps) == (300, 500)
        assert data.interface.options.name == "data0"
        [vf] = found["dpdk"]
        assert (vf.interface.options.driver, vf.interface.options.vlan) == ("vfio-pci", 100)
        assert sorted(loads(found["job"]).values()) == [150, 150]
        assert sorted(loads(found["deployment"]).values()) == [100]
        assert [each.interface.max_tx_rate_mbps for each in found["deployment"]] == [300, 0]


async def test_sixty_interfaces_fill_both_pfs(tmp_path: Path):
    async with scheduled(tmp_path, pf(0, 1000), pf(1, 1000)) as c:
        name = await create(c, *documents(EXAMPLES / "sixty-interfaces.yaml"))
        found = await prepared(c, name)
        assert loads(found) == {"enp0s0": 990, "enp1s0": 990}


async def test_rails_are_below_the_roots_of_their_gpus(tmp_path: Path):
    async with scheduled(tmp_path, *(pf(index, 200_000) for index in range(8))) as c:
        name = await create(c, *documents(EXAMPLES / "eight-rails.yaml"))
        found = await prepared(c, name)
        assert loads(found) == {f"enp{index}s0": 180_000 for index in range(8)}
        claims = (await c.http.get(f"{API}/namespaces/default/resourceclaims")).json()["items"]
        [results] = [each["status"]["allocation"]["devices"]["results"] for each in claims]
        device = {each["request"]: each["device"] for each in results}
        for index in range(8):
            gpu, rail = device[f"gpu-{index}"], device[f"rail-{index}"]
            assert rail == f"enp{7 - int(gpu.removeprefix('gpu-'))}s0"


def pod_with(name: str, text: str, **annotations: str) -> tuple[Request, list[Json]]:
    """The request of an annotation, and a pod with claims for it."""
    annotations = {"rdma_interfaces_required": text} | {
        f"k8s-rdma.io/{key}": value for key, value in annotations.items()
    }
    request = read_pod(annotations, strict=True).request
    templates = claim_templates(request, TemplateNames(name=name)).templates
    claims = [{"name": each.pod_claim, "resourceClaimTemplateName": each.name} for each in templates]
    container = {"name": "c", "image": "registry.invalid/c:1"}
    spec = {"containers": [container], "resourceClaims": claims}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    return request, [*(each.document for each in templates), pod]


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ('[{"min_tx_rate": 5000, "max_tx_rate": 9000, "vlan": 7}, {"min_tx_rate": 60000}, {}]', "any"),
        ('[{"pf": {"name": ["enp1s0"], "vendor": "15b3", "driver": ["mlx5_core", "x"]}}]', "any"),
        ('[{"pf": "0000:01:00.0", "link_type": "ib"}, {"mtu": 9000}]', "any"),
        ('[{"min_tx_rate": 30000, "max_tx_rate": 40000, "enforce": "hardware", "count": 2}]', "spread-pfs"),
        ('[{"min_tx_rate": 30000}, {"min_tx_rate": 20000, "mac": "02:00:00:00:00:01"}]', "same-pf"),
        ('[{"min_tx_rate": 60000, "count": 2}]', "same-numa"),
    ],
)
async def test_annotation_has_its_interfaces_by_claim(tmp_path: Path, text: str, policy: str):
    pfs = pf(0, 100_000), pf(1, 100_000)
    if '"ib"' in text:
        pfs = pfs[0], msgspec.structs.replace(pfs[1], link_type=LinkType.INFINIBAND)
    async with scheduled(tmp_path, *pfs) as c:
        request, objects = pod_with("converted", text, policy=policy)
        found = await prepared(c, await create(c, *objects))
        rates = Counter((each.min_tx_rate_mbps, each.max_tx_rate_mbps) for each in request.interfaces)
        assert rates == Counter(
            (each.interface.min_tx_rate_mbps, each.interface.max_tx_rate_mbps) for each in found
        )
        pf_count = len({each.device for each in found})
        assert pf_count == {"spread-pfs": 2, "same-pf": 1, "same-numa": 2}.get(policy, pf_count)
        if "enp1s0" in text or "0000:01" in text:
            assert found[0].device == "enp1s0"


REQUESTS: dict[str, Json] = {
    "gpu": {"deviceClassName": GPUS},
    "net": {"deviceClassName": "rdma", "capacity": {"requests": {"bandwidth": "25G"}}},
}


def claim_and_pod(name: str, requests: dict[str, Json], **devices: Any) -> tuple[Json, Json]:
    """A claim of requests in this order, and its pod, both of that name. devices: more of the claim."""
    listed = [{"name": each, "exactly": exactly} for each, exactly in requests.items()]
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": listed, **devices}},
    }
    spec = {
        "containers": [{"name": "c", "image": "registry.invalid/c:1"}],
        "resourceClaims": [{"name": "c", "resourceClaimName": name}],
    }
    return claim, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize(
    ("order", "full", "other"),
    [
        (("gpu", "net"), 1, {"gpu": "gpu-1", "net": "enp0s0"}),
        (("net", "gpu"), 0, {"gpu": "gpu-0", "net": "enp1s0"}),
    ],
)
async def test_full_pf_sends_the_pod_to_the_other_gpu(
    tmp_path: Path, order: tuple[str, str], full: int, other: dict[str, str]
):
    """The first GPU, or PF, of the order would be of the root whose PF is full."""
    async with scheduled(tmp_path, pf(0, 100_000), pf(1, 100_000)) as c:
        selector = {"cel": {"expression": f"device.attributes['{DRIVER}'].pf == 'enp{full}s0'"}}
        whole = REQUESTS["net"] | {"capacity": {"requests": {"bandwidth": "100G"}}, "selectors": [selector]}
        matched = [{"requests": list(order), "matchAttribute": "resource.kubernetes.io/pcieRoot"}]
        for objects in (
            claim_and_pod("whole", {"net": whole}),
            claim_and_pod("p", {name: REQUESTS[name] for name in order}, constraints=matched),
        ):
            await c.bound(await create(c, *objects))
        claim = (await c.http.get(f"{API}/namespaces/default/resourceclaims/p")).json()
        results = claim["status"]["allocation"]["devices"]["results"]
        assert {each["request"]: each["device"] for each in results} == other
