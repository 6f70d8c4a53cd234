"""Changes of running pods' rates: decided by the one binder, held, and written as a placement's generation.

The order is that of a bind (`extender.bind`): take the pod's version; confirm with the API server that this
process holds the Lease; decide, and hold what was decided; write, of that version. Who takes the Lease
touches the pods whose changes an earlier holder may have decided (`Leadership`), so that such a write fails.

A pod has one change at a time: the next is decided when its node has reported this one, as programmed or as
refused. The node tries a refused one again, so that it may be in force whatever comes after it: the signed
placement has the largest reservation of the generations that may be.

Agents without credentials have placements delivered (`NodeSource.deliver`), again and again until they report
the generation.

Verbs: get and patch on `pods`, create and patch on `events`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, NoReturn

import structlog

from k8s_rdma.core.backoff import Backoff
from k8s_rdma.core.ledger import Pod
from k8s_rdma.core.placement import PlacedInterface, Placement, Rejection, by_entry
from k8s_rdma.core.rate_change import admit, changed_rates
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.errors import MalformedError, Reason, visible
from k8s_rdma.extender.decision_log import BOUND, DecisionLog, Outcome
from k8s_rdma.extender.node_cache import NodeSnapshot, Reservation
from k8s_rdma.extender.pod_store import PendingPod, PodIndex
from k8s_rdma.kube.api import (
    API_ERRORS,
    ApiRefusedError,
    ApiUncertainError,
    ClusterApi,
    PodView,
    about_pod,
)
from k8s_rdma.wire.annotation import read_request, request_text
from k8s_rdma.wire.placement_annotation import (
    MAX_STATUS_MESSAGE,
    PLACEMENT_ANNOTATION,
    RATES_STATUS_ANNOTATION,
    RatesState,
    RatesStatus,
    decode_rates_status,
    digest,
    encode,
    encode_rates_status,
    generation_in,
)
from k8s_rdma.wire.placement_keys import UNSIGNED, KeySource
from k8s_rdma.wire.rest import RatesRefusal

if TYPE_CHECKING:
    from k8s_rdma.extender.leadership import Fence
    from k8s_rdma.extender.metrics import Reading
    from k8s_rdma.extender.node_source import NodeSource
    from k8s_rdma.extender.scheduler_cache import SchedulerCache
    from k8s_rdma.kube.event_recorder import EventRecorder

_POLL_S = 0.2
_FIRST_RETRY_S = 1.0
_LAST_RETRY_S = 300.0
_MAX_PODS = 10_000
"""The limit for remembered changes; pods' owners decide how many there are, and the oldest goes."""

_MAX_NODES = 32
"""Nodes with a decision under way: each asks the API server, and only nodes that are late take long."""

_SHORT_TEXT = 2048
_log = structlog.get_logger()


@dataclass(slots=True)
class _Pending:
    """A pod whose annotation asks for other rates than it has, or whose status is not the last word.

    version: of the pod. text: of its annotation. refused_on: the snapshot that refused it. awaited: the
    generation that its node is to program first. refusal: the node's last one. epoch: of its report then; a
    restarted agent has another. undelivered: why the node refuses the placement that it was sent; empty where
    it does not. write: a write without an answer.
    """

    pod: Pod
    version: str
    node: NodeName
    text: str
    backoff: Backoff
    due_at: float = 0.0
    tried_at: float = float("-inf")
    refused_on: NodeSnapshot | None = None
    awaited: int | None = None
    refusal: RatesRefusal | None = None
    epoch: str = ""
    undelivered: str = ""
    write: _Write | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Write:
    """A write of a generation to a version of the pod, and the reservation that it replaces.

    late_at: the time after which it can take no effect, touched or not.
    """

    version: str
    generation: int
    previous: Reservation
    late_at: float


class RateChanges(PodIndex):
    """Decides changes, of the bound pods that the pod informer finds to have a reservation.

    keys: sign placements; without them the rates of running pods do not change, as their owners could write
    any.
    enabled: whether the operator allows changes. clock: seconds, monotonic. ready, confirm: as of `Binder`.
    lock: of a pod, see `BindingWriter.lock`. api_request_timeout_s: as of `BindingWriter`.
    """

    def __init__(  # noqa: PLR0913 - what decisions and writes need
        self,
        *,
        cache: SchedulerCache,
        states: NodeSource,
        api: ClusterApi,
        fence: Fence,
        decision_log: DecisionLog,
        events: EventRecorder,
        clock: Callable[[], float],
        ready: Callable[[], bool],
        confirm: Callable[[], Coroutine[None, None, str]],
        lock: Callable[[PodUid], asyncio.Lock],
        keys: KeySource = UNSIGNED,
        enabled: bool = True,
        api_request_timeout_s: float = 60.0,
    ) -> None:
        """Decide nothing until `run`."""
        self._cache, self._states, self._api, self._fence = cache, states, api, fence
        self._decision_log, self._events, self._clock = decision_log, events, clock
        self._ready, self._confirm = ready, confirm
        self._lock, self._keys, self._enabled = lock, keys, enabled
        self._api_request_timeout_s = api_request_timeout_s
        self._pending: dict[PodUid, _Pending] = {}
        self._long_texts: dict[PodUid, int] = {}
        self._busy: set[NodeName] = set()
        self._changed = asyncio.Event()

    def uids(self) -> Iterable[PodUid]:
        """The pods with a change that is not over, or a text that is long to read."""
        return {*self._pending, *self._long_texts}

    def on_delete(self, uid: PodUid) -> None:
        """Forget the pod; a write without an answer is settled by its end."""
        self._pending.pop(uid, None)
        self._long_texts.pop(uid, None)
        self._events.forget(uid)

    def pods(self) -> list[tuple[Pod, str]]:
        """The pods whose changes an earlier binder may have decided as well, and their versions."""
        return [(pending.pod, pending.version) for pending in self._pending.values()]

    def undecided(self) -> list[str]:
        """The pods, `namespace/name`, with a write of this process that may yet take effect."""
        waiting = (pending.pod for pending in self._pending.values() if pending.write is not None)
        return sorted(pod.full_name for pod in waiting)

    def readings(self) -> dict[str, Reading]:
        """Readings for metrics."""
        return {
            "rate_changes_pending": (
                "Running pods whose annotation asks for other rates than they have.",
                "gauge",
                lambda: len(self._pending),
            ),
        }

    def on_update(self, pod: PodView, reservation: Reservation) -> None:
        """The bound pod as the API server shows it, with what it was promised."""
        if self._keys() is None:
            return
        try:
            text = request_text(pod.annotations) or ""
        except MalformedError:
            text = ""
        pending = self._pending.get(pod.uid)
        if pending is not None:
            pending.version = pod.version
            if pending.write is not None:
                return
        if not self._is_open(pod, reservation, text):
            if pending is not None:
                del self._pending[pod.uid]
        elif pod.node is not None and (pending is None or pending.text != text):
            self._pending.pop(pod.uid, None)
            identity = Pod(namespace=pod.namespace, name=pod.name, uid=pod.uid)
            self._pending[pod.uid] = _Pending(
                identity, pod.version, pod.node, text, Backoff(_FIRST_RETRY_S, _LAST_RETRY_S)
            )
            self._trim()
            self._changed.set()

    def _trim(self) -> None:
        if len(self._pending) > _MAX_PODS:
            oldest = next((uid for uid, pending in self._pending.items() if pending.write is None), None)
            if oldest is not None:
                del self._pending[oldest]

    def _is_open(self, pod: PodView, reservation: Reservation, text: str) -> bool:
        """Report whether the pod asks for other rates, has an earlier generation, or a status to be written.

        A long text is read when it is another one than before: each event of the pod comes by here.
        """
        if (
            reservation.generation
            and generation_in(pod.annotations.get(PLACEMENT_ANNOTATION, "")) < reservation.generation
        ):
            return True
        if (reservation.generation or RATES_STATUS_ANNOTATION in pod.annotations) and not _is_last_word(
            pod, reservation, text
        ):
            return True
        if reservation.generation and self._is_behind(pod, reservation):
            return True
        if len(text) <= _SHORT_TEXT:
            return _differs(reservation.interfaces, _rates_in(text))
        if self._long_texts.get(pod.uid) == (key := hash((text, reservation.generation))):
            return pod.uid in self._pending
        self._long_texts[pod.uid] = key
        return _differs(reservation.interfaces, _read_rates(text))

    def _is_behind(self, pod: PodView, reservation: Reservation) -> bool:
        """Report whether the pod has earlier rates on its node, as in a sandbox that was just made anew."""
        facts = self._cache.state.facts(pod.node) if pod.node is not None else None
        return (
            facts is not None
            and pod.uid in facts.reported
            and facts.generations.get(pod.uid, 0) < reservation.generation
        )

    async def run(self) -> NoReturn:
        """Decide changes as they come, and again when their nodes or their time come.

        A decision waits for its pod's node, so that each node's are made apart from others'.
        """
        async with asyncio.TaskGroup() as deciding:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_S if self._pending else None):
                        await self._changed.wait()
                self._changed.clear()
                for node, due in self._due_by_node().items():
                    if len(self._busy) < _MAX_NODES and node not in self._busy:
                        self._busy.add(node)
                        deciding.create_task(self._handle_all(node, due))

    def _due_by_node(self) -> dict[NodeName, list[_Pending]]:
        found: dict[NodeName, list[_Pending]] = {}
        for pending in self._pending.values():
            if self._is_due(pending):
                found.setdefault(pending.node, []).append(pending)
        return found

    async def _handle_all(self, node: NodeName, due: Iterable[_Pending]) -> None:
        for pending in due:
            if self._pending.get(pending.pod.uid) is pending:
                await self._handle(pending)
        self._busy.discard(node)

    def _is_due(self, pending: _Pending) -> bool:
        now = self._clock()
        if now >= pending.due_at:
            return pending.write is not None or self._ready()
        if pending.write is not None or now < pending.tried_at + _FIRST_RETRY_S or not self._ready():
            return False
        state = self._cache.state
        if pending.awaited is not None:
            return (
                state.programmed(pending.node, pending.pod.uid) >= pending.awaited
                or state.refusal(pending.node, pending.pod.uid) != pending.refusal
                or self._epoch(pending.node) != pending.epoch
            )
        refused_on = pending.refused_on
        return refused_on is not None and state.snapshots.get(pending.node, refused_on) is not refused_on

    async def _handle(self, pending: _Pending) -> None:
        uid = pending.pod.uid
        async with self._lock(uid):
            if self._pending.get(uid) is not pending:
                return
            try:
                if pending.write is not None:
                    await self._settle(pending, pending.write)
                else:
                    await self._decide(pending)
            except API_ERRORS as error:
                _log.warning("rate_change_delayed", pod=pending.pod.full_name, error=error.message)
            except Exception:  # a defect, which one pod's data must not make that of all
                _log.exception("rate_change_fault", pod=pending.pod.full_name)
            pending.tried_at = self._clock()
            pending.due_at = pending.tried_at + pending.backoff.fail()

    async def _decide(self, pending: _Pending) -> None:
        pod = await self._api.get_pod(pending.pod.namespace, pending.pod.name)
        if pod is None or not _is_same(pod, pending):
            self.on_delete(pending.pod.uid)
            return
        async with asyncio.TaskGroup() as questions:
            confirming = questions.create_task(self._confirm())
            questions.create_task(self._states.request_report(pending.node))
            delivering = questions.create_task(self._deliver(pending))
        if confirming.result() or not self._ready():
            return
        pending.undelivered, pending.epoch = delivering.result(), self._epoch(pending.node)
        # From here to the write nothing is awaited: what others hold cannot change meanwhile.
        decided = self._decided(pod, pending)
        if decided is None:
            return
        if decided.change is None:
            await self._write_status(pod, pending, decided)
        else:
            await self._write_change(pod, pending, decided, decided.change)

    async def _deliver(self, pending: _Pending) -> str:
        """Send the node the pod's placement, if it has not programmed it; return why it refuses it."""
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

    def _decided(self, pod: PodView, pending: _Pending) -> _Decision | None:
        """Decide on this version of the pod; None where the pod ended meanwhile."""
        reservation = self._cache.state.reservation(pending.node, pod.uid)
        if reservation is None or not reservation.bound or reservation.ended_at is not None:
            return None
        pending.refused_on = pending.awaited = None
        try:
            return self._judged(pod, pending, reservation)
        except MalformedError as error:
            return _Decision(
                state="refused", message=error.message, reason=error.reason, reservation=reservation
            )

    def _judged(self, pod: PodView, pending: _Pending, reservation: Reservation) -> _Decision:
        """Decide; MalformedError where the pod asks for what no running pod gets."""
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
        self, pod: PendingPod, pending: _Pending, change: Placement, current: Placement
    ) -> Rejection | None:
        """Decide beside what others hold, are promised, and are expected to take."""
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

    async def _write_status(self, pod: PodView, pending: _Pending, decision: _Decision) -> None:
        """Write the status if it is another one; the pod's next event ends what is over."""
        text = encode_rates_status(decision.status(pod))
        if pod.annotations.get(RATES_STATUS_ANNOTATION) == text:
            if decision.state == "programmed":
                self._pending.pop(pod.uid, None)
            return
        if decision.state == "refused":
            self._record(pod, decision)
        await self._api.annotate_version(pending.pod, pod.version, {RATES_STATUS_ANNOTATION: text})

    async def _write_change(
        self, pod: PodView, pending: _Pending, decision: _Decision, change: Placement
    ) -> None:
        """Hold the change, and write placement and status in one write of this version of the pod."""
        previous = decision.reservation
        annotations = {
            PLACEMENT_ANNOTATION: encode(change, pod.uid, self._keys()),
            RATES_STATUS_ANNOTATION: encode_rates_status(decision.status(pod)),
        }
        self._cache.state.reserve(pending.node, pod.uid, previous.with_rates_of(change))
        pending.write = _Write(
            version=pod.version,
            generation=change.generation,
            previous=previous,
            late_at=self._clock() + self._api_request_timeout_s,
        )
        try:
            await self._api.annotate_version(pending.pod, pod.version, annotations)
        except ApiUncertainError:
            _log.warning("rate_change_in_doubt", pod=pending.pod.full_name, generation=change.generation)
            await self._settle(pending, pending.write)
            return
        except API_ERRORS as error:
            self._withdraw(pending, pending.write)
            if not isinstance(error, ApiRefusedError) or error.status != _CONFLICT:
                raise
            return
        self._written(pod, pending, decision)
        pending.undelivered = await self._deliver(pending)

    def _written(self, pod: PodView, pending: _Pending, decision: _Decision) -> None:
        pending.awaited, pending.write = decision.generation, None
        pending.backoff.reset()
        self._record(pod, decision)

    async def _settle(self, pending: _Pending, write: _Write) -> None:
        """Have a write without an answer settled: the pod is touched, or the write's time is over."""
        late = self._clock() >= write.late_at
        found, full = await self._fence.read(pending.pod)
        if found is None:
            self.on_delete(pending.pod.uid)
        elif generation_in(found.annotations.get(PLACEMENT_ANNOTATION, "")) >= write.generation:
            pending.awaited, pending.write = write.generation, None
            pending.backoff.reset()
        elif late or full or found.version != write.version:
            self._withdraw(pending, write)

    def _withdraw(self, pending: _Pending, write: _Write) -> None:
        """The write takes no effect: the pod has what it had."""
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


_CONFLICT = 409


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decision:
    """Decision on a change. change: the placement to be written; None for none."""

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
        """The status that says so."""
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


def _is_same(pod: PodView, pending: _Pending) -> bool:
    return pod.uid == pending.pod.uid and pod.node == pending.node and not (pod.finished or pod.terminating)


def _is_last_word(pod: PodView, reservation: Reservation, text: str) -> bool:
    """Report whether the status says that this annotation's rates are programmed."""
    try:
        status = decode_rates_status(pod.annotations.get(RATES_STATUS_ANNOTATION, ""))
    except MalformedError:
        return False
    return (status.state, status.generation, status.request) == (
        "programmed",
        reservation.generation,
        digest(text),
    )


_Rates = Collection[tuple[int, int]]


def _differs(interfaces: tuple[PlacedInterface, ...], rates: _Rates | None) -> bool:
    """Report whether other rates are wanted; where they cannot be read, too."""
    if rates is None:
        return True
    unique = interfaces if interfaces[0].entry is None else by_entry(interfaces).values()
    placed = tuple((interface.min_tx_rate_mbps, interface.max_tx_rate_mbps) for interface in unique)
    return rates != (frozenset(placed) if isinstance(rates, frozenset) else placed)


def _read_rates(text: str) -> _Rates | None:
    """Read minimum and maximum rate of each interface; a set where one may stand for several GPUs'."""
    try:
        request = read_request(text, strict=False).request
    except MalformedError:
        return None
    rates = tuple(
        (interface.min_tx_rate_mbps, interface.max_tx_rate_mbps) for interface in request.interfaces
    )
    return frozenset(rates) if request.shape.near_gpus else rates


_rates_in = lru_cache(maxsize=4096)(_read_rates)


def _rates_of(placement: Placement) -> Iterator[str]:
    for entry, interface in by_entry(placement.interfaces).items():
        yield f"{entry}: min {interface.min_tx_rate_mbps}, max {interface.max_tx_rate_mbps} Mb/s"


def _reserved(placement: Placement) -> list[int]:
    return [interface.min_tx_rate_mbps for interface in by_entry(placement.interfaces).values()]
