"""Capacity questions on a planned cluster: whether pods fit, how many more, and the effect of changes.

Pods are placed one after the other as in production, each on the node of the highest score. Of equal nodes
kube-scheduler takes any, and this module the first by name. Arguments are never changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from itertools import count as numbers
from itertools import islice
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace as replace_fields

from k8s_rdma.core.inventory import Inventory, Pf
from k8s_rdma.core.offers import room_of
from k8s_rdma.core.pf_use import NOTHING_USED, Used
from k8s_rdma.core.placement import Placement, Rejection, Share
from k8s_rdma.core.refusal import count
from k8s_rdma.core.request import InterfaceRequest, PfPolicy, Request
from k8s_rdma.core.types import NodeName, PodUid, Strategy
from k8s_rdma.planning.cluster import Cluster, PlannedNode
from k8s_rdma.planning.planned_cluster import PlannedCluster, Workload, policy_of, relocated
from k8s_rdma.planning.preemption import NO_ROOM, Preemption, obstacle_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


NOT_MODELLED = (
    "not modelled: CPU, memory and other resources, affinity to pods, topology spread, volumes, disruption "
    "budgets, addresses, namespace policies"
)

_MOST_PER_NODE = 16_384
"""More interfaces than a node can have: 64 PFs of 256 VFs."""

_SHAPES_GBPS = (0, 1, 5, 10, 25, 50, 100, 200, 400)


class WorkloadFit(msgspec.Struct, frozen=True, kw_only=True):
    """The answer about one workload.

    count, placed: the number of pods, and of those that have a place.
    nodes: how many of these on each node.
    obstacles: if not all fit, the reasons, and the number of nodes that refuse the next pod for each.
    no_eviction: if not all fit with preemption, why no pods are evicted for the next one.
    """

    name: str
    count: int
    placed: int
    nodes: dict[str, int] = {}
    obstacles: dict[str, int] = {}
    no_eviction: str = ""

    @property
    def fits(self) -> bool:
        """Report whether all of its pods fit."""
        return self.placed == self.count

    def with_gang(self, of_gang: WorkloadFit) -> WorkloadFit:
        """Add the answer about another gang of the workload; the first one with obstacles says them."""
        return replace_fields(
            self,
            count=self.count + of_gang.count,
            placed=self.placed + of_gang.placed,
            nodes=dict(Counter(self.nodes) + Counter(of_gang.nodes)),
            obstacles=self.obstacles or of_gang.obstacles,
            no_eviction=self.no_eviction or of_gang.no_eviction,
        )


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that loses its place. to: the node that takes it; empty if no node does, for the reason `why`."""

    pod: str
    node: str
    to: str = ""
    why: str = ""


class Eviction(Move, frozen=True, kw_only=True):
    """A pod that is evicted for one of a workload, by its name. priority: of the evicted pod."""

    workload: str
    priority: int


class FitAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer about workloads that are placed beside each other, those of higher priority first.

    evictions: of pods that lose their place to them.
    unreadable: the facts that are not counted.
    """

    fits: bool
    workloads: tuple[WorkloadFit, ...]
    evictions: tuple[Eviction, ...] = ()
    unreadable: tuple[str, ...] = ()
    not_modelled: str = NOT_MODELLED


def fit(planned: PlannedCluster, workloads: Sequence[Workload], *, preempt: bool = False) -> FitAnswer:
    """Place the workloads one after the other, those of higher priority first, and gangs as a whole.

    preempt: whether to evict pods of lower priority if there is no place otherwise. The evicted ones are
        placed again in the end.
    """
    trial = planned.copy()
    found: dict[int, WorkloadFit] = {}
    evicted: list[tuple[Filling, PodUid, Placement]] = []
    for gang in _gangs(workloads):
        fillings = [Filling.for_workload(trial, workload, preempt=preempt) for _, workload in gang]
        answers = [filling.answer for filling in fillings]
        if gang[0][1].gang and not all(answer.fits for answer in answers):
            answers = [*_undone(fillings)]
        else:
            evicted += ((filling, *entry) for filling in fillings for entry in filling.evicted)
        for (number, _), answer in zip(gang, answers, strict=True):
            found[number] = found[number].with_gang(answer) if number in found else answer
    return FitAnswer(
        fits=all(entry.fits for entry in found.values()),
        workloads=tuple(found.values()),
        evictions=_evictions(trial, evicted),
        unreadable=planned.unreadable,
    )


def _gangs(workloads: Sequence[Workload]) -> Iterable[list[tuple[int, Workload]]]:
    """Group workloads by gang, each other by itself; those of higher priority come first.

    With each stands the number of the workload that it is, or a gang's part of.
    """
    gangs: dict[str | int, list[tuple[int, Workload]]] = {}
    for number, workload in enumerate(sorted(workloads, key=lambda workload: -workload.priority)):
        for part in workload.by_gang():
            gangs.setdefault(part.gang or number, []).append((number, part))
    return gangs.values()


@dataclass(slots=True, kw_only=True)
class Filling:
    """The pods of one workload that were placed, by evicting others if that was allowed."""

    planned: PlannedCluster
    workload: Workload
    eligible: Sequence[NodeName]
    answer: WorkloadFit
    preemption: Preemption | None
    bound: list[tuple[PodUid, NodeName]] = field(default_factory=list)

    @classmethod
    def for_workload(cls, planned: PlannedCluster, workload: Workload, *, preempt: bool = False) -> Filling:
        """Place as many of the workload's pods as fit."""
        eligible = planned.eligible(workload)
        why = obstacle_of(planned, workload) if preempt else ""
        preemption = Preemption(planned, workload, eligible) if preempt and not why else None
        answer = WorkloadFit(name=workload.name, count=workload.count, placed=0)
        filling = cls(
            planned=planned, workload=workload, eligible=eligible, answer=answer, preemption=preemption
        )
        obstacle = workload.obstacle or planned.count_refusal(workload.request)
        obstacles = {obstacle: len(planned.cluster)} if obstacle else filling._fill()
        filling.answer = replace_fields(
            answer,
            placed=len(filling.bound),
            nodes=dict(Counter(str(name) for _, name in filling.bound)),
            obstacles=obstacles,
            no_eviction=(why or NO_ROOM) if preempt and obstacles else "",
        )
        return filling

    @property
    def evicted(self) -> Sequence[tuple[PodUid, Placement]]:
        """The pods that were evicted, with their interfaces."""
        return self.preemption.evicted if self.preemption else ()

    def undo(self) -> None:
        """Release the pods' interfaces, and give the evicted ones theirs back."""
        for uid, name in self.bound:
            self.planned.release(uid, name)
        if self.preemption:
            self.preemption.undo()

    def _fill(self) -> dict[str, int]:
        """Place pods one by one; return the reasons why there is no place for one more, if one is missing."""
        planned, workload, cluster = self.planned, self.workload, self.planned.cluster
        ranking = [*filter(None, map(self._rank, self.eligible))]
        heapify(ranking)
        while len(self.bound) < workload.count:
            refusal = planned.limit_refusal(workload.namespace, workload.request)
            if ranking and not refusal:
                _, name = heappop(ranking)
            elif self.preemption and (room := self.preemption.make_room()):
                name = room
            else:
                return {refusal: len(cluster)} if refusal else self._obstacles()
            placement = cluster.place(workload.request, name)
            if isinstance(placement, Placement):
                self.bound.append((planned.bind(workload, placement), name))
                if self.preemption:
                    self.preemption.search_again(name)
            if rank := self._rank(name):
                heappush(ranking, rank)
        return {}

    def _rank(self, name: NodeName) -> tuple[int, NodeName] | None:
        """Return a key by which nodes take the next pod, the least first, if it fits."""
        cluster, request = self.planned.cluster, self.workload.request
        found = cluster.fit(request, cluster.state(name))
        if found is None or self.planned.device_room(name, request) == 0:
            return None
        return -found.score, name

    def _obstacles(self) -> dict[str, int]:
        """Count the nodes by the reason for which they refuse one more pod."""
        cluster, request = self.planned.cluster, self.workload.request
        places = (cluster.place(request, name) for name in self.eligible)
        reasons = Counter(
            found.cause if isinstance(found, Rejection) else f"too few devices of {_listed(request)}"
            for found in places
        )
        ineligible = len(cluster) - len(self.eligible)
        if ineligible:
            reasons[
                "the node is cordoned, has a taint, or is not what nodeSelector and node affinity select"
            ] = ineligible
        return dict(reasons.most_common())


def _listed(request: Request) -> str:
    return " and ".join(resource for resource, _ in request.devices)


def _undone(fillings: Sequence[Filling]) -> Iterator[WorkloadFit]:
    """Undo the parts of a gang whose pods do not all fit."""
    for filling in reversed(fillings):
        filling.undo()
    for filling in fillings:
        obstacles = filling.answer.obstacles or {"other pods of its gang do not fit": len(filling.eligible)}
        yield replace_fields(filling.answer, placed=0, nodes={}, obstacles=obstacles)


def _evictions(
    planned: PlannedCluster, evicted: Iterable[tuple[Filling, PodUid, Placement]]
) -> tuple[Eviction, ...]:
    """Place evicted pods again; those of higher priority, then the larger ones, first."""
    victims = [
        (relocated(planned.pods[uid], uid, placement), placement.node, filling.workload.name)
        for filling, uid, placement in evicted
    ]
    found = []
    for victim, node, name in sorted(victims, key=lambda entry: _turn(entry[0])):
        move = _move(planned, victim, node)
        found.append(Eviction(**msgspec.structs.asdict(move), priority=victim.priority, workload=name))
    return tuple(found)


def _turn(workload: Workload) -> tuple[int, int, str]:
    """Return a key by which pods that lose their place are placed again."""
    return -workload.priority, -Share.of_request(workload.request).mbps, workload.name


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
    """Count pods of each workload that fit, each workload by itself; without any, of common shapes."""
    shapes = workloads or common_shapes(planned.cluster)
    return HeadroomAnswer(
        shapes=tuple(shape_room(planned, workload) for workload in shapes),
        stranded=tuple(stranded(planned.cluster)),
        unreadable=planned.unreadable,
    )


def common_shapes(cluster: Cluster) -> list[Workload]:
    """Return one interface of common rates up to the fastest link, and one on each PF of the largest node."""
    pfs = [cluster.state(name).inventory.pfs for name in cluster]
    fastest = max((pf.link_mbps or 0 for of_node in pfs for pf in of_node), default=0)
    rails = max(map(len, pfs), default=0)
    shapes = [
        _shape(f"1 x {gbps} Gb/s" if gbps else "1 x no reservation", gbps * 1000, 1)
        for gbps in _SHAPES_GBPS
        if gbps * 1000 <= fastest
    ]
    if rails > 1:
        shapes.append(
            _shape(f"{rails} x {fastest / 1000:g} Gb/s, a PF each", fastest, rails, PfPolicy.SPREAD_PFS)
        )
    return shapes


def _shape(name: str, mbps: int, number: int, policy: PfPolicy = PfPolicy.ANY) -> Workload:
    request = Request((InterfaceRequest(min_tx_rate_mbps=mbps),) * number, policy)
    return Workload(name=name, namespace="", request=request)


def shape_room(planned: PlannedCluster, workload: Workload) -> ShapeRoom:
    """Count the pods of one shape that still fit: equal nodes have room for equally many."""
    cluster, request = planned.cluster, workload.request
    kinds = Counter(
        (cluster.state(name), planned.device_room(name, request)) for name in planned.eligible(workload)
    )
    rooms = {
        (state, devices): cluster.room_for(request, state, _MOST_PER_NODE if devices is None else devices)
        for state, devices in kinds
    }
    return ShapeRoom(
        shape=workload.name,
        pods=sum(rooms[kind] * number for kind, number in kinds.items()),
        nodes=sum(number for kind, number in kinds.items() if rooms[kind]),
        most_on_a_node=max(rooms.values(), default=0),
    )


def stranded(cluster: Cluster) -> Iterator[StrandedPf]:
    """Yield the PFs on which one resource is used up and the other is not."""
    for name in cluster:
        state = cluster.state(name)
        for pf in state.inventory.pfs:
            mbps, vfs = room_of(pf, state.used.get(pf.pci, NOTHING_USED))
            if pf.capacity_vfs and pf.link_mbps and bool(mbps) != bool(vfs):
                yield StrandedPf(node=name, pf=pf.name, mbps=mbps, vfs=vfs)


# without


class WithoutAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The pods that lose their place; those of higher priority, then the larger ones, first."""

    fits: bool
    moves: tuple[Move, ...]
    unreadable: tuple[str, ...] = ()
    not_modelled: str = NOT_MODELLED


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFailures:
    """Failures: of nodes; of PFs and of their links, as `NODE/PF`. A PF without its link keeps its VFs."""

    nodes: tuple[str, ...] = ()
    pfs: tuple[str, ...] = ()
    links: tuple[str, ...] = ()


def lose(planned: PlannedCluster, losses: PlannedFailures) -> WithoutAnswer:
    """Place pods again that lose their place. MalformedError names a node or PF that does not exist."""
    trial = planned.copy()
    displaced: list[tuple[Workload, NodeName]] = []
    for text in losses.nodes:
        name = trial.named_node(text)
        displaced += [(workload, name) for workload in _pods_on(trial, name, lambda _: True).values()]
        trial.remove_node(name)
    for text, keeps_vfs in (*((pf, False) for pf in losses.pfs), *((link, True) for link in losses.links)):
        name, pf = trial.named_pf(text)
        displaced += [(workload, name) for workload in _lose(trial, name, pf, keeps_vfs=keeps_vfs)]
    displaced.sort(key=lambda entry: _turn(entry[0]))
    moves = tuple(_move(trial, workload, name) for workload, name in displaced)
    return WithoutAnswer(fits=all(move.to for move in moves), moves=moves, unreadable=planned.unreadable)


def _lose(planned: PlannedCluster, name: NodeName, pf: Pf, *, keeps_vfs: bool) -> list[Workload]:
    """Have a node lose a PF or its link; return the pods that need it, without their interfaces there."""

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
    """Return the pods on a node that lose their place there."""
    found = {}
    for uid, interfaces in planned.cluster.node(name).pods.items():
        pod = planned.pods.get(uid)
        placement = Placement(node=name, interfaces=interfaces, policy=policy_of(pod))
        if loses_place(placement):
            found[uid] = relocated(pod, uid, placement)
    return found


def _move(planned: PlannedCluster, workload: Workload, node: NodeName) -> Move:
    found = Filling.for_workload(planned, workload).answer
    why = "; ".join(f"{reason} ({count(number, 'node')})" for reason, number in found.obstacles.items())
    return Move(pod=workload.name, node=node, to=next(iter(found.nodes), ""), why=why)


# with


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterChanges:
    """Changes of a cluster; None for no change.

    vfs: of each PF that has VFs for annotations.
    headroom_percent: of each link that stays unreserved.
    nodes: to be added, without pods, each `like` an existing one.
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
        """Report whether the interfaces of pods would still fit."""
        return not self.overcommitted


def with_changes(
    planned: PlannedCluster, changes: ClusterChanges, workloads: Sequence[Workload]
) -> WithAnswer:
    """Compare the room for workloads, or for common shapes. MalformedError names a node that there is not."""
    changed = _changed(planned, changes)
    compared = list(workloads) or common_shapes(planned.cluster)
    return WithAnswer(
        shapes=tuple(
            Difference(
                shape=workload.name,
                now=shape_room(planned, workload).pods,
                then=shape_room(changed, workload).pods,
            )
            for workload in compared
        ),
        overcommitted=tuple(_overcommitted(changed.cluster)),
        unreadable=planned.unreadable,
    )


def _changed(planned: PlannedCluster, changes: ClusterChanges) -> PlannedCluster:
    changed = planned.copy(planned.cluster.copy(changes.strategy))
    if changes.vfs is not None or changes.headroom_percent:
        for name in list(changed.cluster):
            record, node = changed.nodes[name], changed.remove_node(name)
            pfs = tuple(_changed_pf(pf, changes) for pf in node.inventory.pfs)
            changed.add_node(name, record, replace(node, inventory=_with_pfs(node.inventory, pfs)))
    if changes.nodes:
        like = planned.named_node(changes.like)
        model = changed.cluster.node(like).inventory
        for name in islice(_new_names(changed, like), changes.nodes):
            changed.add_node(name, changed.nodes[like], PlannedNode(replace(model, node=name)))
    return changed


def _new_names(planned: PlannedCluster, like: NodeName) -> Iterator[NodeName]:
    """Names like that one, of no node that there is."""
    names = (NodeName(f"{like}-new-{number}") for number in numbers(1))
    return (name for name in names if name not in planned.nodes)


def _changed_pf(pf: Pf, changes: ClusterChanges) -> Pf:
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
