"""A large cluster for benchmarks, in one process: its API server, with the objects that its agents publish.

    python large_cluster.py NODES PODS_A_NODE KIND

prints the port. Every node has 2 PFs of 100,000 Mb/s and 120 VFs, renews its Lease every 60 s, and its pods
hold an interface of 1,000 to 2,900 Mb/s each. KIND: `alike`: 20 different situations among all nodes;
`distinct`: no two nodes are in the same.
"""

from __future__ import annotations

import asyncio
import json
import sys
from binascii import b2a_base64
from typing import TYPE_CHECKING, Any

import msgspec
import uvloop

from api_server import PODS, Api, ApiProtocol
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.rate_ability import EVERY_RATE
from k8s_rdma.core.types import NodeName, PciAddress, PodUid
from k8s_rdma.wire.ed25519_keys import PrivateKey
from k8s_rdma.wire.placement_annotation import encode as encode_placement
from k8s_rdma.wire.placement_keys import PlacementKeys
from k8s_rdma.wire.rdma_node import status_of
from k8s_rdma.wire.report import (
    Allocation,
    Enforced,
    ForeignVf,
    Interface,
    NodeReport,
    PfReport,
    ReportedPod,
    rates_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

PFS = ("0000:3b:00.0", "0000:af:00.0")
LINK_MBPS = 100_000
VFS = 120
RENEWAL_S = 60.0
RDMA_NODES = "/apis/k8s-rdma.io/v1alpha1/rdmanodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/k8s-rdma/leases"
SIGNER = PrivateKey(b"a key of thirty-two octets......")
KEYS = PlacementKeys.from_keys(SIGNER)
KEY_FILE = b"-----BEGIN %s-----\n%s-----END %s-----\n" % (
    b"PRIVATE KEY",
    b2a_base64(bytes.fromhex("302e020100300506032b657004220420") + SIGNER.seed),
    b"PRIVATE KEY",
)
"""Of the form that new installations have: Ed25519 in PKCS #8 (RFC 8410)."""

FILLER = {
    "volumes": [],
    "containers": [{"name": "c", "image": "registry.example/x", "command": ["y" * 64] * 24}],
}
"""Brings a pod to the 3 KB that small real ones have."""


def address(index: int) -> str:
    """Return a node's address; every address of 127.0.0.0/8 is this host."""
    return f"127.1.{index // 250}.{index % 250 + 1}"


def node_name(index: int) -> str:
    """Return a node's name."""
    return f"node-{index}.example"


def rate_of(node: int, pod: int) -> int:
    """Return a pod's reservation, Mb/s."""
    return 1_000 + 100 * ((node + 3 * pod) % 20)


def uid_of(node: int, pod: int) -> str:
    """Return the UID of a pod on a node."""
    return f"{node:08x}-0000-4000-8000-{pod:012x}"


def interface_of(node: int, pod: int) -> PlacedInterface:
    """Return a pod's interface."""
    return PlacedInterface(pf=PciAddress(PFS[pod % 2]), min_tx_rate_mbps=rate_of(node, pod))


def pod_object(name: str, uid: str, rates: list[int]) -> dict[str, Any]:
    """Return a pod that waits for a node."""
    wanted = json.dumps([{"min_tx_rate": rate} for rate in rates])
    return {
        "metadata": {
            "name": name,
            "namespace": f"team-{len(name) % 7}",
            "uid": uid,
            "resourceVersion": "1",
            "labels": {"app": "trainer", "job": name.rpartition("-")[0]},
            "annotations": {"rdma_interfaces_required": wanted},
        },
        "spec": {**FILLER, "priority": 0},
        "status": {"phase": "Pending"},
    }


def bound_pod(node: int, pod: int) -> dict[str, Any]:
    """Return a pod that runs."""
    made = pod_object(f"job-{node}-{pod}", uid_of(node, pod), [rate_of(node, pod)])
    placement = Placement(node=NodeName(node_name(node)), interfaces=(interface_of(node, pod),))
    text = encode_placement(placement, PodUid(uid_of(node, pod)), KEYS)
    made["metadata"]["annotations"]["k8s-rdma.io/placement"] = text
    made["spec"]["nodeName"] = node_name(node)
    made["status"]["phase"] = "Running"
    return made


def node_object(index: int) -> dict[str, Any]:
    """Return a short node object."""
    return {
        "metadata": {"name": node_name(index), "uid": f"node-{index}", "resourceVersion": "1"},
        "status": {"addresses": [{"type": "InternalIP", "address": address(index)}]},
    }


def pods_of(nodes: int, pods: int) -> Iterator[dict[str, Any]]:
    """Yield all running pods in the order of a real list: names are independent of nodes, which alternate."""
    return (bound_pod(node, pod) for pod in range(pods) for node in range(nodes))


def report_of(index: int, pods: int, kind: str) -> NodeReport:
    """Return the report of a node's agent."""
    pfs = tuple(
        PfReport(
            name=f"enp{at}s0f0",
            pci=pci,
            driver="mlx5_core",
            vendor="15b3:1017",
            numa_node=at,
            capacity_vfs=VFS,
            link_mbps=LINK_MBPS,
            rates=rates_of(EVERY_RATE),
        )
        for at, pci in enumerate(PFS)
    )
    if kind == "distinct":
        other = ForeignVf(vf=VFS - 1, why="rates that are not ours", min_tx_rate=index + 1, max_tx_rate=0)
        pfs = (msgspec.structs.replace(pfs[0], foreign=(other,)), *pfs[1:])
    return NodeReport(
        node=node_name(index),
        generation="e.1",
        ledger="ok",
        pfs=pfs,
        allocations=tuple(allocation_of(index, pod) for pod in range(pods)),
    )


def allocation_of(node: int, pod: int) -> Allocation:
    """Return the allocation of one of its pods."""
    rate = rate_of(node, pod)
    held = Interface(
        pf=PFS[pod % 2],
        vf=pod // 2,
        ifname="eth0",
        mac="",
        min_tx_rate=rate,
        max_tx_rate=0,
        set_min_tx_rate=rate,
        set_max_tx_rate=0,
        enforced=Enforced(min="hardware", max=None),
        entry=0,
    )
    name, uid = f"job-{node}-{pod}", uid_of(node, pod)
    namespace = pod_object(name, uid, [])["metadata"]["namespace"]
    owner = ReportedPod(namespace=namespace, name=name, uid=uid)
    return Allocation(pod=owner, container_id=f"{pod:064x}", phase="attached", interfaces=(held,))


def rdma_node(index: int, pods: int, kind: str) -> dict[str, Any]:
    """Return the object that a node's agent publishes."""
    meta = {"name": node_name(index), "uid": f"rdmanode-{index}", "resourceVersion": "1"}
    return {"metadata": meta, "status": msgspec.to_builtins(status_of(report_of(index, pods, kind)))}


def lease(index: int, version: int) -> dict[str, Any]:
    """Return the Lease that says that the published object is valid."""
    meta = {"name": node_name(index), "namespace": "k8s-rdma", "resourceVersion": str(version)}
    return {"metadata": meta, "spec": {"holderIdentity": "e.1", "leaseDurationSeconds": 180}}


async def renew(api: Api, nodes: int) -> None:
    """Renew all Leases, spread over the time between two renewals of one."""
    while True:
        for index in range(nodes):
            api.collections[LEASES].tell("MODIFIED", msgspec.json.encode(lease(index, next(api.versions))))
            if index % 50 == 49:
                await asyncio.sleep(RENEWAL_S * 50 / nodes)
        await asyncio.sleep(0.01)


def new_pod(index: int) -> dict[str, Any]:
    """Return a pod that waits for a node."""
    return pod_object(f"new-{index}", f"pending-{index}", [1_000])


async def serve(nodes: int, pods: int, kind: str) -> None:
    """Serve until killed."""
    api = Api(new_pod)
    api.fill(PODS, "PodList", pods_of(nodes, pods))
    api.fill("/api/v1/nodes", "NodeList", map(node_object, range(nodes)))
    api.fill(RDMA_NODES, "RdmaNodeList", (rdma_node(index, pods, kind) for index in range(nodes)))
    api.fill(LEASES, "LeaseList", (lease(index, 1) for index in range(nodes)))
    server = await asyncio.get_running_loop().create_server(lambda: ApiProtocol(api), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await renew(api, nodes)


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
