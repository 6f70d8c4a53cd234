"""Pods that were bound without a placement, to nodes whose agents give them interfaces all the same.

So it is where the scheduler binds (`binder: scheduler`), and for pods bound by hand or by another scheduler
where agents have `allowUnplaced`. Nobody has said what of its node such a pod takes until the node reports
it, so it is guessed: what it asks for is placed on what is left there, in the order in which the pods were
seen. What the node reports of it takes the guess's place, and stays the pod's claim when its sandbox dies and
is made again. A pod that fits nowhere on its node holds nothing, and is looked at again whenever the node
changes: its agent, whose ledger decides, refuses it for as long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.core.ids import NodeName, PodUid
from k8s_rdma.core.placement import Rejection, place
from k8s_rdma.core.request import Request
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.extender.cluster.quarantine import Quarantine
from k8s_rdma.extender.cluster.state import ClusterState, Reservation
from k8s_rdma.extender.verbs.requests import Requests

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from k8s_rdma.core.placement import PlacedInterface
    from k8s_rdma.extender.cluster.facts import NodeFacts
    from k8s_rdma.kube.api import PodView

_TRIED = 8
"""Pods of a node that fit nowhere and are placed anew at once when it changes: each may take 10 ms.
The others have their turn with the changes after."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Unplaced:
    pod: str
    request: Request


@dataclass(slots=True, kw_only=True)
class Unplaced:
    """Holds what they claim. `changed` is to be told of every change of a node's situation."""

    state: ClusterState
    requests: Requests
    clock: Callable[[], float]
    quarantine: Quarantine = field(default_factory=Quarantine)
    _nodes: dict[NodeName, dict[PodUid, _Unplaced]] = field(default_factory=dict)
    _places: dict[PodUid, NodeName] = field(default_factory=dict)
    _placing: set[NodeName] = field(default_factory=set)

    def bound(self, pod: PodView, node: NodeName) -> None:
        """The pod is bound there, without a placement that counts."""
        if pod.uid in self._places:
            return
        try:
            request = self.requests.read(pod)
        except MalformedError:  # its agent refuses it, too
            return
        if request:
            unplaced = _Unplaced(f"{pod.namespace}/{pod.name}", request)
            self._nodes.setdefault(node, {})[pod.uid] = unplaced
            self._places[pod.uid] = node
            self._place(node, {pod.uid: unplaced})

    def ended(self, uid: PodUid) -> None:
        """The pod is finished or gone; what it held ends by the state's own rule."""
        node = self._places.pop(uid, None)
        if node is not None:
            del self._nodes[node][uid]
            if not self._nodes[node]:
                del self._nodes[node]

    def end_missing(self, listed: Collection[PodUid]) -> None:
        """Those that a list of all pods does not hold are gone."""
        for uid in [uid for uid in self._places if uid not in listed]:
            self.ended(uid)

    def changed(self, node: NodeName) -> None:
        """The node's situation is another one, or it was asked for the first time."""
        if node not in self._placing:  # else by what is held here, one pod after the other
            self._place(node, dict(self._nodes.get(node, {})))

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
        in_vain = 0
        for uid, unplaced in pods.items():
            if in_vain == _TRIED:
                return
            if self.state.reservation(node, uid) is None and not self._guess(node, uid, unplaced):
                in_vain += 1
                self._nodes[node][uid] = self._nodes[node].pop(uid)

    def _adopt(self, node: NodeName, uid: PodUid, unplaced: _Unplaced, facts: NodeFacts) -> None:
        """Take what the node reports of the pod, if that is all that it asks for."""
        given, held = facts.reported.get(uid, ()), self.state.reservation(node, uid)
        if len(given) == len(unplaced.request.interfaces) and (held is None or held.interfaces != given):
            self._hold(node, uid, unplaced, given)

    def _guess(self, node: NodeName, uid: PodUid, unplaced: _Unplaced) -> bool:
        """Hold a place for it; whether there is one."""
        situation = self.state.situation_if(node, without=[uid])
        if situation is None:
            return False
        found = self.quarantine.decide(
            situation,
            lambda: place(unplaced.request, situation.inventory, situation.used),
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
        held = Reservation(interfaces=interfaces, pod=unplaced.pod, made_at=self.clock(), bound=True)
        self.state.reserve(node, uid, held)
