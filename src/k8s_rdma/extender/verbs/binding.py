"""bind: decide on the freshest state, hold the placement, and have it written.

In this order: take the pod's version and what it asks for in it; be told by the API server that this process
holds the Lease; decide; write, of that version. Whoever takes the Lease later touches the pod, and thereby
refuses the write wherever it is by then (see `leading`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.core.ids import NodeName, PodUid
from k8s_rdma.core.placement import Rejection
from k8s_rdma.core.request import Request
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.extender.cluster.addresses import AddressCheck
from k8s_rdma.extender.cluster.expecting import Expecting
from k8s_rdma.extender.cluster.limits import Limits
from k8s_rdma.extender.cluster.nominating import Nominations
from k8s_rdma.extender.cluster.pending import PendingPod
from k8s_rdma.extender.cluster.state import ClusterState, Reservation
from k8s_rdma.extender.cluster.unbound import UnboundPods
from k8s_rdma.extender.sources.node_states import NodeStates
from k8s_rdma.extender.telling.outcomes import (
    BOUND,
    REFUSED,
    Outcome,
    Outcomes,
    Refusal,
)
from k8s_rdma.extender.telling.outcomes import STARTING as IS_STARTING
from k8s_rdma.extender.verbs.commit import Commits
from k8s_rdma.extender.verbs.decisions import Decisions
from k8s_rdma.extender.verbs.held import Bind
from k8s_rdma.extender.verbs.quorum import Quorum
from k8s_rdma.extender.verbs.requests import Remembered, Requests
from k8s_rdma.extender.waking.touching import Toucher
from k8s_rdma.kube.api import API_ERRORS, PodView
from k8s_rdma.wire.annotation import ANNOTATION
from k8s_rdma.wire.extender import NOT_ENOUGH_FREE, UNREADABLE_NODE, sentence_of

if TYPE_CHECKING:
    from k8s_rdma.core.gang import Gang
    from k8s_rdma.wire.extender import ExtenderBindingArgs

STARTING = (
    "the RDMA scheduler extender is starting: it does not hold its lease, or has not listed the cluster's "
    "pods since; try again"
)
_STARTING = Refusal(STARTING, IS_STARTING)

NOT_THE_BINDER = "another RDMA scheduler extender binds now; try again"

_SHOWN_PODS = 3
_TRIES = 5
"""Versions of a pod that a bind is tried of: others write to it, too, its status above all."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A version of the pod, what it asks for in it, and what it was filtered with."""

    pod: PodView
    request: Request
    filtered: Remembered | None


@dataclass(slots=True, kw_only=True)
class Binder:
    """Binds pods.

    clock: seconds, monotonic. ready: whether every promise that others made is known, and nobody else makes
    any now, as far as this process knows; else nothing may be promised. confirm: the API server's word on it:
    why another may, empty when none.
    """

    state: ClusterState
    states: NodeStates
    decisions: Decisions
    requests: Requests
    unbound: UnboundPods
    commits: Commits
    toucher: Toucher
    expecting: Expecting
    quorum: Quorum
    limits: Limits
    addresses: AddressCheck
    nominations: Nominations
    outcomes: Outcomes
    clock: Callable[[], float]
    ready: Callable[[], bool]
    confirm: Callable[[], Coroutine[None, None, str]]

    async def bind(self, args: ExtenderBindingArgs) -> str:
        """Bind the pod; answers the error's text, empty on success. Binding again is success again."""
        bind = Bind(
            namespace=args.pod_namespace,
            name=args.pod_name,
            uid=PodUid(args.pod_uid),
            node=NodeName(args.node),
        )
        began = self.clock()
        self._expect(bind)
        async with self.commits.lock(bind.uid):
            try:
                error = await self._bind(bind)
                reason = _reason(error)
            except MalformedError as malformed:
                error = f"{sentence_of(malformed)} ({malformed.message})"
                reason = malformed.reason
            except API_ERRORS as failed:
                error, reason = failed.message, failed.reason
        self.expecting.drop(bind.uid)
        if not error:
            self.toucher.settled(bind.uid)
        self.outcomes.tell(
            Outcome(
                verb="bind",
                pod=bind.pod,
                uid=bind.uid,
                candidates=1,
                reason=reason,
                reasons={reason: 1},
                node=bind.node,
                error=error,
                duration_s=self.clock() - began,
            )
        )
        return str(error)

    def _expect(self, bind: Bind) -> None:
        """From now on it is known where the pod goes; what it reserves there takes over."""
        remembered = self.requests.recall(bind.uid)
        if remembered is None or not remembered.request:
            return
        pod = self.quorum.gangs.judge(remembered.pod)
        if pod.gang is None:
            self.expecting.leave(pod, [bind.node])
        elif bind.node not in self.expecting.holds.of(bind.uid):
            self.expecting.promise(pod, [bind.node])

    async def _bind(self, bind: Bind) -> str:
        remembered = self.requests.recall(bind.uid)
        if remembered is not None and not remembered.request:
            return await self.commits.write_plain(bind)
        known = self._known(bind)
        if known is not None:
            return known
        doubted = self.commits.doubted(bind.uid)
        seen = (None if doubted else self.unbound.latest(bind.uid)) or await self.commits.read(bind)
        for _ in range(_TRIES):
            if isinstance(seen, str):
                return seen
            seen = await self._try(bind, seen, remembered)
        return seen if isinstance(seen, str) else f"pod {bind.pod} is written to all the time; try again"

    def _known(self, bind: Bind) -> str | None:
        """The answer, if it is known what became of the pod."""
        for node in self.state.nodes_of(bind.uid):
            held = self.state.reservation(node, bind.uid)
            if held is not None and held.ended_at is not None:
                return f"pod {bind.pod} with UID {bind.uid} is finished or gone"
            if held is not None and held.bound:
                return "" if node == bind.node else f"pod {bind.pod} is already bound to node {node}"
        return None

    async def _try(self, bind: Bind, pod: PodView, filtered: Remembered | None) -> PodView | str:
        """Bind this version of the pod; the pod again when there is a newer one, else the answer."""
        request = self.requests.read_unbound(pod)
        if not request:
            return await self.commits.write_plain(bind)
        if not self.ready():
            return _STARTING
        min_count = await self.quorum.gangs.min_count(pod.gang) if pod.gang else 0
        async with asyncio.TaskGroup() as asked:
            confirming = asked.create_task(self.confirm())
            asked.create_task(self.states.ask(bind.node))
        if obstacle := self._obstacle(confirming.result()):
            return obstacle  # from here to the write, or to the wait for a gang, nothing is awaited
        decided = self._reserve(bind, _Asked(pod, request, filtered))
        if isinstance(decided, str):
            return decided
        if pod.gang and min_count and (obstacle := await self._gather(bind, decided, pod.gang, min_count)):
            return obstacle
        return await self.commits.write(bind, decided)

    def _obstacle(self, another: str) -> str:
        """Why this process must not bind; empty where it may. another: as `confirm` answers."""
        if another:
            return Refusal(f"{NOT_THE_BINDER} ({another})", IS_STARTING)
        return "" if self.ready() else _STARTING

    async def _gather(self, bind: Bind, decided: Reservation, gang: Gang, min_count: int) -> str:
        """Wait until enough of the gang have a place; why the pod must not be bound, empty where it may."""
        try:
            reached = await self.quorum.reached(gang, bind.uid, min_count)
            obstacle = self._obstacle(await self.confirm()) if reached else self._incomplete(gang, min_count)
        except BaseException:
            self.commits.give_up(bind, decided)
            raise
        if self.state.reservation(bind.node, bind.uid) is not decided:
            return obstacle or f"pod {bind.pod} was bound, ended or was placed anew meanwhile; try again"
        if obstacle:
            self.commits.give_up(bind, decided)
        return obstacle

    def _incomplete(self, gang: Gang, min_count: int) -> str:
        placed = self.quorum.gangs.placed(gang)
        why = f"{placed} of the {min_count} pods that pod group {gang} binds together had a place"
        return Refusal(f"{NOT_ENOUGH_FREE} ({why})", Reason.GANG_INCOMPLETE)

    def _reserve(self, bind: Bind, asked: _Asked) -> Reservation | str:
        """Decide, and hold what was decided; or the refusal's text.

        Nothing else runs in between (there is no await here), which is what locks the node: binds to it
        may be under way in any number, and each one's decision sees what the others hold.
        """
        reservation = self.state.reservation(bind.node, bind.uid)
        pod = self.quorum.gangs.judge(PendingPod.of_view(asked.pod, asked.request))
        nominated = self.nominations.against(bind.node, bind.uid, pod.priority)
        held = {} if reservation else {**self.expecting.promised(bind.node, pod), **nominated}
        situation = self.state.situation_if(bind.node, without=[bind.uid], holding=held)
        if situation is None:
            why = self.state.why_unreadable(bind.node)
            return Refusal(f"{UNREADABLE_NODE} (node {bind.node}: {why})", Reason.UNREADABLE_NODE)
        if reservation is not None:  # in doubt: the write may have happened, so that it can only be repeated
            if not self.decisions.still_fits(reservation, situation):
                why = "the placement of an earlier bind without an answer does not fit any more"
                return Refusal(f"{NOT_ENOUGH_FREE} (node {bind.node}: {why})", Reason.STALE_PLACEMENT)
        else:
            if (beyond := self.limits.refusal(bind.namespace, bind.uid, asked.request)) is not None:
                return Refusal(f"{NOT_ENOUGH_FREE} ({beyond})", Reason.NAMESPACE_LIMIT)
            if (taken := self.addresses.taken(pod)) is not None:
                return Refusal(f"{NOT_ENOUGH_FREE} ({taken.why})", Reason.ADDRESS_IN_USE)
            found = self.decisions.place(asked.request, situation)
            if isinstance(found, Rejection):
                since = self._since(bind.node, asked, nominated=len(held))
                why = f"node {bind.node}: {found.message}{since}"
                return Refusal(f"{NOT_ENOUGH_FREE} ({why})", found.reason)
            reservation = Reservation(
                interfaces=found.interfaces,
                policy=found.policy,
                pod=bind.pod,
                made_at=self.clock(),
                version=asked.pod.version,
            )
        self.state.reserve(bind.node, bind.uid, reservation)
        return reservation

    def _since(self, node: NodeName, asked: _Asked, *, nominated: int) -> str:
        """What changed since the pod was filtered, as far as it is known."""
        if asked.filtered is None:
            return ""
        if not asked.filtered.asked_by(asked.pod.annotations):
            return f"; since the pod was filtered its {ANNOTATION} or its policy changed"
        held = self.state.reservations(node)
        pods = [r.pod for r in held.values() if r.made_at > asked.filtered.filtered_at]
        if not pods and nominated:
            return f"; room is held there for {nominated} pods of a gang or nominated, or its report changed"
        if not pods:
            return "; its report changed since the pod was filtered"
        more = f" and {len(pods) - _SHOWN_PODS} more" if len(pods) > _SHOWN_PODS else ""
        return f"; bound there since the pod was filtered: {', '.join(pods[:_SHOWN_PODS])}{more}"


def _reason(error: str) -> str:
    if not error:
        return BOUND
    return error.reason if isinstance(error, Refusal) else REFUSED
