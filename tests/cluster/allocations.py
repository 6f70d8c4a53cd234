"""Cases of ResourceClaims for kube-scheduler's allocator, and a recorder of its results.

`K8S_RDMA_RECORD=1 make e2e ARGS="-k allocations_are_those"` writes `tests/recordings/dra/allocations` anew;
the stand-in's allocator is held to these.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import yaml

from cluster.control_plane import Json
from deploy.rendering.chart import render
from k8s_rdma.core.types import LinkType
from k8s_rdma.wire.claims import DRIVER, Offers, PfOffer
from k8s_rdma.wire.resource_slice import slice_specs

API = "/apis/resource.k8s.io/v1"
PODS = "/api/v1/namespaces/default/pods"
RECORDINGS = Path(__file__).parents[1] / "recordings" / "dra" / "allocations"
GPUS, RAILS = "gpu.example.com", "rdma-rails"
"""A class of another driver's devices, and one of ours with parameters."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Pods with claims, in turn, on a node of their own.

    slices: name's end, pool's end, and devices of each slice. pods: specifications of each one's claims.
    """

    slices: tuple[tuple[str, str, list[Json]], ...]
    pods: tuple[tuple[Json, ...], ...]


def pfs(*mbps: int, down: tuple[int, ...] = (), vfs: int = 8, numa: tuple[int, ...] = ()) -> list[Json]:
    """PFs f0, f1 ... of these rates as the driver publishes them. down: links that are. numa: their nodes."""
    offers = tuple(
        PfOffer(
            name=f"f{index}",
            pf=f"f{index}",
            pci=f"0000:0{index}:00.0",
            driver="mlx5_core",
            vendor="15b3:1017",
            link_type=LinkType.ETHERNET,
            mtu=1500,
            min_rate="hardware",
            max_rate="hardware",
            rdma=True,
            bandwidth_mbps=rate,
            vfs=vfs,
            numa_node=numa[index] if numa else 0,
            pcie_root=f"pci0000:0{index}",
            link_up=index not in down,
        )
        for index, rate in enumerate(mbps)
    )
    [spec] = slice_specs(Offers(node="w1", pfs=offers))
    return spec["devices"]


def gpus(*roots: int) -> list[Json]:
    """GPUs gpu-0, gpu-1 ... below the roots of these PFs; each is of one claim."""
    return [
        {
            "name": f"gpu-{index}",
            "attributes": {"resource.kubernetes.io/pcieRoot": {"string": f"pci0000:0{root}"}},
        }
        for index, root in enumerate(roots)
    ]


def request(name: str, bandwidth: str | None = None, **exactly: Any) -> Json:
    found: Json = {"deviceClassName": "rdma"} | exactly
    capacities = found.pop("capacities", {}) | ({"bandwidth": bandwidth} if bandwidth is not None else {})
    return {
        "name": name,
        "exactly": found | ({"capacity": {"requests": capacities}} if capacities else {}),
    }


def claim(*requests: Json, **devices: Any) -> Json:
    return {"devices": {"requests": list(requests)} | devices}


def constrained(kind: str, attribute: str, *names: str) -> list[Json]:
    return [({"requests": list(names)} if names else {}) | {f"{kind}Attribute": attribute}]


def parameters(*names: str, **values: Any) -> Json:
    """Parameters for requests of these names; without names for all."""
    document = {"apiVersion": "k8s-rdma.io/v1", "kind": "InterfaceConfig"} | values
    head = {"requests": list(names)} if names else {}
    return head | {"opaque": {"driver": DRIVER, "parameters": document}}


_PF, _NUMA = f"{DRIVER}/pf", "resource.kubernetes.io/numaNode"
_ROOT = "resource.kubernetes.io/pcieRoot"
_TWO = (("0", "", pfs(100_000, 100_000)),)


def alone(*requests: Json, **devices: Any) -> tuple[Json, ...]:
    """The only claim of a pod."""
    return (claim(*requests, **devices),)


CASES: dict[str, Case] = {
    "one-interface": Case(slices=_TWO, pods=(alone(request("a", "25G")),)),
    "several-interfaces": Case(
        slices=_TWO,
        pods=(
            alone(request("a", "60G"), request("b", "50G"), request("c", "40G")),
            alone(request("a", "50G"), request("b")),
        ),
    ),
    "rounding": Case(
        slices=_TWO,
        pods=tuple(alone(request("a", text)) for text in ("1", "0.5G", "1500k", "2999999999", "1Gi", "5e9")),
    ),
    "default": Case(slices=_TWO, pods=(alone(request("a")), alone(request("a", "0")))),
    "vfs": Case(
        slices=(("0", "", pfs(100_000, vfs=2)),),
        pods=(
            alone(request("a", capacities={"vfs": "2"})),
            alone(request("a", capacities={"vfs": "1"}), request("b")),
            alone(request("a")),
        ),
    ),
    "unknown-capacity": Case(slices=_TWO, pods=(alone(request("a", capacities={"speed": "1G"})),)),
    "backtracking": Case(
        slices=_TWO,
        pods=(alone(request("a", "30G"), request("b", "60G"), request("c", "70G"), request("d", "40G")),),
    ),
    "distinct": Case(
        slices=_TWO,
        pods=(
            alone(
                request("a", "10G"),
                request("b", "10G"),
                request("c"),
                constraints=constrained("distinct", _PF, "a", "b"),
            ),
            alone(request("a"), request("b"), request("c"), constraints=constrained("distinct", _PF)),
        ),
    ),
    "match": Case(
        slices=(("0", "", pfs(100_000, 100_000, 100_000, numa=(0, 1, 1))),),
        pods=(
            alone(request("a", "50G")),
            alone(request("a", "60G"), request("b", "60G"), constraints=constrained("match", _NUMA)),
            alone(request("a", "30G"), request("b", "30G"), constraints=constrained("match", _PF)),
            alone(request("a"), request("b"), constraints=constrained("match", f"{DRIVER}/none")),
        ),
    ),
    "count": Case(
        slices=(("0", "", pfs(100_000, 50_000, 100_000)),),
        pods=(
            alone(request("a", "60G", count=2)),
            alone(request("a", count=3)),
            alone(request("a", count=4)),
        ),
    ),
    "full-pf": Case(
        slices=_TWO, pods=tuple(alone(request("a", rate)) for rate in ("60G", "60G", "60G", "40G"))
    ),
    "full-link": Case(
        slices=(("0", "", pfs(25_000)),), pods=(alone(request("a", "25G")), alone(request("a", "1M")))
    ),
    "taint": Case(
        slices=(("0", "", pfs(100_000, 100_000, down=(0,))),),
        pods=(alone(request("a", "60G")), alone(request("a", "60G"))),
    ),
    "class-config": Case(
        slices=_TWO,
        pods=(
            alone(
                request("a", "1G", deviceClassName=RAILS),
                request("b"),
                request("c", "2G", deviceClassName=RAILS),
                config=[parameters("a", "b", maxTxRate="40G"), parameters(mtu=9000), parameters("c", vlan=7)],
            ),
        ),
    ),
    "two-pools": Case(
        slices=(("1", "-b", pfs(100_000)), ("0", "-c", pfs(100_000)), ("2", "-a", pfs(30_000))),
        pods=(alone(request("a", "20G"), request("b", "20G"), request("c", "90G")),),
    ),
    "two-claims": Case(
        slices=_TWO, pods=((claim(request("a", "60G")), claim(request("a", "60G"), request("b", "40G"))),)
    ),
    "beside-a-gpu": Case(
        slices=(("0", "", pfs(100_000, 100_000)), (GPUS, "", gpus(0, 1))),
        pods=(
            alone(request("a", "80G")),
            alone(
                request("gpu", deviceClassName=GPUS),
                request("rail", "40G"),
                constraints=constrained("match", _ROOT),
            ),
            alone(request("gpu", deviceClassName=GPUS, count=2)),
            alone(request("gpu", deviceClassName=GPUS)),
        ),
    ),
}


def classes() -> list[Json]:
    """The chart's DeviceClass, and those of the cases."""
    chart = render({"dra": {"enabled": True}, "placementKey": {"create": False}})
    rdma = yaml.safe_load(chart["templates/device-class.yaml"])
    config = [{"opaque": parameters(**values)["opaque"]} for values in ({"trust": True}, {"mtu": 4200})]
    selector = {"cel": {"expression": f"device.driver == '{GPUS}'"}}
    return [
        rdma,
        {**rdma, "metadata": {"name": RAILS}, "spec": {**rdma["spec"], "config": config}},
        {**rdma, "metadata": {"name": GPUS}, "spec": {"selectors": [selector]}},
    ]


@dataclass(frozen=True)
class AllocationRecorder:
    """Has kube-scheduler allocate cases. Recordings have the objects as the API server stored them."""

    http: httpx2.AsyncClient

    async def record(self, name: str, case: Case) -> Json:
        """Play a case; return its objects, and for each pod the allocations of its claims, if it has them."""
        await self._create_node(name)
        made = [await self._create_slice(name, *each) for each in case.slices]
        pods = [await self._allocate(f"{name}-{index}", name, pod) for index, pod in enumerate(case.pods)]
        found = (await self.http.get(f"{API}/deviceclasses")).json()["items"]
        named = {
            each["exactly"]["deviceClassName"]
            for pod in case.pods
            for spec in pod
            for each in spec["devices"]["requests"]
        }
        used = [kept(each) for each in found if each["metadata"]["name"] in named]
        return {"node": name, "classes": used, "slices": made, "pods": pods}

    async def _create_node(self, name: str) -> None:
        room = {"cpu": "8", "memory": "8Gi", "pods": "110"}
        ready = {"type": "Ready", "status": "True"}
        await self.create(
            "/api/v1/nodes",
            {
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
                "status": {"capacity": room, "allocatable": room, "conditions": [ready]},
            },
        )

    async def _create_slice(self, node: str, end: str, pool: str, devices: list[Json]) -> Json:
        spec = {
            "driver": GPUS if end == GPUS else DRIVER,
            "nodeName": node,
            "pool": {"name": f"{node}{pool}", "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        }
        return kept(
            await self.create(f"{API}/resourceslices", {"metadata": {"name": f"{node}-{end}"}, "spec": spec})
        )

    async def _allocate(self, name: str, node: str, specs: tuple[Json, ...]) -> Json:
        path = f"{API}/namespaces/default/resourceclaims"
        names = [f"{name}-{index}" for index in range(len(specs))]
        claims = [
            kept(await self.create(path, {"metadata": {"name": claim_name}, "spec": spec}))
            for claim_name, spec in zip(names, specs, strict=True)
        ]
        spec = {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [{"name": "c", "image": "registry.invalid/c:1"}],
            "resourceClaims": [{"name": each, "resourceClaimName": each} for each in names],
        }
        await self.create(PODS, {"metadata": {"name": name}, "spec": spec})
        if not await self._is_bound(name):
            return {"claims": claims, "allocations": None}
        found = [(await self.http.get(f"{path}/{each}")).json()["status"]["allocation"] for each in names]
        return {"claims": claims, "allocations": found}

    async def _is_bound(self, name: str) -> bool:
        """Wait until a pod is bound, or kube-scheduler has found no node for it."""
        while True:
            pod = (await self.http.get(f"{PODS}/{name}")).json()
            if pod["spec"].get("nodeName"):
                return True
            if any(each["reason"] == "Unschedulable" for each in pod["status"].get("conditions", ())):
                return False
            await asyncio.sleep(0.05)

    async def create(self, path: str, document: Json) -> Json:
        made = await self.http.post(path, json=document)
        assert made.status_code == 201, made.text
        return made.json()


def kept(document: Json) -> Json:
    """The fields of an object that do not change from run to run."""
    return {"metadata": {"name": document["metadata"]["name"]}, "spec": document["spec"]}


def comparable(recording: Json) -> Json:
    """A recording without times and shares, which are others in each run."""

    def without(value: Any) -> Any:
        if isinstance(value, list):
            return [without(each) for each in value]
        if not isinstance(value, dict):
            return value
        found = {
            key: without(each)
            for key, each in value.items()
            if key not in ("timeAdded", "allocationTimestamp")
        }
        return found | ({"shareID": "share"} if "shareID" in found else {})

    return without(recording)


def write(name: str, recording: Json) -> None:
    RECORDINGS.mkdir(parents=True, exist_ok=True)
    (RECORDINGS / f"{name}.json").write_text(json.dumps(recording, indent=1) + "\n")


def recordings() -> dict[str, Json]:
    return {path.stem: json.loads(path.read_bytes()) for path in sorted(RECORDINGS.glob("*.json"))}
