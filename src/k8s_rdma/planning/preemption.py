"""Preemption on a planned cluster: pods of lower priority make room for another pod on a node.

kube-scheduler proposes victims if resources are short that it counts, the extender corrects them, and
kube-scheduler takes the node whose victims matter least. All of it is done by the code that decides in
production (`core.preemption`), except kube-scheduler's choice of a node. Disruption budgets are not known,
nor pods of gangs without interfaces.

Source: `pickOneNodeForPreemption`, `pkg/scheduler/framework/preemption`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.core.placement import limit_of
from k8s_rdma.core.preemption import (
    NOT_STARTED,
    BoundGroup,
    Occupant,
    Proposal,
    conclude,
    correct,
    propose,
    together,
)
from k8s_rdma.core.types import NodeName, PodUid

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from k8s_rdma.core.placement import Placement
    from k8s_rdma.planning.planned_cluster import PlannedCluster, Workload
    from k8s_rdma.planning.snapshot import PodRecord

NO_ROOM = "evicting pods of lower priority makes no room where VFs are short"

_OFFSET = 2**31
"""Makes each priority positive, so that more victims always add up to more."""


@dataclass(frozen=True, slots=True)
class NodeEvictions:
    """A node, and the pods to evict there, the important ones first."""

    node: NodeName
    victims: tuple[Occupant, ...]

    @property
    def cost(self) -> tuple[int, int, int]:
        """The order of nodes: highest priority, sum of priorities, number; nodes of the least come first."""
        priorities = [victim.priority for victim in self.victims]
        return max(priorities), sum(priority + _OFFSET for priority in priorities), len(priorities)

    @property
    def started(self) -> str:
        """The time when the first of its most important victims started; the latest comes first."""
        highest = max(victim.priority for victim in self.victims)
        return min(victim.started or NOT_STARTED for victim in self.victims if victim.priority == highest)


def obstacle_of(planned: PlannedCluster, workload: Workload) -> str:
    """Describe why no pod is evicted for these, on any node; empty if one may be."""
    if not workload.preempts:
        return "their preemptionPolicy is Never"
    if any(resource in planned.counted for resource, _ in workload.request.devices):
        return ""
    if planned.vf_resource is None:
        return "the extender has no vfResource, so that kube-scheduler counts no VFs"
    return f"their containers do not request {planned.vf_resource}, so that kube-scheduler counts no VFs"


class Preemption:
    """Rooms for the pods of a workload, one after the other, and the pods that were evicted for them."""

    def __init__(self, planned: PlannedCluster, workload: Workload, eligible: Sequence[NodeName]) -> None:
        self.evicted: list[tuple[PodUid, Placement]] = []
        self._planned = planned
        self._workload = workload
        self._is_limited = limit_of(planned.limits, workload.namespace) is not None
        self._ended: list[tuple[PodUid, Placement]] = []
        self._rooms: dict[NodeName, NodeEvictions | None] = dict.fromkeys(eligible)
        self._outdated = set(eligible)
        self._gangs = _gangs(planned.pods.values())

    def make_room(self) -> NodeName | None:
        """Evict pods where they matter least, of equal nodes on the first by name; return it, if any helps.

        Pods that are being deleted there end as well.
        """
        for name in self._outdated:
            self._rooms[name] = self._search(name)
        self._outdated.clear()
        rooms = [room for room in self._rooms.values() if room is not None]
        if not rooms:
            return None
        least = min(room.cost for room in rooms)
        rooms = [room for room in rooms if room.cost == least]
        latest = max(room.started for room in rooms)
        room = min((room for room in rooms if room.started == latest), key=lambda room: room.node)
        terminating = _terminating(self._pods(room.node))
        for uid in dict.fromkeys((*(victim.uid for victim in room.victims), *terminating)):
            entries = self._ended if uid in terminating else self.evicted
            entries.append((uid, self._planned.release(uid, room.node)))
        self.search_again(room.node)
        return room.node

    def search_again(self, name: NodeName) -> None:
        """Note that pods came or went on a node. With a limit of the namespace that matters to all nodes."""
        self._outdated |= self._rooms.keys() if self._is_limited else {name}

    def undo(self) -> None:
        """Have all pods hold their former interfaces again."""
        for uid, placement in (*self.evicted, *self._ended):
            self._planned.restore(uid, placement)
        self.evicted.clear()
        self._ended.clear()

    def _search(self, name: NodeName) -> NodeEvictions | None:
        pods = self._pods(name)
        terminating = _terminating(pods)
        lesser = {uid: pod.occupant() for uid, pod in pods.items() if pod.priority < self._workload.priority}
        proposed = conclude(propose(lesser.values(), _unprotected), self._scheduler_fits(name, pods))
        if not proposed:
            return None
        candidates = [pod for uid, pod in lesser.items() if uid not in terminating]
        may_go = [pod.uid for pod in candidates]
        gangs = together(self._bound_groups(pods.values()), may_go, name, self._workload.priority)
        proposal = Proposal(
            uids=proposed,
            occupants={uid: lesser[uid] for uid in proposed},
            terminating=terminating,
            replaceable=not self._workload.depends_on_neighbours,
            bundles=gangs.bundles,
            untouchable=gangs.untouchable,
        )
        victims = conclude(
            correct(proposal, candidates, _unprotected), self._extender_fits(name, terminating)
        )
        return NodeEvictions(name, tuple(lesser[uid] for uid in victims.uids)) if victims else None

    def _bound_groups(self, pods: Iterable[PodRecord]) -> Iterator[BoundGroup]:
        """Yield the gangs of a node's pods, with the nodes of all pods of theirs that hold interfaces."""
        cluster = self._planned.cluster
        for key in dict.fromkeys((pod.namespace, pod.gang) for pod in pods if pod.gang):
            members = self._gangs.get(key, ())
            homes = {
                PodUid(pod.uid): node
                for pod in members
                if (node := NodeName(pod.node)) in cluster and pod.uid in cluster.node(node).pods
            }
            modes = {pod.disrupted_together for pod in members}
            yield BoundGroup(
                homes=homes,
                disrupted_together=None if None in modes else True in modes,
                priority=max(
                    (pod.group_priority for pod in members if pod.group_priority is not None), default=None
                ),
            )

    def _pods(self, name: NodeName) -> dict[PodUid, PodRecord]:
        """Return the pods that hold interfaces on a node and have a record."""
        records = self._planned.pods
        return {uid: records[uid] for uid in self._planned.cluster.node(name).pods if uid in records}

    def _scheduler_fits(
        self, name: NodeName, pods: dict[PodUid, PodRecord]
    ) -> Callable[[Collection[PodUid]], bool]:
        """Judge as kube-scheduler does, by VFs and devices of exclusive resources."""
        free, devices = self._planned.free_devices[name], self._workload.request.devices

        def fits(evicted: Collection[PodUid]) -> bool:
            freed = [pods[uid].devices for uid in evicted]
            return all(
                number <= free[resource] + sum(of_pod.get(resource, 0) for of_pod in freed)
                for resource, number in devices
                if resource in self._planned.counted
            )

        return fits

    def _extender_fits(
        self, name: NodeName, terminating: Collection[PodUid]
    ) -> Callable[[Collection[PodUid]], bool]:
        planned, workload = self._planned, self._workload

        def fits(evicted: Collection[PodUid]) -> bool:
            state = planned.cluster.state_without(name, {*evicted, *terminating})
            if planned.cluster.fit(workload.request, state) is None:
                return False
            freed = planned.share(name, evicted, workload.namespace)
            return not planned.limit_refusal(workload.namespace, workload.request, freed)

        return fits


def _gangs(pods: Iterable[PodRecord]) -> dict[tuple[str, str], list[PodRecord]]:
    """Group the pods of gangs that have a node and are not ending, by namespace and gang."""
    found: dict[tuple[str, str], list[PodRecord]] = {}
    for pod in pods:
        if pod.gang and pod.node and not pod.terminating:
            found.setdefault((pod.namespace, pod.gang), []).append(pod)
    return found


def _terminating(pods: Mapping[PodUid, PodRecord]) -> frozenset[PodUid]:
    return frozenset(uid for uid, pod in pods.items() if pod.terminating)


def _unprotected(_pods: object) -> Collection[PodUid]:
    return ()
