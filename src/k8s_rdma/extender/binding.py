"""bind: decide on the freshest state, hold the placement, and have it written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.core.ids import NodeName, PodUid
from k8s_rdma.core.placement import Rejection, fits, place
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.extender.commit import Bind, Commits
from k8s_rdma.extender.expecting import Expecting
from k8s_rdma.extender.limits import Limits
from k8s_rdma.extender.outcomes import BOUND, REFUSED, Outcome, Outcomes
from k8s_rdma.extender.outcomes import STARTING as IS_STARTING
from k8s_rdma.extender.requests import Requests
from k8s_rdma.extender.sources import NodeStates
from k8s_rdma.extender.state import ClusterState, Reservation
from k8s_rdma.extender.touching import Toucher
from k8s_rdma.kube.api import API_ERRORS, ClusterApi
from k8s_rdma.wire.extender import MALFORMED_ANNOTATION, NOT_ENOUGH_FREE, UNREADABLE_NODE

if TYPE_CHECKING:
    from k8s_rdma.core.request import Request
    from k8s_rdma.wire.extender import ExtenderBindingArgs

STARTING = (
    "the RDMA scheduler extender is starting: it does not hold its lease, or has not listed the cluster's "
    "pods since; try again"
)

_SHOWN_PODS = 3


@dataclass(slots=True, kw_only=True)
class Binder:
    """Binds pods.

    clock: seconds, monotonic. ready: whether every promise that others made is known, and nobody else makes
    any now; else nothing may be promised.
    """

    state: ClusterState
    states: NodeStates
    api: ClusterApi
    requests: Requests
    commits: Commits
    toucher: Toucher
    expecting: Expecting
    limits: Limits
    outcomes: Outcomes
    clock: Callable[[], float]
    ready: Callable[[], bool]

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
                error = f"{MALFORMED_ANNOTATION} ({malformed.message})"
                reason = Reason.MALFORMED_ANNOTATION
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
        return error

    def _expect(self, bind: Bind) -> None:
        """From now on it is known where the pod goes; what it reserves there takes over."""
        remembered = self.requests.recall(bind.uid)
        if remembered is not None and remembered.request:
            self.expecting.leave(remembered.pod, [bind.node])

    async def _bind(self, bind: Bind) -> str:
        remembered = self.requests.recall(bind.uid)
        if remembered is not None:
            request = remembered.request
        else:
            pod = await self.api.get_pod(bind.namespace, bind.name)
            if pod is None or pod.uid != bind.uid:
                return f"pod {bind.pod} with UID {bind.uid} does not exist any more"
            request = self.requests.read(bind.uid, pod.annotations)
        if not request:
            return await self.commits.write(bind, None)
        if not self.ready():
            return STARTING
        held = self.state.reservation(bind.node, bind.uid)
        if held is not None and held.ended_at is not None:
            return f"pod {bind.pod} with UID {bind.uid} is finished or gone"
        if held is not None and held.bound:
            return ""
        await self.states.ask(bind.node)
        return await self._commit(bind, request, remembered.filtered_at if remembered else None)

    async def _commit(self, bind: Bind, request: Request, filtered_at: float | None) -> str:
        if not self.ready():  # the lease may have been lost while the node was asked
            return STARTING
        decided = self._reserve(bind, request, filtered_at)
        return decided if isinstance(decided, str) else await self.commits.write(bind, decided)

    def _reserve(self, bind: Bind, request: Request, filtered_at: float | None) -> Reservation | str:
        """Decide, and hold what was decided; or the refusal's text.

        Nothing else runs in between (there is no await here), which is what locks the node: binds to it
        may be under way in any number, and each one's decision sees what the others hold.
        """
        situation = self.state.situation_if(bind.node, without=[bind.uid])
        if situation is None:
            why = self.state.why_unreadable(bind.node)
            return f"{UNREADABLE_NODE} (node {bind.node}: {why})"
        reservation = self.state.reservation(bind.node, bind.uid)
        if reservation is not None:  # in doubt: the write may have happened, so that it can only be repeated
            if not fits(reservation.interfaces, situation.inventory, situation.used):
                why = "the placement of an earlier bind without an answer does not fit any more"
                return f"{NOT_ENOUGH_FREE} (node {bind.node}: {why})"
        else:
            found = place(request, situation.inventory, situation.used)
            if (beyond := self.limits.refusal(bind.namespace, bind.uid, request)) is not None:
                return f"{NOT_ENOUGH_FREE} ({beyond})"
            if isinstance(found, Rejection):
                since = self._bound_since(bind.node, filtered_at)
                return f"{NOT_ENOUGH_FREE} (node {bind.node}: {found.message}{since})"
            reservation = Reservation(interfaces=found.interfaces, pod=bind.pod, made_at=self.clock())
        self.state.reserve(bind.node, bind.uid, reservation)
        return reservation

    def _bound_since(self, node: NodeName, filtered_at: float | None) -> str:
        """What changed since the pod was filtered, as far as it was done here."""
        if filtered_at is None:
            return ""
        pods = [r.pod for r in self.state.reservations(node).values() if r.made_at > filtered_at]
        if not pods:
            return "; its report changed since the pod was filtered"
        more = f" and {len(pods) - _SHOWN_PODS} more" if len(pods) > _SHOWN_PODS else ""
        return f"; bound there since the pod was filtered: {', '.join(pods[:_SHOWN_PODS])}{more}"


def _reason(error: str) -> str:
    if not error:
        return BOUND
    return IS_STARTING if error is STARTING else REFUSED
