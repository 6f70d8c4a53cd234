"""bind: decide on the freshest state, hold the placement, and have it written.

A bind takes the pod's version and its request in that version, confirms with the API server that this
process holds the Lease, decides, and writes with that version as a precondition. A later holder of the Lease
touches the pod, which makes the write fail even if it is still under way (`extender.leadership`). A renewal
of the Lease confirms for every version taken before it. So the bind of a pod that waited for some seconds is
one request.

A reservation is held before its write begins. It is given up only when the pod is surely not bound here: the
API server refused the write, never got it, or shows the pod elsewhere, gone, or unbound with another version
than the write's. The API server refuses the write from then on. So a write without an answer (a time-out) is
settled at once by touching the pod. If that is refused, or the API server is away, the reservation stands
until the pod is read after every sent request must be over (a minute by default, kube-apiserver
`--request-timeout`).

Verbs: create on `pods/binding`, get and patch on `pods`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import structlog

from k8s_rdma.core.ledger import Pod
from k8s_rdma.core.mention import listed_for
from k8s_rdma.core.namespace_policy import NO_POLICIES, NamespacePolicies
from k8s_rdma.core.placement import Placement, Rejection
from k8s_rdma.core.request import Request
from k8s_rdma.core.types import Gang, NodeName, PodUid
from k8s_rdma.errors import K8sRdmaError, MalformedError, Reason
from k8s_rdma.extender.decision_log import (
    BOUND,
    REFUSED,
    SETTLED,
    STARTING,
    STARTING_MESSAGE,
    DecisionLog,
    Outcome,
    Refusal,
)
from k8s_rdma.extender.gangs import Quorum
from k8s_rdma.extender.node_cache import ClusterState
from k8s_rdma.extender.node_source import NodeSource
from k8s_rdma.extender.own_placements import OwnPlacements
from k8s_rdma.extender.pod_requests import CachedRequest, PendingPod
from k8s_rdma.extender.requeue import Requeuer
from k8s_rdma.extender.reservation import OPEN, Reservation, ReservationEvent, Stage
from k8s_rdma.extender.scheduler_cache import SchedulerCache
from k8s_rdma.kube.api import ClusterApi, PodBinding, PodView
from k8s_rdma.kube.errors import API_ERRORS, ApiRefusedError, ApiUncertainError, ApiUnreachableError
from k8s_rdma.kube.promises import promised_to
from k8s_rdma.wire.annotation import request_name, requests_interfaces
from k8s_rdma.wire.extender import NOT_ENOUGH_FREE, UNREADABLE_NODE, ExtenderBindingArgs, sentence_of
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, Promise, encode
from k8s_rdma.wire.placement_keys import UNSIGNED, KeySource

if TYPE_CHECKING:
    from k8s_rdma.extender.leadership import Fence, FencedPod
    from k8s_rdma.extender.pod_writer import PodWriter

NOT_THE_BINDER = "another RDMA scheduler extender binds now; try again"
_NOT_READY = Refusal(STARTING_MESSAGE, STARTING)

_CONFLICT = 409
_NOT_FOUND = 404
_TRIES = 5
"""The number of versions of a pod that a bind tries, because others also write to it, mostly its status."""

_log = structlog.get_logger()


class BindingWriter:
    """Writes Bindings, and gives up the reservations of those that are surely not written.

    lock: the lock of a pod, see `PodWriter`.
    """

    def __init__(
        self,
        api: ClusterApi,
        fence: Fence,
        pod_writer: PodWriter,
        pending: PendingBindings,
    ) -> None:
        """Create the writer. pending: the reservations of binds."""
        self._api = api
        self._fence = fence
        self._pod_writer = pod_writer
        self._pending = pending
        self.lock = pod_writer.lock
        self._state = pending.state

    def is_uncertain(self, uid: PodUid) -> bool:
        """Report whether an earlier bind of the pod may still take effect."""
        return self._pending.is_uncertain(uid)

    async def read(self, bind: Bind) -> PodView | str:
        """Return the unbound pod to decide on, or the bind's answer (see `PendingBindings.settle`).

        If an earlier bind of the pod is in doubt, it is settled first. API_ERRORS.
        """
        if self._pending.is_uncertain(bind.uid):
            return self._pending.settle(bind, (await self._fence.read(bind.identity)).pod)
        return self._pending.settle(bind, await self._api.get_pod(bind.namespace, bind.name))

    async def write_plain(self, bind: Bind) -> str:
        """Bind a pod without a request; return the error's text, empty on success."""
        try:
            await self._api.bind_pod(self._binding(bind, None))
        except API_ERRORS as error:
            if isinstance(error, ApiUnreachableError):
                return Refusal(error.message, error.reason)
            pod = await self._api.get_pod(bind.namespace, bind.name)
            if pod is None or pod.uid != bind.uid:
                return self._pending.end(bind)
            return "" if pod.node == bind.node else Refusal(error.message, error.reason)
        return ""

    async def write(self, bind: Bind, reservation: Reservation) -> PodView | str:
        """Bind the pod; return the error's text, empty on success.

        Return the pod as it is now if it was written to since the reservation's version. It has no
        reservation then, and the caller must decide again.

        reservation: is in the state already.
        """
        self._state.after(bind.node, bind.uid, ReservationEvent.WRITE_BEGUN)
        unanswered = _UnansweredBind(self._pending, bind, reservation)
        return await self._pod_writer.track(unanswered, self._write(bind, reservation))

    async def _write(self, bind: Bind, reservation: Reservation) -> PodView | str:
        try:
            await self._api.bind_pod(self._binding(bind, reservation))
        except ApiUnreachableError as error:
            return self._not_written(bind, error)
        except ApiRefusedError as error:
            if error.status == _CONFLICT:
                return await self._conflict(bind, reservation, error)
            if error.status == _NOT_FOUND:
                return self._pending.end(bind)
            return self._not_written(bind, error)
        except ApiUncertainError as error:
            return await self._uncertain(bind, error)
        self._state.written(bind.node, bind.uid)
        return ""

    def _binding(self, bind: Bind, reservation: Reservation | None) -> PodBinding:
        annotations = {}
        if reservation is not None:
            placement = Placement(
                node=bind.node, interfaces=reservation.interfaces, policy=reservation.policy
            )
            annotations[PLACEMENT_ANNOTATION] = self._pending.sign(placement, bind.uid)
        return PodBinding(
            namespace=bind.namespace,
            name=bind.name,
            uid=bind.uid,
            node=bind.node,
            annotations=annotations,
            version=reservation.version if reservation else "",
        )

    def roll_back(self, bind: Bind) -> None:
        """Give up a reservation that was not written; have an earlier write in doubt settled later."""
        reservation = self._state.after(bind.node, bind.uid, ReservationEvent.NOT_WRITTEN)
        if reservation is not None and reservation.in_doubt:
            self._doubt(bind)

    def _not_written(self, bind: Bind, why: K8sRdmaError) -> str:
        self.roll_back(bind)
        return Refusal(why.message, why.reason)

    async def _conflict(self, bind: Bind, reservation: Reservation, why: ApiRefusedError) -> PodView | str:
        """Settle a conflict: the pod is bound, gone, going, or has another version."""
        try:
            pod = await self._api.get_pod(bind.namespace, bind.name)
        except API_ERRORS as error:
            self._not_written(bind, why)
            return Refusal(f"{why.message}; then {error.message}", error.reason)
        settled = self._pending.settle(bind, pod)
        if isinstance(settled, str):
            return settled
        if settled.version == reservation.version:
            return self._not_written(bind, why)
        return settled

    async def _uncertain(self, bind: Bind, why: ApiUncertainError) -> str:
        """Settle the write at once if the API server answers, else later."""
        self._state.doubt(bind.node, bind.uid)
        try:
            settled = self._pending.settle(bind, (await self._fence.read(bind.identity)).pod)
        except API_ERRORS as error:
            self._doubt(bind)
            return Refusal(f"{why.message}; then {error.message}", error.reason)
        self._doubt(bind)
        return settled if isinstance(settled, str) else Refusal(why.message, why.reason)

    def _doubt(self, bind: Bind) -> None:
        """Have the bind's reservation settled later, unless it is settled already."""
        uncertain = self._state.doubt(bind.node, bind.uid)
        if uncertain is not None:
            self._pod_writer.settle_later(_UnansweredBind(self._pending, bind, uncertain))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """A pod that is to be bound to a node."""

    namespace: str
    name: str
    uid: PodUid
    node: NodeName

    @property
    def pod(self) -> str:
        """The pod as `namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def identity(self) -> Pod:
        """The pod without the rest of the request."""
        return Pod(namespace=self.namespace, name=self.name, uid=self.uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingBindings:
    """The reservations of binds.

    on_end: called with each pod that the API server does not have any more.
    keys: sign placements.
    policies: limit the interfaces of an unsigned placement.
    own_placements: gets those that are signed.
    """

    state: ClusterState
    on_end: Callable[[PodUid], None]
    keys: KeySource = UNSIGNED
    policies: Callable[[], NamespacePolicies] = lambda: NO_POLICIES
    own_placements: OwnPlacements = field(default_factory=OwnPlacements)

    def sign(self, placement: Placement, uid: PodUid) -> str:
        """Return the annotation of a placement that is to be written, signed if there are keys."""
        keys = self.keys()
        text = encode(placement, uid, keys)
        if keys is not None and keys.signer is not None:
            key_id = keys.signer.verifier.id
            self.own_placements.put(text, Promise(uid=uid, placement=placement, key_id=key_id))
        return text

    def is_uncertain(self, uid: PodUid) -> bool:
        """Report whether an earlier bind of the pod may still take effect."""
        reservations = (self.state.reservation(node, uid) for node in self.state.nodes_of(uid))
        return any(reservation.in_doubt for reservation in reservations if reservation)

    def settle(self, bind: Bind, pod: PodView | None) -> PodView | str:
        """Settle earlier writes by the pod as it is now.

        Return the pod while it is unbound; else the answer of the bind, empty if the pod is bound as
        requested.

        pod: read after every write of it except those under way.
        """
        if pod is None or pod.uid != bind.uid:
            return self.end(bind)
        if pod.node is not None:
            return self._found_bound(bind, pod, pod.node)
        for node, reservation in self.unbound(bind.uid):
            same = reservation.version == pod.version
            event = ReservationEvent.NOT_WRITTEN if same else ReservationEvent.SURELY_UNBOUND
            self.state.after(node, bind.uid, event)
        return pod

    def _found_bound(self, bind: Bind, pod: PodView, node: NodeName) -> str:
        """Return the answer for a bound pod: an earlier write of this process bound it, or someone else."""
        on_this_node = node == bind.node
        if on_this_node and not requests_interfaces(pod.annotations):
            return ""
        promise = promised_to(pod, self.keys(), self.policies()) if on_this_node else None
        if promise is not None:
            self.state.written(node, bind.uid, promise.placement)
            return ""
        self.drop(bind.uid)
        suffix = ", without a placement of this extender" if on_this_node else ""
        return Refusal(f"pod {bind.pod} is already bound to node {node}{suffix}", SETTLED)

    def end(self, bind: Bind) -> Refusal:
        """Settle the binds of a pod that is gone, and return the refusal.

        If the pod may have been bound, its reservation counts until the node reports no interface of it.
        """
        for node, _ in self.unbound(bind.uid):
            self.state.after(node, bind.uid, ReservationEvent.NOT_WRITTEN)
        self.on_end(bind.uid)
        return Refusal(f"pod {bind.pod} with UID {bind.uid} does not exist any more", SETTLED)

    def unbound(self, uid: PodUid) -> list[tuple[NodeName, Reservation]]:
        """Return the pod's reservations of binds that are not known to have taken effect, by node."""
        reservations = [(node, self.state.reservation(node, uid)) for node in self.state.nodes_of(uid)]
        return [
            (node, reservation)
            for node, reservation in reservations
            if reservation and reservation.stage in OPEN
        ]

    def drop(self, uid: PodUid) -> None:
        """Drop the pod's open reservations, because no bind of it can take effect any more."""
        for node, _ in self.unbound(uid):
            self.state.after(node, uid, ReservationEvent.SURELY_UNBOUND)


@dataclass(eq=False, slots=True)
class _UnansweredBind:
    """A write of a Binding (`PodWrite`), and the reservation that is held for it."""

    pending: PendingBindings
    bind: Bind
    reservation: Reservation
    kind: ClassVar[str] = "bind"

    @property
    def written_pod(self) -> Pod:
        """The pod."""
        return self.bind.identity

    @property
    def node(self) -> NodeName:
        """The node of the reservation."""
        return self.bind.node

    def stands(self) -> bool:
        """Report whether this very reservation is held: it is not settled, and no later bind took over."""
        return self.pending.state.reservation(self.bind.node, self.bind.uid) is self.reservation

    def doubt(self) -> None:
        """Hold the reservation in doubt."""
        self.pending.state.doubt(self.bind.node, self.bind.uid)

    def settle(self, fenced_pod: FencedPod, *, late: bool) -> None:
        """Settle the write by the pod's present state."""
        settled = self.pending.settle(self.bind, fenced_pod.pod)
        if (late or fenced_pod.full) and not isinstance(settled, str):
            self.pending.drop(self.bind.uid)
        _log.info("bind_settled", pod=self.bind.pod, node=self.bind.node, bound=settled == "")


@dataclass(frozen=True, slots=True)
class _BindRequest:
    """A version of the pod, its request in that version, and the request that it was filtered with."""

    pod: PodView
    request: Request
    filtered: CachedRequest | None


@dataclass(slots=True, kw_only=True)
class Binder:
    """Binds pods.

    clock: seconds, monotonic.
    ready: whether, to this process's knowledge, every promise of other processes is known, and no other
        process makes any now. If not, the binder must not promise a placement.
    confirm: confirms the same with the API server, after the given time; returns why another process may
        bind, empty if no other may.
    """

    cache: SchedulerCache
    states: NodeSource
    binding_writer: BindingWriter
    requeuer: Requeuer
    quorum: Quorum
    decision_log: DecisionLog
    clock: Callable[[], float]
    ready: Callable[[], bool]
    confirm: Callable[[float], Coroutine[None, None, str]]

    async def bind(self, args: ExtenderBindingArgs) -> str:
        """Bind the pod; return the error's text, empty on success. To bind again is a success again."""
        bind = Bind(
            namespace=args.pod_namespace,
            name=args.pod_name,
            uid=PodUid(args.pod_uid),
            node=NodeName(args.node),
        )
        began = self.clock()
        self._assume(bind)
        async with self.binding_writer.lock(bind.uid):
            try:
                error = await self._bind(bind)
                reason = _reason(error)
            except MalformedError as malformed:
                error = f"{sentence_of(malformed)} ({malformed.message})"
                reason = malformed.reason
            except API_ERRORS as failed:
                error, reason = failed.message, failed.reason
        self.cache.assumed_pods.forget(bind.uid)
        if not error:
            self.requeuer.on_delete(bind.uid)
        self.decision_log.record(
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

    def _assume(self, bind: Bind) -> None:
        """Assume the pod on the node that the scheduler chose, until its reservation counts there."""
        filtered = self.cache.requests.get(bind.uid)
        if filtered is None or not filtered.request:
            return
        pod = self.cache.gangs.judge(filtered.pod)
        if pod.gang is None:
            self.cache.assumed_pods.assume(pod, [bind.node])
        elif bind.node not in self.cache.assumed_pods.holds.nodes_of(bind.uid):
            self.cache.assumed_pods.assume_on_first(pod, [bind.node])

    async def _bind(self, bind: Bind) -> str:
        filtered, unbound = self.cache.requests.get(bind.uid), self.cache.pods.unbound(bind.uid)
        if unbound is not None and (unbound.namespace, unbound.name) != (bind.namespace, bind.name):
            return f"the pod with UID {bind.uid} is not {bind.pod}"
        if filtered is not None and not filtered.request and unbound is None:
            return await self.binding_writer.write_plain(bind)
        answer = self._settled_answer(bind)
        if answer is not None:
            return answer
        uncertain = self.binding_writer.is_uncertain(bind.uid)
        pod = (None if uncertain else self.cache.pods.latest(bind.uid)) or await self.binding_writer.read(
            bind
        )
        for _ in range(_TRIES):
            if isinstance(pod, str):
                return pod
            pod = await self._try(bind, pod, filtered)
        return pod if isinstance(pod, str) else f"pod {bind.pod} is written to all the time; try again"

    def _settled_answer(self, bind: Bind) -> str | None:
        """Return the answer if it is known that the pod is bound or has ended, else None."""
        for node in self.cache.state.nodes_of(bind.uid):
            reservation = self.cache.state.reservation(node, bind.uid)
            if reservation is not None and reservation.stage is Stage.ENDED:
                return Refusal(f"pod {bind.pod} with UID {bind.uid} is finished or gone", SETTLED)
            if reservation is not None and reservation.bound:
                bound = Refusal(f"pod {bind.pod} is already bound to node {node}", SETTLED)
                return "" if node == bind.node else bound
        return None

    async def _try(self, bind: Bind, pod: PodView, filtered: CachedRequest | None) -> PodView | str:
        """Bind this version of the pod; return a newer version if there is one, else the answer."""
        request = self.cache.requests.read_unbound(pod)
        if not request:
            return await self.binding_writer.write_plain(bind)
        if not self.ready():
            return _NOT_READY
        min_count = (await self.cache.gangs.read(pod.gang)).min_count if pod.gang else 0
        async with asyncio.TaskGroup() as questions:
            questions.create_task(self.states.request_report(bind.node))
            another = await self.confirm(self.cache.pods.taken_at(pod))
        if obstacle := self._composite(pod) or self._obstacle(another):
            return obstacle  # from here to the write, or to the wait for a gang, nothing is awaited
        decided = self._reserve(bind, _BindRequest(pod, request, filtered))
        if isinstance(decided, str):
            return decided
        if pod.gang and min_count and (obstacle := await self._gather(bind, decided, pod.gang, min_count)):
            return obstacle
        return await self.binding_writer.write(bind, decided)

    def _composite(self, pod: PodView) -> str:
        """Return the refusal of a pod whose group is part of a tree; empty for any other."""
        why = self.cache.gangs.composite(pod.gang) if pod.gang else ""
        return Refusal(f"{NOT_ENOUGH_FREE} ({why})", Reason.COMPOSITE_GROUP) if why else ""

    def _obstacle(self, another: str) -> str:
        """Return why this process must not bind; empty if it may. another: the answer of `confirm`."""
        if another:
            return Refusal(f"{NOT_THE_BINDER} ({another})", STARTING)
        return "" if self.ready() else _NOT_READY

    async def _gather(self, bind: Bind, decided: Reservation, gang: Gang, min_count: int) -> str:
        """Wait until enough of the gang have a place; return why not to bind the pod, empty if it may."""
        try:
            reached = await self.quorum.reached(gang, bind.uid, min_count)
            another = await self.confirm(self.clock()) if reached else ""
            obstacle = self._obstacle(another) if reached else self._incomplete(gang, min_count)
        except BaseException:
            self.binding_writer.roll_back(bind)
            raise
        if self.cache.state.reservation(bind.node, bind.uid) is not decided:
            return obstacle or f"pod {bind.pod} was bound, ended or was placed anew meanwhile; try again"
        if obstacle:
            self.binding_writer.roll_back(bind)
        return obstacle

    def _incomplete(self, gang: Gang, min_count: int) -> str:
        placed = self.cache.gangs.placed(gang)
        why = f"{placed} of the {min_count} pods that pod group {gang} binds together had a place"
        return Refusal(f"{NOT_ENOUGH_FREE} ({why})", Reason.GANG_INCOMPLETE)

    def _reserve(self, bind: Bind, request: _BindRequest) -> Reservation | str:
        """Decide, and hold the placement; return its reservation, or the refusal's text.

        No other task runs in between, because there is no await here: that locks the node. Any number of
        binds to it may be under way, and each one's decision counts the reservations of the others.
        """
        reservation = self.cache.state.reservation(bind.node, bind.uid)
        pod = self.cache.gangs.judge(PendingPod.of_view(request.pod, request.request))
        nominated = self.cache.nominations.against(bind.node, bind.uid, pod.priority)
        holding = {} if reservation else {**self.cache.assumed_pods.promised(bind.node, pod), **nominated}
        snapshot = self.cache.state.snapshot_if(bind.node, excluded=[bind.uid], holding=holding)
        if snapshot is None:
            why = self.cache.state.why_unreadable(bind.node)
            return Refusal(f"{UNREADABLE_NODE} (node {bind.node}: {why})", Reason.UNREADABLE_NODE)
        if reservation is not None:  # in doubt: the write may have happened, so that it can only be repeated
            if not self.cache.fit_cache.still_fits(reservation, snapshot):
                why = "the placement of an earlier bind without an answer does not fit any more"
                return Refusal(f"{NOT_ENOUGH_FREE} (node {bind.node}: {why})", Reason.STALE_PLACEMENT)
        else:
            if (beyond := self.cache.limits.refusal(bind.namespace, bind.uid, request.request)) is not None:
                return Refusal(f"{NOT_ENOUGH_FREE} ({beyond})", Reason.NAMESPACE_LIMIT)
            if (address_conflict := self.cache.addresses.conflict(pod)) is not None:
                why = address_conflict.why_for(bind.namespace)
                return Refusal(f"{NOT_ENOUGH_FREE} ({why})", Reason.ADDRESS_IN_USE)
            found = self.cache.fit_cache.place(request.request, snapshot)
            if isinstance(found, Rejection):
                changes = self._changes_since(bind.node, request, nominated=len(holding))
                why = f"node {bind.node}: {found.message}{changes}"
                return Refusal(f"{NOT_ENOUGH_FREE} ({why})", found.reason)
            reservation = Reservation(
                interfaces=found.interfaces,
                policy=found.policy,
                pod=bind.pod,
                created_at=self.clock(),
                version=request.pod.version,
            )
        self.cache.state.reserve(bind.node, bind.uid, reservation)
        return reservation

    def _changes_since(self, node: NodeName, request: _BindRequest, *, nominated: int) -> str:
        """Describe the known changes since the pod was filtered."""
        if request.filtered is None:
            return ""
        if not request.filtered.matches(request.pod.annotations):
            name = request_name(request.pod.annotations)
            return f"; since the pod was filtered its {name} or its policy changed"
        reservations = self.cache.state.reservations(node)
        pods = [r.pod for r in reservations.values() if r.created_at > request.filtered.filtered_at]
        if not pods and nominated:
            return f"; room is held there for {nominated} pods of a gang or nominated, or its report changed"
        if not pods:
            return "; its report changed since the pod was filtered"
        return f"; bound there since the pod was filtered: {listed_for(request.pod.namespace, pods)}"


def _reason(error: str) -> str:
    if not error:
        return BOUND
    return error.reason if isinstance(error, Refusal) else REFUSED
