"""Running pods whose annotation asks for other rates than they have, as the pod watch shows them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from k8s_rdma.core.backoff import Backoff
from k8s_rdma.core.ledger import Pod
from k8s_rdma.core.placement import PlacedInterface, by_entry
from k8s_rdma.core.pod_table import PodLimits, PodTable
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.errors import MalformedError
from k8s_rdma.extender.node_cache import ClusterState, NodeSnapshot
from k8s_rdma.extender.pod_store import PodIndex
from k8s_rdma.extender.reservation import Reservation
from k8s_rdma.wire.annotation import read_request, request_text
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, generation_in
from k8s_rdma.wire.placement_keys import UNSIGNED, KeySource
from k8s_rdma.wire.rates_status import RATES_STATUS_ANNOTATION, decode_rates_status, digest
from k8s_rdma.wire.report import RatesRefusal

if TYPE_CHECKING:
    from k8s_rdma.extender.metrics import Reading
    from k8s_rdma.kube.api import PodView

FIRST_RETRY_S = 1.0
"""Also the least time between two attempts at a pod's change, even if its node reports in between.

The first report that a generation is programmed is acted on at once.
"""

_LAST_RETRY_S = 300.0
_MAX_PODS = 10_000
"""The limit for remembered changes; pods' owners decide how many there are."""

_SHORT_TEXT = 2048

_Rates = Collection[tuple[int, int]]


@dataclass(slots=True)
class PendingRates:
    """A pod whose annotation asks for other rates than it has, or whose status is not the last word.

    version: the pod's version.
    text: the text of its annotation.
    refused_on: the snapshot that refused the change.
    awaited: the generation that the node must program first.
    seen_in_force: the last one of these for which it was decided at once.
    refusal: the node's last refusal.
    epoch: the epoch of the node's report at that time; a restarted agent has another one.
    undelivered: why the node refuses the placement that it was sent; empty if it does not.
    write: a write that is under way or in doubt.
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
    seen_in_force: int | None = None
    refusal: RatesRefusal | None = None
    epoch: str = ""
    undelivered: str = ""
    write: RatesWrite | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RatesWrite:
    """A write of a generation to a version of the pod, and the reservation that it replaces."""

    version: str
    generation: int
    previous: Reservation


class WantedRates(PodIndex):
    """Follows the bound pods that the pod informer finds to have a reservation.

    pending: the changes that are not over, by pod; `extender.rate_changes` decides them.
    changed: set when there is a further one.
    """

    def __init__(
        self,
        state: ClusterState,
        *,
        keys: KeySource = UNSIGNED,
        on_end: Callable[[PodUid], None] = lambda _: None,
    ) -> None:
        """Begin without pods.

        keys: sign placements. Without them the rates of running pods do not change, because their owners
            could write any.
        on_end: called with each pod that ends.
        """
        self._state = state
        self._keys = keys
        self._on_end = on_end
        self.pending: PodTable[PendingRates] = PodTable(
            PodLimits(pods=_MAX_PODS), owner=lambda pending: pending.pod.namespace
        )
        self.changed = asyncio.Event()
        self._long_texts: dict[PodUid, int] = {}

    def uids(self) -> Iterable[PodUid]:
        """Return the pods with a change that is not over, or with a text that is long to read."""
        return {*self.pending.by_uid, *self._long_texts}

    def on_delete(self, uid: PodUid) -> None:
        """Forget the pod; a write without an answer is settled by its end."""
        self.pending.pop(uid)
        self._long_texts.pop(uid, None)
        self._on_end(uid)

    def pods(self) -> list[tuple[Pod, str]]:
        """Return the pods whose changes an earlier binder may also have decided, and their versions."""
        return [(pending.pod, pending.version) for pending in self.pending.by_uid.values()]

    def readings(self) -> dict[str, Reading]:
        """Return readings for metrics."""
        return {
            "rate_changes_pending": (
                "Running pods whose annotation asks for other rates than they have.",
                "gauge",
                lambda: len(self.pending.by_uid),
            ),
        }

    def on_update(self, pod: PodView, reservation: Reservation) -> None:
        """Take a bound pod as the API server shows it, with its reservation."""
        if self._keys() is None:
            return
        try:
            text = request_text(pod.annotations) or ""
        except MalformedError:
            text = ""
        pending = self.pending.by_uid.get(pod.uid)
        if pending is not None:
            pending.version = pod.version
            if pending.write is not None:
                return
        if not self._is_open(pod, reservation, text):
            if pending is not None:
                self.pending.pop(pod.uid)
        elif pod.node is not None and (pending is None or pending.text != text):
            identity = Pod(namespace=pod.namespace, name=pod.name, uid=pod.uid)
            pending = PendingRates(
                identity, pod.version, pod.node, text, Backoff(FIRST_RETRY_S, _LAST_RETRY_S)
            )
            self.pending.put(pod.uid, pending)
            self._trim()
            self.changed.set()

    def _trim(self) -> None:
        while (uid := self.pending.excess()) is not None and self.pending.by_uid[uid].write is None:
            self.pending.pop(uid)

    def _is_open(self, pod: PodView, reservation: Reservation, text: str) -> bool:
        """Report whether the pod asks for other rates, has an earlier generation, or a status to be written.

        A long text is read only if it has changed, because each event of the pod comes by here.
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
            return pod.uid in self.pending.by_uid
        self._long_texts[pod.uid] = key
        return _differs(reservation.interfaces, _read_rates(text))

    def _is_behind(self, pod: PodView, reservation: Reservation) -> bool:
        """Report whether the pod has earlier rates on its node, as in a sandbox that was just made anew."""
        facts = self._state.facts(pod.node) if pod.node is not None else None
        return (
            facts is not None
            and pod.uid in facts.reported
            and facts.generations.get(pod.uid, 0) < reservation.generation
        )


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


def _differs(interfaces: tuple[PlacedInterface, ...], rates: _Rates | None) -> bool:
    """Report whether the pod asks for other rates, or for rates that cannot be read."""
    if rates is None:
        return True
    unique = interfaces if interfaces[0].entry is None else by_entry(interfaces).values()
    placed = tuple([(interface.min_tx_rate_mbps, interface.max_tx_rate_mbps) for interface in unique])
    return rates != (frozenset(placed) if isinstance(rates, frozenset) else placed)


def _read_rates(text: str) -> _Rates | None:
    """Read minimum and maximum rate of each interface; a set if an interface may stand for several GPUs'."""
    try:
        request = read_request(text, strict=False).request
    except MalformedError:
        return None
    rates = tuple(
        (interface.min_tx_rate_mbps, interface.max_tx_rate_mbps) for interface in request.interfaces
    )
    return frozenset(rates) if request.shape.near_gpus else rates


_rates_in = lru_cache(maxsize=4096)(_read_rates)
