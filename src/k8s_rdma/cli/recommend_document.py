"""The document of `k8s-rdma recommend`: rates in Mb/s, times in seconds, null for unknown values."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

import msgspec

from k8s_rdma.core.recommendation import Trust
from k8s_rdma.planning.whatif import Difference

if TYPE_CHECKING:
    from k8s_rdma.core.recommendation import (
        FreedBandwidth,
        MeasuredInterface,
        Suggestion,
        WorkloadAdvice,
    )
    from k8s_rdma.core.traffic import Losses
    from k8s_rdma.core.usage import Quantiles, UnmetDemand

_CONFIDENCE = {Trust.NONE: "none", Trust.LOW: "low", Trust.MEDIUM: "medium", Trust.HIGH: "high"}


class UsedRates(msgspec.Struct, frozen=True, kw_only=True):
    """Rates that were not exceeded for so many hundredths of the measured time, and the largest."""

    p50: float
    p95: float
    p99: float
    maximum: float

    @classmethod
    def from_quantiles(cls, found: Quantiles | None) -> UsedRates | None:
        """Convert quantiles, if there are any."""
        if found is None:
            return None
        p50, p95, p99, maximum = (round(rate, 1) for rate in (found.p50, found.p95, found.p99, found.maximum))
        return cls(p50=p50, p95=p95, p99=p99, maximum=maximum)


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """Packets that were dropped, and events after which they were sent again."""

    dropped: int | None
    retransmitted: int | None

    @classmethod
    def from_losses(cls, found: Losses) -> Lost:
        """Take losses."""
        return cls(dropped=found.dropped, retransmitted=found.retransmitted)


class UnmetPeriod(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which a pod needed more than it got.

    limit: the reservation that was not met, or the cap.
    enforced_by: null if it is not known.
    """

    limit: Literal["reservation", "cap"]
    pod: str
    interface: str
    node: str
    pf: str
    began: str
    ended: str
    wanted_mbps: int
    sent_mbps: float
    enforced_by: str | None
    losses: Lost


class PodUse(msgspec.Struct, frozen=True, kw_only=True):
    """The use of one pod's interface. resolution_s: the usual time between two readings."""

    pod: str
    node: str
    pf: str
    reserved_mbps: int | None
    cap_mbps: int | None
    min_by: str | None
    max_by: str | None
    sent: UsedRates | None
    received: UsedRates | None
    measured_s: float
    resolution_s: float
    gaps: int
    gap_s: float
    unknown_s: float
    restarts: int
    at_cap_s: float
    unmet_reservation_s: float
    counts_losses: bool


class Freed(msgspec.Struct, frozen=True, kw_only=True):
    """Bandwidth of a PF that the suggestions give back; below zero: that they take."""

    node: str
    pf: str
    mbps: int


class WorkloadRecommendation(msgspec.Struct, frozen=True, kw_only=True):
    """A suggestion for an interface of a workload's pods.

    reserved_mbps: of all of them.
    min_tx_rate, max_tx_rate: of each pod; null without a suggestion; a cap of 0 is no cap.
    """

    namespace: str
    kind: str
    name: str
    interface: str
    pods: tuple[PodUse, ...]
    reserved_mbps: int | None
    sent: UsedRates | None
    received: UsedRates | None
    at_cap_percent: float
    losses: Lost
    losses_at_cap: Lost
    verdict: str
    min_tx_rate: int | None
    max_tx_rate: int | None
    covered_percent: float | None
    reason: str
    confidence: str
    confidence_reasons: tuple[str, ...]
    freed_mbps: int
    unmet: tuple[UnmetPeriod, ...]


class Recommendations(msgspec.Struct, frozen=True, kw_only=True):
    """The document.

    source: of the readings.
    complete: whether it ran for its time, and Ctrl-C did not end it before.
    room: how many pods of given shapes fit now, and with the suggestions.
    notes: parts that it lacks.
    """

    source: Literal["prometheus", "nodes"]
    window_s: float
    resolution_s: float
    complete: bool
    workloads: tuple[WorkloadRecommendation, ...]
    freed: tuple[Freed, ...]
    room: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def has_unmet_demand(self) -> bool:
        """Report whether a pod needed more than it got."""
        return any(period.unmet for period in self.workloads)


def workload_recommendation(advice: WorkloadAdvice) -> WorkloadRecommendation:
    """Make a workload's part of the document."""
    suggestion = advice.suggestion
    return WorkloadRecommendation(
        namespace=advice.workload.namespace,
        kind=advice.workload.kind,
        name=advice.workload.name,
        interface=advice.interface,
        pods=tuple(map(_pod, advice.pods)),
        reserved_mbps=advice.reserved_mbps,
        sent=UsedRates.from_quantiles(advice.sent),
        received=UsedRates.from_quantiles(advice.received),
        at_cap_percent=round(100 * advice.at_cap_share, 1),
        losses=Lost.from_losses(advice.losses),
        losses_at_cap=Lost.from_losses(advice.losses_at_cap),
        verdict=suggestion.verdict,
        min_tx_rate=suggestion.min_tx_rate_mbps,
        max_tx_rate=suggestion.max_tx_rate_mbps,
        covered_percent=_percent(suggestion),
        reason=suggestion.reason,
        confidence=_CONFIDENCE[suggestion.trust],
        confidence_reasons=suggestion.trust_reasons,
        freed_mbps=advice.freed_mbps,
        unmet=tuple(_unmet(pod, period) for pod in advice.pods for period in pod.use.unmet),
    )


def freed(found: FreedBandwidth) -> Freed:
    """Make a PF's part of the document."""
    return Freed(node=found.node, pf=found.pf, mbps=found.mbps)


def _percent(suggestion: Suggestion) -> float | None:
    return None if suggestion.covered is None else int(1000 * suggestion.covered + 1e-6) / 10


def _pod(pod: MeasuredInterface) -> PodUse:
    use, coverage = pod.use, pod.use.coverage
    return PodUse(
        pod=use.holder.pod,
        node=use.holder.node,
        pf=use.holder.pf,
        reserved_mbps=use.reserved_mbps,
        cap_mbps=use.cap_mbps,
        min_by=pod.min_by,
        max_by=pod.max_by,
        sent=UsedRates.from_quantiles(use.sent),
        received=UsedRates.from_quantiles(use.received),
        measured_s=round(coverage.measured_s, 1),
        resolution_s=round(coverage.resolution_s, 1),
        gaps=coverage.gaps,
        gap_s=round(coverage.gap_s, 1),
        unknown_s=round(coverage.unknown_s, 1),
        restarts=coverage.restarts,
        at_cap_s=round(use.at_cap_s, 1),
        unmet_reservation_s=round(use.unmet_reservation_s, 1),
        counts_losses=use.counts_losses,
    )


def _unmet(pod: MeasuredInterface, found: UnmetDemand) -> UnmetPeriod:
    is_cap = found.kind == "cap"
    return UnmetPeriod(
        limit="cap" if is_cap else "reservation",
        pod=pod.use.holder.pod,
        interface=pod.use.holder.interface,
        node=found.node,
        pf=found.pf,
        began=_time(found.from_s),
        ended=_time(found.to_s),
        wanted_mbps=found.wanted_mbps,
        sent_mbps=round(found.sent_mbps, 1),
        enforced_by=pod.max_by if is_cap else pod.min_by,
        losses=Lost(dropped=found.dropped, retransmitted=found.retransmitted),
    )


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
