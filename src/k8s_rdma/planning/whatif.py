"""Capacity questions on a planned cluster: whether pods fit, how many more, and what changes would do.

Pods are placed one after the other as production does, each on the node of the highest score; of equal ones
kube-scheduler takes any, and this the first by name. Nothing here changes its arguments.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import msgspec

from k8s_rdma.core.inventory import NOTHING_USED, Inventory, Pf, Used
from k8s_rdma.core.offers import Strategy, room_of
from k8s_rdma.core.placement import Placement, Rejection, Share
from k8s_rdma.core.request import InterfaceRequest, PfPolicy, Request
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.planning.cluster import Cluster, Fit, Node
from k8s_rdma.planning.planned_cluster import PlannedCluster, Workload, policy_of, relocated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


NOT_MODELLED = (
    "not modelled: CPU, memory and other resources, affinity, topology spread, volumes, preemption, "
    "addresses, namespace policies"
)

_MOST_PER_NODE = 16_384
"""More interfaces than a node can have: 64 PFs of 256 VFs."""

_SHAPES_GBPS = (0, 1, 5, 10, 25, 50, 100, 200, 400)


class WorkloadFit(msgspec.Struct, frozen=True, kw_only=True):
    """The answer about one workload.

    count, placed: pods that there are to be, and that have a place. nodes: how many of these on each node.
    obstacles: where not all fit, the reasons, and the number of nodes that refuse the next pod for each.
    """

    name: str
    count: int
    placed: int
    nodes: dict[str, int] = {}
    obstacles: dict[str, int] = {}

    @property
    def fits(self) -> bool:
        """Report whether all of its pods fit."""
        return self.placed == self.count


class FitAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer about workloads that are placed beside each other, in their order.

    unreadable: what is not counted.
    """

    fits: bool
    workloads: tuple[WorkloadFit, ...]
    unreadable: tuple[str, ...] = ()
    not_modelled: str = NOT_MODELLED


def fit(planned: PlannedCluster, workloads: Sequence[Workload]) -> FitAnswer:
    """Place the workloads one after the other."""
    trial = planned.copy()
    found = tuple(_fill(trial, workload) for workload in workloads)
    return FitAnswer(fits=all(entry.fits for entry in found), workloads=found, unreadable=planned.unreadable)


def _fill(planned: PlannedCluster, workload: Workload) -> WorkloadFit:
    """Place as many of the workload's pods as fit; of a gang all or none."""
    if workload.obstacle:
        obstacles = {workload.obstacle: len(planned.cluster)}
        return WorkloadFit(name=workload.name, count=workload.count, placed=0, obstacles=obstacles)
    cluster, request = planned.cluster, workload.request
    eligible = planned.eligible(workload)
    ranking = [
        (-found.score, name)
        for name, found in cluster.verdicts(request, eligible).items()
        if isinstance(found, Fit)
    ]
    heapify(ranking)
    bound: list[tuple[PodUid, NodeName]] = []
    refusal = ""
    while len(bound) < workload.count:
        refusal = planned.limit_refusal(workload.namespace, request)
        if refusal or not ranking:
            break
        _, name = heappop(ranking)
        placement = cluster.place(request, name)
        if isinstance(placement, Placement):
            bound.append((planned.bind(workload, placement, len(bound)), name))
        after = cluster.verdict(request, cluster.state(name))
        if isinstance(after, Fit):
            heappush(ranking, (-after.score, name))
    is_whole = len(bound) == workload.count
    obstacles = Counter({refusal: len(cluster)} if refusal else {})
    if not is_whole and not refusal:
        obstacles = _obstacles(planned, workload, eligible)
    if workload.gang and not is_whole:
        for uid, name in bound:
            planned.release(uid, name)
        bound = []
    return WorkloadFit(
        name=workload.name,
        count=workload.count,
        placed=len(bound),
        nodes=dict(Counter(str(name) for _, name in bound)),
        obstacles=dict(obstacles.most_common()),
    )


def _obstacles(planned: PlannedCluster, workload: Workload, eligible: Sequence[NodeName]) -> Counter[str]:
    """Count the nodes by the reason for which they refuse one more pod."""
    found = planned.cluster.verdicts(workload.request, eligible)
    reasons = Counter(verdict.cause for verdict in found.values() if isinstance(verdict, Rejection))
    ineligible = len(planned.cluster) - len(eligible)
    if ineligible:
        reasons["the node is cordoned, has a taint, or is not what nodeSelector selects"] = ineligible
    return reasons


# headroom


class ShapeRoom(msgspec.Struct, frozen=True, kw_only=True):
    """The number of pods of one shape that still fit, on how many nodes, and the most on one node."""

    shape: str
    pods: int
    nodes: int
    most_on_a_node: int


class StrandedPf(msgspec.Struct, frozen=True, kw_only=True):
    """A PF with bandwidth that no VF can use, or VFs without bandwidth to reserve."""

    node: str
    pf: str
    mbps: int = 0
    vfs: int = 0


class HeadroomAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The number of pods that still fit, of each shape by itself; and stranded capacity, PF by PF."""

    shapes: tuple[ShapeRoom, ...]
    stranded: tuple[StrandedPf, ...] = ()
    unreadable: tuple[str, ...] = ()
    not_modelled: str = NOT_MODELLED


def headroom(planned: PlannedCluster, workloads: Sequence[Workload]) -> HeadroomAnswer:
    """Count pods of each workload that fit, whatever the others need; without any, of common shapes."""
    shapes = workloads or common_shapes(planned.cluster)
    return HeadroomAnswer(
        shapes=tuple(_room(planned, workload) for workload in shapes),
        stranded=tuple(stranded(planned.cluster)),
        unreadable=planned.unreadable,
    )


def common_shapes(cluster: Cluster) -> list[Workload]:
    """One interface of common rates up to the fastest link, and one on each PF of the largest node."""
    pfs = [cluster.state(name).inventory.pfs for name in cluster]
    fastest = max((pf.link_mbps or 0 for of_node in pfs for pf in of_node), default=0)
    rails = max(map(len, pfs), default=0)
    shapes = [_shape(f"1 x {gbps} Gb/s", gbps * 1000, 1) for gbps in _SHAPES_GBPS if gbps * 1000 <= fastest]
    if rails > 1:
        shapes.append(
            _shape(f"{rails} x {fastest / 1000:g} Gb/s, a PF each", fastest, rails, PfPolicy.SPREAD_PFS)
        )
    return shapes


def _shape(name: str, mbps: int, number: int, policy: PfPolicy = PfPolicy.ANY) -> Workload:
    request = Request((InterfaceRequest(min_tx_rate_mbps=mbps),) * number, policy)
    return Workload(name=name, namespace="", request=request)


def _room(planned: PlannedCluster, workload: Workload) -> ShapeRoom:
    """Equal nodes have room for equally many."""
    cluster = planned.cluster
    states = Counter(map(cluster.state, planned.eligible(workload)))
    rooms = {state: cluster.room_for(workload.request, state, _MOST_PER_NODE) for state in states}
    return ShapeRoom(
        shape=workload.name,
        pods=sum(rooms[state] * number for state, number in states.items()),
        nodes=sum(number for state, number in states.items() if rooms[state]),
        most_on_a_node=max(rooms.values(), default=0),
    )


def stranded(cluster: Cluster) -> Iterator[StrandedPf]:
    """The PFs on which one resource is used up and the other is not."""
    for name in cluster:
        state = cluster.state(name)
        for pf in state.inventory.pfs:
            mbps, vfs = room_of(pf, state.used.get(pf.pci, NOTHING_USED))
            if pf.capacity_vfs and pf.link_mbps and bool(mbps) != bool(vfs):
                yield StrandedPf(node=name, pf=pf.name, mbps=mbps, vfs=vfs)


# without


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that loses its place. to: the node that takes it; empty where none does, for the reason `why`."""

    pod: str
    node: str
    to: str = ""
    why: str = ""


class WithoutAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The pods that lose their place; those of higher priority, then the larger ones, first."""

    fits: bool
    moves: tuple[Move, ...]
    unreadable: tuple[str, ...] = ()
    not_modelled: str = NOT_MODELLED


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """Failures: of nodes; of PFs and of their links, as `NODE/PF`. A PF without its link keeps its VFs."""

    nodes: tuple[str, ...] = ()
    pfs: tuple[str, ...] = ()
    links: tuple[str, ...] = ()


def lose(planned: PlannedCluster, losses: Losses) -> WithoutAnswer:
    """Place pods anew that lose their place. MalformedError names a node or PF that there is not."""
    trial = planned.copy()
    displaced: list[tuple[Workload, NodeName]] = []
    for text in losses.nodes:
        name = trial.named_node(text)
        displaced += [(workload, name) for workload in _pods_on(trial, name, lambda _: True).values()]
        trial.remove_node(name)
    for text, keeps_vfs in (*((pf, False) for pf in losses.pfs), *((link, True) for link in losses.links)):
        name, pf = trial.named_pf(text)
        displaced += [(workload, name) for workload in _lose(trial, name, pf, keeps_vfs=keeps_vfs)]
    displaced.sort(
        key=lambda entry: (-entry[0].priority, -Share.of_request(entry[0].request).mbps, entry[0].name)
    )
    moves = tuple(_move(trial, workload, name) for workload, name in displaced)
    return WithoutAnswer(fits=all(move.to for move in moves), moves=moves, unreadable=planned.unreadable)


def _lose(planned: PlannedCluster, name: NodeName, pf: Pf, *, keeps_vfs: bool) -> list[Workload]:
    """Have a node lose a PF or its link; the pods that need it, which hold nothing on the node then."""

    def needs_pf(placement: Placement) -> bool:
        return any(
            interface.pf == pf.pci and (interface.min_tx_rate_mbps or not keeps_vfs)
            for interface in placement.interfaces
        )

    displaced = _pods_on(planned, name, needs_pf)
    record, node = planned.nodes[name], planned.remove_node(name)
    down = (replace(pf, link_mbps=None),) if keeps_vfs else ()
    pfs = (*(present for present in node.inventory.pfs if present.pci != pf.pci), *down)
    pods = {uid: interfaces for uid, interfaces in node.pods.items() if uid not in displaced}
    planned.add_node(name, record, replace(node, inventory=_with_pfs(node.inventory, pfs), pods=pods))
    return list(displaced.values())


def _with_pfs(inventory: Inventory, pfs: Iterable[Pf]) -> Inventory:
    return Inventory(
        node=inventory.node, pfs=tuple(pfs), gpus=inventory.gpus, claims_pfs=inventory.claims_pfs
    )


def _pods_on(
    planned: PlannedCluster, name: NodeName, loses_place: Callable[[Placement], bool]
) -> dict[PodUid, Workload]:
    """The pods on a node that lose their place there."""
    found = {}
    for uid, interfaces in planned.cluster.node(name).pods.items():
        pod = planned.pods.get(uid)
        placement = Placement(node=name, interfaces=interfaces, policy=policy_of(pod))
        if loses_place(placement):
            found[uid] = relocated(pod, uid, placement)
    return found


def _move(planned: PlannedCluster, workload: Workload, node: NodeName) -> Move:
    found = _fill(planned, workload)
    why = "; ".join(f"{reason} ({number} nodes)" for reason, number in found.obstacles.items())
    return Move(pod=workload.name, node=node, to=next(iter(found.nodes), ""), why=why)


# with


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Changes of a cluster; None for none.

    vfs: of each PF that has VFs for annotations. headroom_percent: of each link that stays unreserved.
    nodes: to be added, without pods, `like` one that there is.
    """

    vfs: int | None = None
    headroom_percent: float = 0
    strategy: Strategy | None = None
    nodes: int = 0
    like: str = ""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The number of pods of one shape that fit now, and with the changes."""

    shape: str
    now: int
    then: int


class WithAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of changes. overcommitted: PFs on which pods hold more than there would be."""

    shapes: tuple[Difference, ...]
    overcommitted: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    not_modelled: str = NOT_MODELLED

    @property
    def fits(self) -> bool:
        """Report whether what pods hold would still fit."""
        return not self.overcommitted


def with_changes(planned: PlannedCluster, changes: Changes, workloads: Sequence[Workload]) -> WithAnswer:
    """Compare the room for workloads, or for common shapes. MalformedError names a node that there is not."""
    changed = _changed(planned, changes)
    compared = list(workloads) or common_shapes(planned.cluster)
    return WithAnswer(
        shapes=tuple(
            Difference(
                shape=workload.name, now=_room(planned, workload).pods, then=_room(changed, workload).pods
            )
            for workload in compared
        ),
        overcommitted=tuple(_overcommitted(changed.cluster)),
        unreadable=planned.unreadable,
    )


def _changed(planned: PlannedCluster, changes: Changes) -> PlannedCluster:
    changed = planned.copy(planned.cluster.copy(changes.strategy))
    if changes.vfs is not None or changes.headroom_percent:
        for name in list(changed.cluster):
            record, node = changed.nodes[name], changed.remove_node(name)
            pfs = tuple(_changed_pf(pf, changes) for pf in node.inventory.pfs)
            changed.add_node(name, record, replace(node, inventory=_with_pfs(node.inventory, pfs)))
    if changes.nodes:
        like = planned.named_node(changes.like)
        model = changed.cluster.node(like).inventory
        for number in range(1, changes.nodes + 1):
            name = NodeName(f"{like}-new-{number}")
            changed.add_node(name, changed.nodes[like], Node(replace(model, node=name)))
    return changed


def _changed_pf(pf: Pf, changes: Changes) -> Pf:
    vfs = pf.capacity_vfs if changes.vfs is None or not pf.capacity_vfs else changes.vfs
    link = pf.link_mbps and int(pf.link_mbps * (100 - changes.headroom_percent) / 100)
    return replace(pf, capacity_vfs=vfs, link_mbps=link)


def _overcommitted(cluster: Cluster) -> Iterator[str]:
    for name in cluster:
        state = cluster.state(name)
        for pf in state.inventory.pfs:
            used = state.used.get(pf.pci, NOTHING_USED)
            yield from (
                f"{name}/{pf.name}: {amount} of {capacity} {unit} in use"
                for amount, capacity, unit in _amounts(pf, used)
                if amount > capacity
            )


def _amounts(pf: Pf, used: Used) -> tuple[tuple[int, int, str], ...]:
    return (used.vfs, pf.capacity_vfs, "VFs"), (used.mbps, pf.link_mbps or 0, "Mb/s")
