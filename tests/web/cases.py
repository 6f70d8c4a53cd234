"""Clusters and pods as an extender shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.wire.views import (
    ClusterView,
    Explanation,
    ExtenderState,
    Group,
    HolderRow,
    Limit,
    NodeExplanation,
    NodeRow,
    PendingRow,
    PfExplanation,
    PfRow,
    PfTotals,
    Place,
    Placed,
    Refused,
    RequestedInterface,
    Totals,
)

if TYPE_CHECKING:
    from k8s_rdma.core.types import Enforcer

ACTIVE = ExtenderState(role="active")
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{ 7*7 }}\u202e\x1b[31m"


def pf(
    index: int,
    reserved_mbps: int | None = 40_000,
    link_mbps: int | None = 100_000,
    min_by: Enforcer = "hardware",
) -> PfRow:
    return PfRow(
        name=f"enp{65 + index}s0f0np0",
        link_mbps=link_mbps,
        reserved_mbps=reserved_mbps,
        vfs=32,
        free_vfs=20,
        min_by=min_by,
    )


def node(name: str, *pfs: PfRow, **fields: object) -> NodeRow:
    return NodeRow(name=name, pfs=pfs, **{"pods": 3, "heard_s": 4.0, **fields})


def waiting(pod: str, why: str = "", **causes: int) -> PendingRow:
    times = {"ago_s": 3.0, "waits_s": 312.0}
    return PendingRow(pod=pod, interfaces=2, reserved_mbps=80_000, why=why, causes=causes, **times)


def cluster(*nodes: NodeRow, pending: tuple[PendingRow, ...] = (), pending_total: int = 0) -> ClusterView:
    """The view of these nodes, with the sums that an extender would compute."""
    uses: dict[str, list[PfRow]] = {"annotation": [], "claims": []}
    for row in nodes:
        for each in () if row.unreadable else row.pfs:
            uses[each.use].append(each)
    sums = {use: _sums(pfs) for use, pfs in uses.items()}
    return ClusterView(
        extender=ACTIVE,
        totals=Totals(
            nodes=len(nodes),
            unreadable=sum(row.unreadable for row in nodes),
            with_problems=sum(bool(row.problems) for row in nodes),
            pods=sum(row.pods for row in nodes),
            **sums["annotation"],
        ),
        claims=PfTotals(**sums["claims"]),
        nodes=nodes,
        pending=pending,
        pending_total=pending_total or len(pending),
    )


def _sums(pfs: list[PfRow]) -> dict[str, int]:
    return {
        "pfs": len(pfs),
        "link_mbps": sum(each.link_mbps or 0 for each in pfs),
        "reserved_mbps": sum(each.reserved_mbps or 0 for each in pfs),
        "vfs": sum(each.vfs for each in pfs),
        "free_vfs": sum(each.free_vfs for each in pfs),
    }


def large_cluster(nodes: int = 5_000, pfs: int = 8, pending: int = 2_000) -> ClusterView:
    """A cluster of the largest size that is supported, with long names."""
    name = "gpu-worker-{:05}.rack-17.cluster.example.com"
    why = "4,999 nodes: pod needs more bandwidth than any PF has left; 1 node: it cannot be read"
    return cluster(
        *(
            node(
                name.format(index),
                *(pf(number, reserved_mbps=(index * 977 + number * 7919) % 100_000) for number in range(pfs)),
                problems=("enp65s0f0np0: link speed unknown (link down?)",) if index % 50 == 0 else (),
            )
            for index in range(nodes)
        ),
        pending=tuple(
            waiting(f"team-{index % 40}/training-job-{index}-worker-0", why) for index in range(pending)
        ),
    )


EXAMPLE = cluster(
    node("worker-1", pf(0, 92_500), pf(1, 40_000), pf(2, 0)),
    node(
        "worker-2",
        pf(0, 12_500, min_by="accounted"),
        pf(1, None),
        problems=("enp66s0f0np0: use unknown",),
    ),
    node(
        "worker-3",
        pf(0, 30_000, None),
        problems=("no report for 5 min: is the agent running?",),
        unreadable=True,
        heard_s=312.0,
    ),
    node(
        "worker-4.rack-17.cluster.example.com",
        pf(0, 110_000),
        PfRow(
            name="enp66s0f0np0", link_mbps=100_000, reserved_mbps=25_000, vfs=16, free_vfs=12, use="claims"
        ),
        problems=("enp65s0f0np0: 110000 Mb/s are reserved, of 100000 that there are",),
    ),
    node("worker-5", heard_s=None, pods=0, problems=("it has never reported",), unreadable=True),
    pending=(
        waiting("research/llama-pretrain-worker-0", exceeds_capacity=4, unreadable_node=1),
        waiting("research/llama-pretrain-worker-1", exceeds_capacity=4, unreadable_node=1),
        waiting("team-b/bandwidth-test", "5 nodes: no PF has 4 free VFs on the pod's NUMA node"),
    ),
)
"""A small cluster with everything that can be wrong."""


def holder(pod: str, count: int = 1, **fields: object) -> tuple[HolderRow, ...]:
    """Equal interfaces of `namespace/name`."""
    namespace, _, name = pod.partition("/")
    given = {"node": "worker-1", "pf": "enp65s0f0np0", "pci": "0000:41:00.0", "uid": f"uid-of-{name}"}
    given |= {"reserved_mbps": 20_000, "cap_mbps": 40_000, "min_by": "hardware", "max_by": "hardware"}
    return (HolderRow(namespace=namespace, pod=name, **{**given, **fields}),) * count


HOLDERS = (
    *holder("research/llama-pretrain-worker-7", 4),
    *holder("research/notebook", pf="enp66s0f0np0", min_by="accounted", max_by="software", generation=2),
    *holder("team-b/bandwidth", 2, reserved_mbps=6_250, cap_mbps=0, max_by="none", admitted=3, generation=2),
    *holder("team-b/", reserved_mbps=0, cap_mbps=0, min_by=None, max_by=None, uid="4d1c2b3a"),
)
"""Of worker-1: two namespaces, and a pod without a name."""


def explanation(**fields: object) -> Explanation:
    """A refused pod."""
    pfs = (
        PfExplanation(
            name="enp65s0f0np0",
            pci="0000:41:00.0",
            link_mbps=100_000,
            unreserved_mbps=7_500,
            vfs=32,
            free_vfs=20,
            objections=("needs 80000 Mb/s, has 7500",),
            short_mbps=72_500,
        ),
        PfExplanation(
            name="enp66s0f0np0",
            pci="0000:42:00.0",
            link_mbps=100_000,
            unreserved_mbps=60_000,
            vfs=32,
            free_vfs=20,
            placed=1,
            placed_mbps=40_000,
            room_for=1,
            min_by=("accounted",),
        ),
    )
    given = {
        "namespace": "research",
        "name": "llama-pretrain-worker-0",
        "uid": "u-1",
        "extender": ACTIVE,
        "state": "refused",
        "interfaces": (RequestedInterface(count=2, interface={"min_tx_rate": 40_000}),),
        "reserved_mbps": 80_000,
        "refused": Refused(verb="filter", ago_s=3.0, text="", causes={"insufficient": 2}),
        "limit": Limit(used_mbps=120_000, limit_mbps=400_000, used_vfs=12, limit_vfs=None),
        "places": (
            Place(
                node="worker-1",
                placement=(
                    Placed(pci="0000:41:00.0", name="enp65s0f0np0", interfaces=1, reserved_mbps=40_000),
                ),
                signature="valid",
            ),
        ),
        "nodes_known": 3,
        "groups": (
            Group(
                verdict="refused",
                count=2,
                why="needs more bandwidth than its PFs have left",
                examples=(NodeExplanation(node="worker-1", verdict="refused", pfs=pfs),),
            ),
            Group(
                verdict="unreadable",
                count=1,
                why="no report for 5 min",
                examples=(NodeExplanation(node="worker-3", verdict="unreadable"),),
            ),
        ),
        "notes": ("quotas of other namespaces are not shown",),
    }
    return Explanation(**{**given, **fields})
