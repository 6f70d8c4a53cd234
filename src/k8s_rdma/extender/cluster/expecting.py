"""Pods on their way: filtered, perhaps scored, and not bound yet.

kube-scheduler asks about the next pod while the bind of the one before is still to come, and counts that one
as assigned to a node that it does not tell. So pods that arrive together would all be shown the same room.
What one of them may come to take is held where it is expected to go, softly and for a short time: it steers
others elsewhere where there is an elsewhere, and only a bind promises anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from k8s_rdma.core.ids import NodeName, PodUid
from k8s_rdma.core.placement import Placement
from k8s_rdma.extender.cluster.holds import Hold, Holds
from k8s_rdma.extender.cluster.nominating import Nominations
from k8s_rdma.extender.cluster.occupants import Occupants
from k8s_rdma.extender.cluster.pending import PendingPod
from k8s_rdma.extender.cluster.state import ClusterState
from k8s_rdma.extender.verbs.decisions import Decisions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from k8s_rdma.core.placement import PlacedInterface
    from k8s_rdma.extender.cluster.state import Situation
    from k8s_rdma.extender.telling.metrics import Reading

MOST_NODES = 4
"""On which a pod is held: a pod that may go to any of many is not known to go anywhere."""

_MOST_PODS = 1000
_SEARCH_S = 0.02
"""For the places of the pods on their way, while another one waits; what this does not reach is not held."""

_LOWEST_PRIORITY = -(2**31)
"""Of a pod: an int32. Where a pod is going, others do not fit whatever their priority."""


@dataclass(frozen=True, slots=True)
class _Going:
    """A pod; the nodes that it goes to one of, if they are few; until when it is waited for."""

    pod: PendingPod
    nodes: tuple[NodeName, ...]
    until: float


@dataclass(slots=True, kw_only=True)
class Expecting:
    """Keeps them. What is held is found out when the next pod asks: most pods are bound before.

    nominations: counted where a pod's place is looked for. clock: seconds, monotonic. lasts_s: how long a
    pod is waited for. occupants: those that the API server has bound; None where there is none to say it.
    """

    state: ClusterState
    decisions: Decisions
    nominations: Nominations
    clock: Callable[[], float]
    lasts_s: float
    occupants: Occupants | None = None
    holds: Holds = field(default_factory=Holds)
    _going: dict[PodUid, _Going] = field(default_factory=dict)
    _new: set[PodUid] = field(default_factory=set)

    def leave(self, pod: PendingPod, nodes: Sequence[NodeName]) -> None:
        """The pod goes to one of these nodes, or where nobody knows, whatever was said of it before."""
        self.drop(pod.uid)
        few = tuple(nodes) if len(nodes) <= MOST_NODES else ()
        self._going[pod.uid] = _Going(pod, few, self.clock() + self.lasts_s)
        self._new.add(pod.uid)
        if len(self._going) > _MOST_PODS:
            self.drop(next(iter(self._going)))

    def drop(self, uid: PodUid) -> None:
        """The pod goes nowhere, or has come to where it went."""
        if self._going.pop(uid, None):
            self._new.discard(uid)
            self.holds.release(uid)

    def settle(self, asking: PodUid) -> None:
        """Hold what the others may come to take; forget those that have come, or were waited for enough."""
        now = self.clock()
        for uid in [uid for uid, going in self._going.items() if going.until <= now or self._came(going)]:
            self.drop(uid)
        for uid in [uid for uid in self._going if uid in self._new and uid != asking]:
            self._new.discard(uid)
            self._hold(self._going[uid], now + _SEARCH_S)

    def others(self, uid: PodUid) -> bool:
        """Whether any other pod is on its way, to nodes that are known or not."""
        return any(other != uid for other in self._going)

    def against(self, node: NodeName, uid: PodUid) -> Mapping[PodUid, tuple[PlacedInterface, ...]]:
        """What is held there for others than this pod."""
        return self.holds.against(node, uid, _LOWEST_PRIORITY, self.clock())

    def pods(self, node: NodeName, uid: PodUid) -> list[str]:
        """Whom it is held for, `namespace/name`."""
        return [self._going[other].pod.pod for other in self.against(node, uid)]

    def readings(self) -> dict[str, Reading]:
        """What metrics show."""
        return {"pods_expected": ("Pods on their way to a bind.", "gauge", lambda: len(self._going))}

    def _came(self, going: _Going) -> bool:
        """Whether the pod counts as it is, by its reservation or the report of the node that it is on."""
        uid = going.pod.uid
        return bool(self.state.nodes_of(uid)) or any(self._is_reported(node, uid) for node in going.nodes)

    def _is_reported(self, node: NodeName, uid: PodUid) -> bool:
        facts = self.state.facts(node)
        if facts is None or uid not in facts.reported:
            return False
        return self.occupants is None or uid in self.occupants.on(node)

    def _hold(self, going: _Going, deadline: float) -> None:
        pod = going.pod
        places: dict[Situation, tuple[PlacedInterface, ...]] = {}
        for node in going.nodes:
            nominated = self.nominations.against(node, pod.uid, pod.priority)
            holding = {**self.against(node, pod.uid), **nominated}
            situation = self.state.situation_if(node, holding=holding)
            if situation is None or self.clock() > deadline:
                continue
            if situation not in places:
                found = self.decisions.place(pod.request, situation)
                places[situation] = found.interfaces if isinstance(found, Placement) else ()
            if interfaces := places[situation]:
                held = Hold(interfaces=interfaces, pod=pod.pod, priority=pod.priority, until=going.until)
                self.holds.hold(node, pod.uid, held)
