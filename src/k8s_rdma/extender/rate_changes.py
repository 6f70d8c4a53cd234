"""Changes of running pods' rates: decided by the one binder, held, and written as a placement's generation.

The order is the same as for a bind (`extender.bind`). The binder takes the pod's version, confirms with the
API server that this process holds the Lease, decides, holds the new reservation, and writes to that version.
A new holder of the Lease touches the pods whose changes an earlier holder may have decided (`Leadership`), so
that a late write fails.

A pod has one change at a time. The next change is decided when its node has reported this one as programmed
or as refused. The node tries a refused change again, so that it may come into force even after a later one.
For this reason the signed placement has the largest reservation of the generations that may be in force.

Agents without credentials have placements delivered (`NodeSource.deliver`), again and again until they report
the generation.

Verbs: get and patch on `pods`, create and patch on `events`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NoReturn

import structlog

from k8s_rdma.core.ledger import Pod
from k8s_rdma.core.placement import Placement, Rejection, by_entry
from k8s_rdma.core.rate_change import admit, changed_rates
from k8s_rdma.errors import K8sRdmaError, MalformedError, Reason, visible
from k8s_rdma.extender.decision_log import BOUND, DecisionLog, Outcome
from k8s_rdma.extender.pod_requests import PendingPod
from k8s_rdma.extender.reservation import Reservation, Stage
from k8s_rdma.extender.wanted_rates import FIRST_RETRY_S, PendingRates, RatesWrite, WantedRates
from k8s_rdma.kube.api import ClusterApi, PodView, about_pod
from k8s_rdma.kube.errors import API_ERRORS, ApiRefusedError, ApiUncertainError
from k8s_rdma.wire.annotation import request_text
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, encode, generation_in
from k8s_rdma.wire.placement_keys import UNSIGNED, KeySource
from k8s_rdma.wire.rates_status import (
    MAX_STATUS_MESSAGE,
    RATES_STATUS_ANNOTATION,
    RatesState,
    RatesStatus,
    digest,
    encode_rates_status,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping

    from k8s_rdma.core.types import NodeName
    from k8s_rdma.extender.leadership import Fence, FencedPod
    from k8s_rdma.extender.node_source import NodeSource
    from k8s_rdma.extender.pod_writer import PodWriter
    from k8s_rdma.extender.scheduler_cache import SchedulerCache
    from k8s_rdma.kube.event_recorder import EventRecorder

_POLL_S = 0.2
_MAX_NODES = 32
"""The limit for nodes with a decision under way. Each asks the API server; only late nodes take long."""

_log = structlog.get_logger()

_CONFLICT = 409


class RateChanges:
    """Decides the changes that pods ask for.

    keys: sign placements.
    enabled: whether the operator allows changes.
    clock: seconds, monotonic.
    ready, confirm: as in `Binder`.
    pod_writer: orders writes to pods, and settles those in doubt.
    """

    def __init__(  # noqa: PLR0913 - what decisions and writes need
        self,
        *,
        wanted_rates: WantedRates,
        cache: SchedulerCache,
        states: NodeSource,
        api: ClusterApi,
        fence: Fence,
        decision_log: DecisionLog,
        events: EventRecorder,
        clock: Callable[[], float],
        ready: Callable[[], bool],
        confirm: Callable[[], Coroutine[None, None, str]],
        pod_writer: PodWriter,
        keys: KeySource = UNSIGNED,
        enabled: bool = True,
    ) -> None:
        """Begin without decisions; `run` makes them."""
        self._cache, self._states, self._api, self._fence = cache, states, api, fence
        self._decision_log, self._events, self._clock = decision_log, events, clock
        self._ready, self._confirm = ready, confirm
        self._pod_writer, self._keys, self._enabled = pod_writer, keys, enabled
        self._wanted_rates, self._pending = wanted_rates, wanted_rates.pending
        self._busy: set[NodeName] = set()

    async def run(self) -> NoReturn:
        """Decide each change when it comes, and again when its node changes or its time comes.

        A decision waits for its pod's node. So the decisions of each node are made apart from other nodes'.
        """
        async with asyncio.TaskGroup() as deciding:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_S if self._pending.by_uid else None):
                        await self._wanted_rates.changed.wait()
                self._wanted_rates.changed.clear()
                for node, due in self._due_by_node().items():
                    if len(self._busy) < _MAX_NODES and node not in self._busy:
                        self._busy.add(node)
                        deciding.create_task(self._handle_all(node, due))

    def _due_by_node(self) -> dict[NodeName, list[PendingRates]]:
        found: dict[NodeName, list[PendingRates]] = {}
        for pending in self._pending.by_uid.values():
            if self._is_due(pending):
                found.setdefault(pending.node, []).append(pending)
        return found

    async def _handle_all(self, node: NodeName, due: Iterable[PendingRates]) -> None:
        for pending in due:
            if self._pending.by_uid.get(pending.pod.uid) is pending:
                await self._handle(pending)
        self._busy.discard(node)

    def _is_due(self, pending: PendingRates) -> bool:
        now = self._clock()
        if pending.write is not None or not self._ready():
            return False
        in_force = self._is_in_force(pending)
        # Once for each generation: a node's reports may alternate.
        if now >= pending.due_at or (in_force and pending.awaited != pending.seen_in_force):
            return True
        if now < pending.tried_at + FIRST_RETRY_S:
            return False
        state = self._cache.state
        if pending.awaited is not None:
            return (
                in_force
                or state.refusal(pending.node, pending.pod.uid) != pending.refusal
                or self._epoch(pending.node) != pending.epoch
            )
        refused_on = pending.refused_on
        return refused_on is not None and state.snapshots.get(pending.node, refused_on) is not refused_on

    def _is_in_force(self, pending: PendingRates) -> bool:
        """Report whether the node has programmed the generation that it must program first."""
        if pending.awaited is None:
            return False
        return self._cache.state.programmed(pending.node, pending.pod.uid) >= pending.awaited

    async def _handle(self, pending: PendingRates) -> None:
        uid = pending.pod.uid
        if self._is_in_force(pending):
            pending.seen_in_force = pending.awaited
        async with self._pod_writer.lock(uid):
            if self._pending.by_uid.get(uid) is not pending or pending.write is not None:
                return
            try:
                await self._decide(pending)
            except API_ERRORS as error:
                _log.warning("rate_change_delayed", pod=pending.pod.full_name, error=error.message)
            except Exception:  # a defect, which one pod's data must not make that of all
                _log.exception("rate_change_fault", pod=pending.pod.full_name)
            pending.tried_at = self._clock()
            pending.due_at = pending.tried_at + pending.backoff.fail()

    async def _decide(self, pending: PendingRates) -> None:
        pod = await self._api.get_pod(pending.pod.namespace, pending.pod.name)
        if pod is None or not _is_same(pod, pending):
            self._wanted_rates.on_delete(pending.pod.uid)
            return
        async with asyncio.TaskGroup() as questions:
            confirming = questions.create_task(self._confirm())
            questions.create_task(self._states.request_report(pending.node))
            delivering = questions.create_task(self._deliver(pending))
        if confirming.result() or not self._ready():
            return
        pending.undelivered, pending.epoch = delivering.result(), self._epoch(pending.node)
        # No await from here to the write, so that other pods' reservations cannot change in between.
        decided = self._decided(pod, pending)
        if decided is None:
            return
        if decided.change is None:
            await self._write_status(pod, pending, decided)
        else:
            await self._write_change(pod, pending, decided, decided.change)

    async def _deliver(self, pending: PendingRates) -> str:
        """Send the pod's placement to the node if it has not programmed it; return why it refuses it."""
        state, uid = self._cache.state, pending.pod.uid
        reservation = state.reservation(pending.node, uid)
        if (
            reservation is None
            or not reservation.bound
            or state.programmed(pending.node, uid) >= reservation.generation
        ):
            return ""
        text = encode(reservation.placement(pending.node), uid, self._keys())
        return await self._states.deliver(pending.node, text)

    def _epoch(self, node: NodeName) -> str:
        facts = self._cache.state.facts(node)
        return facts.generation.rpartition(".")[0] if facts else ""

    def _decided(self, pod: PodView, pending: PendingRates) -> _Decision | None:
        """Decide on this version of the pod; None if the pod ended meanwhile."""
        reservation = self._cache.state.reservation(pending.node, pod.uid)
        if reservation is None or reservation.stage is not Stage.BOUND:
            return None
        pending.refused_on = pending.awaited = None
        try:
            return self._judged(pod, pending, reservation)
        except MalformedError as error:
            return _Decision(
                state="refused", message=error.message, reason=error.reason, reservation=reservation
            )

    def _judged(self, pod: PodView, pending: PendingRates, reservation: Reservation) -> _Decision:
        """Decide; MalformedError if the pod asks for a change that no running pod gets."""
        current = reservation.placement(pending.node)
        generation = self._cache.state.programmed(pending.node, pod.uid)
        programmed = generation >= reservation.generation
        refusal = pending.refusal = self._cache.state.refusal(pending.node, pod.uid)
        why = ""
        if not programmed:
            pending.awaited = reservation.generation
            if refusal is not None and refusal.generation >= reservation.generation:
                why = refusal.message
            if why := why or pending.undelivered:
                why = f"node {pending.node} refuses it: {visible(why)}"
        if generation_in(pod.annotations.get(PLACEMENT_ANNOTATION, "")) < reservation.generation:
            message = "an earlier placement was written over this one, which is put back"
            return _Decision(state="refused", message=message, reservation=reservation, change=current)
        request = self._cache.requests.read(pod)
        change = changed_rates(current, request, programmed=programmed)
        if change is None:
            state: RatesState = "programmed" if programmed else "admitted"
            return _Decision(state=state, message=why, reservation=reservation)
        if not self._enabled or not self._cache.requests.policies().policy_for(pod.namespace).live_rates:
            msg = "rates of running pods do not change here (liveRates)"
            raise MalformedError(msg, reason=Reason.NOT_ALLOWED)
        if not programmed and not why:
            message = f"generation {reservation.generation} is not programmed on node {pending.node} yet"
            return _Decision(state="waiting", message=message, reservation=reservation)
        counted = replace(current, interfaces=reservation.counted(generation))
        rejection = self._rejection(PendingPod.of_view(pod, request), pending, change, counted)
        if rejection is not None:
            return _Decision(
                state="refused", message=rejection.message, reason=rejection.reason, reservation=reservation
            )
        return _Decision(state="admitted", reservation=reservation, change=change)

    def _rejection(
        self, pod: PendingPod, pending: PendingRates, change: Placement, current: Placement
    ) -> Rejection | None:
        """Return the rejection of a change that does not fit beside other pods; None if it fits.

        Other pods count with the interfaces that they hold, are promised, and are expected to take.
        """
        grows = sum(_reserved(change)) > sum(_reserved(current))
        if grows and (beyond := self._cache.limits.refusal(pod.namespace, pod.uid, pod.request)):
            return Rejection(node=pending.node, reason=Reason.NAMESPACE_LIMIT, message=beyond)
        assumed = self._cache.assumed_pods.promised(pending.node, pod)
        snapshot = self._cache.snapshot(pod, pending.node, assumed=assumed)
        if snapshot is None:
            why = f"node {pending.node}: {self._cache.state.why_unreadable(pending.node)}"
            return Rejection(node=pending.node, reason=Reason.UNREADABLE_NODE, message=why)
        pending.refused_on = self._cache.state.snapshots.get(pending.node)
        return admit(change, current, snapshot.inventory, snapshot.used)

    async def _write_status(self, pod: PodView, pending: PendingRates, decision: _Decision) -> None:
        """Write the status if it differs; the pod's next event ends a pending change that is programmed."""
        text = encode_rates_status(decision.status(pod))
        if pod.annotations.get(RATES_STATUS_ANNOTATION) == text:
            if decision.state == "programmed":
                self._pending.pop(pod.uid)
            return
        if decision.state == "refused":
            self._record(pod, decision)
        await self._api.annotate_version(pending.pod, pod.version, {RATES_STATUS_ANNOTATION: text})

    async def _write_change(
        self, pod: PodView, pending: PendingRates, decision: _Decision, change: Placement
    ) -> None:
        """Hold the change, and write placement and status in one write of this version of the pod."""
        previous = decision.reservation
        annotations = {
            PLACEMENT_ANNOTATION: encode(change, pod.uid, self._keys()),
            RATES_STATUS_ANNOTATION: encode_rates_status(decision.status(pod)),
        }
        self._cache.state.reserve(pending.node, pod.uid, previous.with_rates_of(change))
        pending.write = RatesWrite(version=pod.version, generation=change.generation, previous=previous)
        unanswered = _UnansweredChange(self, pending, pending.write)
        error = await self._pod_writer.track(unanswered, self._send(unanswered, annotations))
        if isinstance(error, ApiUncertainError):
            return
        if error is not None:
            self._withdraw(pending, unanswered.write)
            if not isinstance(error, ApiRefusedError) or error.status != _CONFLICT:
                raise error
            return
        self._written(pod, pending, decision)
        pending.undelivered = await self._deliver(pending)

    def _written(self, pod: PodView, pending: PendingRates, decision: _Decision) -> None:
        pending.awaited, pending.write = decision.generation, None
        pending.backoff.reset()
        self._record(pod, decision)

    async def _send(
        self, unanswered: _UnansweredChange, annotations: Mapping[str, str]
    ) -> K8sRdmaError | None:
        """Write the annotations; return the error. A write without an answer is settled, now or later."""
        try:
            await self._api.annotate_version(unanswered.written_pod, unanswered.write.version, annotations)
        except ApiUncertainError as error:
            await self._settle_at_once(unanswered)
            return error
        except API_ERRORS as error:
            return error
        return None

    async def _settle_at_once(self, unanswered: _UnansweredChange) -> None:
        """Have a write without an answer settled now, or later if the API server does not let it."""
        with suppress(*API_ERRORS):
            unanswered.settle(await self._fence.read(unanswered.written_pod), late=False)
        if unanswered.stands():
            self._pod_writer.settle_later(unanswered)

    def stands(self, pending: PendingRates, write: RatesWrite) -> bool:
        """Report whether a write may still take effect, as far as this process knows."""
        return pending.write is write and self._pending.by_uid.get(pending.pod.uid) is pending

    def settle(self, pending: PendingRates, write: RatesWrite, fenced_pod: FencedPod, *, late: bool) -> None:
        """Settle a write by the pod's current state.

        late: the write cannot be under way any more.
        """
        found, full = fenced_pod
        if found is None:
            self._wanted_rates.on_delete(pending.pod.uid)
        elif generation_in(found.annotations.get(PLACEMENT_ANNOTATION, "")) >= write.generation:
            pending.awaited, pending.write = write.generation, None
            pending.backoff.reset()
        elif late or full or found.version != write.version:
            self._withdraw(pending, write)

    def _withdraw(self, pending: PendingRates, write: RatesWrite) -> None:
        """Restore the pod's previous rates, because the write takes no effect."""
        pending.write = None
        state, uid = self._cache.state, pending.pod.uid
        current, previous = state.reservation(pending.node, uid), write.previous
        if current is not None and current.generation == write.generation:
            state.reserve(pending.node, uid, current.with_rates_of(previous))

    def _record(self, pod: PodView, decision: _Decision) -> None:
        reason = decision.reason or BOUND
        self._decision_log.record(
            Outcome(
                verb="rates",
                pod=f"{pod.namespace}/{pod.name}",
                uid=pod.uid,
                candidates=1,
                reason=reason,
                reasons={reason: 1},
                node=pod.node,
                error=decision.message if decision.state == "refused" else "",
                duration_s=0.0,
            )
        )
        refused, message = decision.state == "refused", decision.message
        if decision.state == "admitted" and decision.change is not None:
            message = (
                f"the rates of generation {decision.generation} are reserved on node {pod.node}: "
                f"{'; '.join(_rates_of(decision.change))}"
            )
        event = "RdmaRatesRefused" if refused else "RdmaRatesAdmitted"
        about = about_pod(Pod(namespace=pod.namespace, name=pod.name, uid=pod.uid))
        self._events.record(about, event, message, warning=refused)


@dataclass(frozen=True, slots=True)
class _UnansweredChange:
    """A write of changed rates (`PodWrite`); its reservation is held before the write begins."""

    changes: RateChanges
    pending: PendingRates
    write: RatesWrite
    kind: ClassVar[str] = "rate_change"

    @property
    def written_pod(self) -> Pod:
        """The pod."""
        return self.pending.pod

    @property
    def node(self) -> NodeName:
        """The node of the reservation."""
        return self.pending.node

    def stands(self) -> bool:
        """Report whether no event has settled it."""
        return self.changes.stands(self.pending, self.write)

    def doubt(self) -> None:
        """Do no more; the reservation is held already."""

    def settle(self, fenced_pod: FencedPod, *, late: bool) -> None:
        """Settle the write by the pod's current state."""
        self.changes.settle(self.pending, self.write, fenced_pod, late=late)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decision:
    """A decision on a change.

    change: the placement to be written; None if no placement is written.
    """

    state: RatesState
    reservation: Reservation
    message: str = ""
    reason: str = ""
    change: Placement | None = None

    @property
    def generation(self) -> int:
        """The generation of the placement that counts from here on."""
        return (self.change or self.reservation).generation

    def status(self, pod: PodView) -> RatesStatus:
        """Return the decision's status for the pod's annotation."""
        return RatesStatus(
            state=self.state,
            generation=self.generation,
            request=_digest_of(pod),
            message=self.message[:MAX_STATUS_MESSAGE],
        )


def _digest_of(pod: PodView) -> str:
    try:
        return digest(request_text(pod.annotations) or "")
    except MalformedError:
        return ""


def _is_same(pod: PodView, pending: PendingRates) -> bool:
    return pod.uid == pending.pod.uid and pod.node == pending.node and not (pod.finished or pod.terminating)


def _rates_of(placement: Placement) -> Iterator[str]:
    for entry, interface in by_entry(placement.interfaces).items():
        yield f"{entry}: min {interface.min_tx_rate_mbps}, max {interface.max_tx_rate_mbps} Mb/s"


def _reserved(placement: Placement) -> list[int]:
    return [interface.min_tx_rate_mbps for interface in by_entry(placement.interfaces).values()]
