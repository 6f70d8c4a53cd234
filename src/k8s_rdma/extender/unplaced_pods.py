"""Pods that were bound without a placement, to nodes whose agents still give them interfaces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from time import thread_time
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.core.placement import PlacedInterface, Rejection, capped_to_request, place
from k8s_rdma.core.request import Request
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.extender.fit_cache import Quarantine
from k8s_rdma.extender.node_cache import ClusterState
from k8s_rdma.extender.pod_requests import PodRequestCache
from k8s_rdma.extender.pod_store import PodIndex
from k8s_rdma.extender.reservation import Reservation, Stage
from k8s_rdma.wire.report import MAX_VFS

if TYPE_CHECKING:
    from k8s_rdma.kube.api import PodView
    from k8s_rdma.wire.node_facts import NodeFacts

_TRIED = 8
"""The limit for pods without a place that one change of their node places again, because each may take 10 ms.
The others have their turn with later changes."""

_BUDGET_S = 0.5
_BUDGET_PER_S = 0.01
"""Processor time for the guesses on one node: the budget at once, and its refill in a second."""

_MAX_INTERFACES = 2 * MAX_VFS
"""The limit for the kept interfaces of a node's pods. An interface takes 2 KiB at worst, and a node has
hundreds of VFs."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Unplaced:
    pod: str
    request: Request

    @property
    def rates_mbps(self) -> tuple[int, ...]:
        """The reservations, largest first."""
        return tuple(
            sorted((interface.min_tx_rate_mbps for interface in self.request.interfaces), reverse=True)
        )


@dataclass(slots=True)
class _NodePods:
    """A node's pods.

    left_s: the rest of its budget at `since_s`, by the clock; below 0 if the last guess took more than that.
    """

    pods: dict[PodUid, _Unplaced] = field(default_factory=dict)
    interfaces: int = 0
    left_s: float = _BUDGET_S
    since_s: float = 0.0

    def may_guess(self, now: float) -> bool:
        """Report whether any of the budget is left."""
        self.left_s = min(_BUDGET_S, self.left_s + (now - self.since_s) * _BUDGET_PER_S)
        self.since_s = now
        return self.left_s > 0


@dataclass(slots=True, kw_only=True)
class UnplacedPods(PodIndex):
    """Holds places for unplaced pods. Call `changed` at every change of a node's snapshot.

    processor: processor time of this thread, s.
    """

    state: ClusterState
    requests: PodRequestCache
    clock: Callable[[], float]
    quarantine: Quarantine = field(default_factory=Quarantine)
    processor: Callable[[], float] = thread_time
    _nodes: dict[NodeName, _NodePods] = field(default_factory=dict)
    _places: dict[PodUid, NodeName] = field(default_factory=dict)
    _placing: set[NodeName] = field(default_factory=set)

    def on_bound(self, pod: PodView, node: NodeName) -> None:
        """Take a pod that is bound to the node without a valid placement."""
        if pod.uid in self._places:
            return
        try:
            request = self.requests.read(pod)
        except MalformedError:  # its agent refuses it, too
            return
        if request:
            self._add(node, pod.uid, _Unplaced(f"{pod.namespace}/{pod.name}", request))

    def _add(self, node: NodeName, uid: PodUid, unplaced: _Unplaced) -> None:
        on_node = self._nodes.setdefault(node, _NodePods())
        on_node.interfaces += len(unplaced.request.interfaces)
        on_node.pods[uid] = unplaced
        self._places[uid] = node
        if on_node.interfaces > _MAX_INTERFACES:
            _log.warning(
                "unplaced_pod_passed_over", pod=unplaced.pod, node=node, interfaces=on_node.interfaces
            )
            self.on_delete(uid)
        else:
            self._place(node, {uid: unplaced})

    def on_delete(self, uid: PodUid) -> None:
        """Forget a pod that is finished or gone; `ClusterState` ends its reservation."""
        node = self._places.pop(uid, None)
        if node is not None:
            on_node = self._nodes[node]
            on_node.interfaces -= len(on_node.pods.pop(uid).request.interfaces)
            # A node that has spent some of its budget stays, so that the budget is not refilled early.
            if not on_node.pods and on_node.left_s == _BUDGET_S:
                del self._nodes[node]

    def uids(self) -> Iterable[PodUid]:
        """Return the pods of this index."""
        return self._places

    def changed(self, node: NodeName) -> None:
        """Place pods again, because the node's snapshot has changed or is the first one."""
        # The pods are placed one after the other, and each reservation changes the snapshot.
        if node in self._nodes and node not in self._placing:
            self._place(node, dict(self._nodes[node].pods))

    def _place(self, node: NodeName, pods: Mapping[PodUid, _Unplaced]) -> None:
        facts = self.state.facts(node)
        if facts is None or not pods:
            return
        self._placing.add(node)
        try:
            for uid, unplaced in pods.items():
                self._adopt(node, uid, unplaced, facts)
            self._guess_all(node, pods)
        finally:
            self._placing.discard(node)

    def _guess_all(self, node: NodeName, pods: Mapping[PodUid, _Unplaced]) -> None:
        in_vain, on_node = 0, self._nodes[node]
        for uid, unplaced in pods.items():
            if self.state.reservation(node, uid) is not None:
                continue
            if in_vain == _TRIED or not on_node.may_guess(self.clock()):
                return
            began_s = self.processor()
            if not self._guess(node, uid, unplaced):
                in_vain += 1
                on_node.pods[uid] = on_node.pods.pop(uid)
            on_node.left_s -= self.processor() - began_s

    def _adopt(self, node: NodeName, uid: PodUid, unplaced: _Unplaced, facts: NodeFacts) -> None:
        """Hold the pod's reported interfaces if the report is complete, up to the pod's request.

        Programmed rates beyond the request count on the node while it reports them, and for no namespace.
        """
        reported, reservation = facts.reported.get(uid, ()), self.state.reservation(node, uid)
        if len(reported) != len(unplaced.request.interfaces):
            return
        reported = capped_to_request(reported, unplaced.rates_mbps)
        if reservation is None or reservation.interfaces != reported:
            self._hold(node, uid, unplaced, reported)

    def _guess(self, node: NodeName, uid: PodUid, unplaced: _Unplaced) -> bool:
        """Hold a place for the pod; report whether a place was found."""
        snapshot = self.state.snapshot_if(node, excluded=[uid])
        if snapshot is None:
            return False
        found = self.quarantine.decide(
            snapshot,
            lambda: place(unplaced.request, snapshot.inventory, snapshot.used),
            lambda why: Rejection(node=node, reason=Reason.UNREADABLE_NODE, message=why),
        )
        if isinstance(found, Rejection):
            _log.info("unplaced_pod_does_not_fit", pod=unplaced.pod, node=node, why=found.message)
            return False
        self._hold(node, uid, unplaced, found.interfaces)
        return True

    def _hold(
        self, node: NodeName, uid: PodUid, unplaced: _Unplaced, interfaces: tuple[PlacedInterface, ...]
    ) -> None:
        reservation = Reservation(
            interfaces=interfaces, pod=unplaced.pod, created_at=self.clock(), stage=Stage.BOUND
        )
        self.state.reserve(node, uid, reservation)
