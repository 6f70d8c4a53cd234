"""Use of a pod's interface over time: rates between readings of its counters, with gaps and resets.

A time without readings is unknown, not idle. So is a time in which a counter was reset, went back for one
reading, or may have overflowed more than once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, unique
from itertools import accumulate, pairwise
from operator import itemgetter
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.traffic import DISTINCT_S, Losses
from k8s_rdma.core.types import BYTES_PER_MEGABIT, MAX_RATE_MBPS
from k8s_rdma.core.verification import TOLERANCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

AT_RATE = 1 - TOLERANCE
"""The part of a rate from which on it counts as reached: cards count up to 24 bytes a frame more."""

GAP = 2.5
"""Readings that are so many times the usual time apart have a gap between them: two were missed."""

ALL_THE_TIME = 0.9
"""The part of the measured time for which a cap binds that binds all the time."""

UNMET_S = 60.0
UNMET_INTERVALS = 2
"""The least of a period in which a reservation was not met: one lost packet is no demand."""

MAX_PERIODS = 16
"""The periods of unmet demand that are listed for an interface, the longest ones."""

_WIDTHS = (2**32, 2**64)
_NARROW_OVERFLOWS = 3


class HeldInterface(NamedTuple):
    """An interface that a pod holds. pf, pci: name and address of its PF. interface: its name in the pod."""

    node: str
    pf: str
    pci: str
    vf: int
    namespace: str
    pod: str
    interface: str


class Reading(NamedTuple):
    """Counters of an interface at one time, in seconds, and its rates then; None for unknown values.

    sent, received: bytes.
    dropped: packets that it could not send.
    retransmitted: events of its RDMA device after which packets are sent again.
    cap_mbps: 0 for no cap.
    """

    at_s: float
    sent: int
    received: int | None = None
    dropped: int | None = None
    retransmitted: int | None = None
    reserved_mbps: int | None = None
    cap_mbps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterSeries:
    """Readings of an interface on one VF, the oldest first. link_mbps: None if it is not known."""

    holder: HeldInterface
    readings: Sequence[Reading]
    link_mbps: int | None = None


class Interval(NamedTuple):
    """The time between two readings: means in Mb/s, and increases of counters; None for unknown values.

    is_restart: whether the counters were reset in it.
    reserved_mbps, cap_mbps: None also if they changed.
    """

    from_s: float
    to_s: float
    sent_mbps: float | None
    received_mbps: float | None
    dropped: int | None
    retransmitted: int | None
    reserved_mbps: int | None
    cap_mbps: int | None
    is_restart: bool = False

    @property
    def seconds(self) -> float:
        """Return its length."""
        return self.to_s - self.from_s

    @property
    def is_at_cap(self) -> bool:
        """Report whether as much was sent as the cap allows."""
        return bool(self.cap_mbps) and (self.sent_mbps or 0.0) >= AT_RATE * (self.cap_mbps or 0)

    @property
    def is_unmet(self) -> bool:
        """Report whether less was sent than is reserved while packets were lost, so that there was demand."""
        if not self.reserved_mbps or self.sent_mbps is None:
            return False
        is_less = self.sent_mbps < AT_RATE * self.reserved_mbps
        return is_less and bool(self.dropped or self.retransmitted)


def intervals(series: CounterSeries) -> list[Interval]:
    """Return the times between the readings of a series; those that are too close are one."""
    readings: list[Reading] = []
    for reading in series.readings:
        if not readings or reading.at_s >= readings[-1].at_s + DISTINCT_S:
            readings.append(reading)
    is_narrow = _is_narrow(readings, series.link_mbps)
    sent = _Counter([reading.sent for reading in readings], series.link_mbps, is_narrow=is_narrow)
    received = _Counter([reading.received for reading in readings], series.link_mbps, is_narrow=is_narrow)
    return [
        _interval(former, after, sent.increase(index, seconds), received.increase(index, seconds))
        for index, (former, after) in enumerate(pairwise(readings))
        for seconds in (after.at_s - former.at_s,)
    ]


def _interval(former: Reading, after: Reading, sent: _Increase, received: _Increase) -> Interval:
    seconds = after.at_s - former.at_s
    return Interval(
        from_s=former.at_s,
        to_s=after.at_s,
        sent_mbps=_mbps(sent.amount, seconds),
        received_mbps=_mbps(received.amount, seconds),
        dropped=_increase(former.dropped, after.dropped),
        retransmitted=_increase(former.retransmitted, after.retransmitted),
        reserved_mbps=after.reserved_mbps if former.reserved_mbps == after.reserved_mbps else None,
        cap_mbps=after.cap_mbps if former.cap_mbps == after.cap_mbps else None,
        is_restart=sent.began_anew,
    )


def _mbps(count: int | None, seconds: float) -> float | None:
    return None if count is None else count / seconds / BYTES_PER_MEGABIT


def _increase(former: int | None, after: int | None) -> int | None:
    return None if former is None or after is None or after < former else after - former


class _Increase(NamedTuple):
    """The increase of a counter, None if it is not known. began_anew: because it was reset."""

    amount: int | None
    began_anew: bool = False


@dataclass(frozen=True, slots=True)
class _Counter:
    """The values of a counter of bytes. is_narrow: it overflows faster than it is read."""

    values: Sequence[int | None]
    link_mbps: int | None
    is_narrow: bool = field(kw_only=True)

    def increase(self, index: int, seconds: float) -> _Increase:
        """Return the increase from one value to the next one."""
        former, after = self.values[index], self.values[index + 1]
        if former is None or after is None or self.is_narrow:
            return _Increase(None)
        most_bytes = (self.link_mbps or MAX_RATE_MBPS) * BYTES_PER_MEGABIT * seconds
        if self._dips(index) or self._dips(index - 1):
            return _Increase(None)
        if after >= former:
            return _Increase(after - former if after - former <= most_bytes / AT_RATE else None)
        for whole in _WIDTHS:
            if after < whole // 4 and 3 * whole // 4 <= former < whole and most_bytes < whole:
                found = after + whole - former
                return _Increase(found) if found <= most_bytes / AT_RATE else _Increase(None, began_anew=True)
        return _Increase(None, began_anew=True)

    def _dips(self, index: int) -> bool:
        """Report whether it goes back after a value, and is at least there again in the next one."""
        if not 0 <= index < len(self.values) - 2:
            return False
        start, dip, now = self.values[index], self.values[index + 1], self.values[index + 2]
        return start is not None and dip is not None and now is not None and dip < start <= now


def _is_narrow(readings: Sequence[Reading], link_mbps: int | None) -> bool:
    """Report whether a counter seems to have 32 bits, which the link fills between two readings."""
    values = [reading.sent for reading in readings]
    whole = _WIDTHS[0]
    falls = sum(after < former for former, after in pairwise(values))
    if falls < _NARROW_OVERFLOWS or not 3 * whole // 4 <= max(values) < whole:
        return False
    usual_s = median(after.at_s - former.at_s for former, after in pairwise(readings))
    return (link_mbps or MAX_RATE_MBPS) * BYTES_PER_MEGABIT * usual_s >= whole


class Quantiles(NamedTuple):
    """Rates in Mb/s below which it was for so many hundredths of the measured time, and the largest one."""

    p50: float
    p95: float
    p99: float
    p999: float
    maximum: float


@dataclass(frozen=True, slots=True)
class Distribution:
    """Rates in Mb/s with the seconds for which they were measured, the smallest first.

    passed_s: the seconds up to each of them, so that a question takes a search instead of a sum.
    """

    parts: tuple[tuple[float, float], ...] = ()
    passed_s: tuple[float, ...] = ()

    @classmethod
    def ordered(cls, parts: Iterable[tuple[float, float]]) -> Distribution:
        """Order rates."""
        ordered = tuple(sorted(parts))
        return cls(ordered, tuple(accumulate(seconds for _, seconds in ordered)))

    @property
    def seconds(self) -> float:
        """Return the measured time."""
        return self.passed_s[-1] if self.passed_s else 0.0

    def quantiles(self, at_least: float = 0.0) -> Quantiles | None:
        """Return its quantiles, if it has a measured time. at_least: the least of the maximum."""
        if not self.parts:
            return None
        p50, p95, p99, p999 = (self._quantile(share) for share in (0.5, 0.95, 0.99, 0.999))
        return Quantiles(p50, p95, p99, p999, max(self.parts[-1][0], at_least))

    def _quantile(self, share: float) -> float:
        """Return the least of the rates that is not exceeded for that part of the time."""
        found = bisect_left(self.passed_s, share * self.seconds * (1 - 1e-9))
        return self.parts[min(found, len(self.parts) - 1)][0]

    def share_up_to(self, mbps: float) -> float:
        """Return the part of the time for which no more was sent than that; 1 without measured time."""
        if not self.seconds:
            return 1.0
        found = bisect_right(self.parts, mbps, key=itemgetter(0))
        return self.passed_s[found - 1] / self.seconds if found else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """The part of a window that is known. resolution_s: the usual time between two readings; 0 without any.

    span_s: from the first reading to the end of the window.
    gaps, gap_s: times in it without readings.
    unknown_s: in which there were readings, and the rate is not known.
    restarts: of counters, and changes of the VF.
    is_narrow: whether the counters overflow faster than they are read.
    """

    window_s: float
    span_s: float
    measured_s: float
    resolution_s: float
    intervals: int
    gaps: int
    gap_s: float
    unknown_s: float
    restarts: int
    is_narrow: bool = False


@unique
class UnmetKind(StrEnum):
    """The rate that kept a pod from sending more.

    RESERVATION: it got less than is reserved for it.
    CAP: it was at its cap nearly all the time.
    """

    RESERVATION = "reservation"
    CAP = "cap"


class UnmetDemand(NamedTuple):
    """A period of unmet demand, by its place and by its time in seconds. sent_mbps: the mean."""

    kind: UnmetKind
    node: str
    pf: str
    pci: str
    from_s: float
    to_s: float
    sent_mbps: float
    wanted_mbps: int
    dropped: int | None
    retransmitted: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceUse:
    """The use of a pod's interface in a window. The maximum is no less than the mean of any gap.

    held: where it is now, or was last.
    at_cap_s: for how long it sent as much as its cap allows.
    lost_at_cap: the losses in that time.
    sent: None if no traffic was measured.
    """

    holder: HeldInterface
    reserved_mbps: int | None
    cap_mbps: int | None
    link_mbps: int | None
    sent: Quantiles | None
    received: Quantiles | None
    at_cap_s: float
    losses: Losses
    losses_at_cap: Losses
    unmet: tuple[UnmetDemand, ...]
    unmet_s: Mapping[UnmetKind, float]
    coverage: Coverage
    distribution: Distribution
    received_distribution: Distribution

    @property
    def at_cap_share(self) -> float:
        """Return the part of the measured time at the cap."""
        return self.at_cap_s / self.coverage.measured_s if self.coverage.measured_s else 0.0

    @property
    def unmet_reservation_s(self) -> float:
        """Return for how long it got less than is reserved for it, although there was demand."""
        return self.unmet_s[UnmetKind.RESERVATION]

    @property
    def counts_losses(self) -> bool:
        """Report whether losses are counted, without which unmet demand cannot be seen."""
        return self.losses.dropped is not None or self.losses.retransmitted is not None


def use_of(series: Sequence[CounterSeries], from_s: float, to_s: float) -> InterfaceUse:
    """Compute the use of one interface in a window, of its series one after the other; there is one at least.

    A pod that is created again under its name has a series for each VF.
    """
    ordered = sorted(
        (counters for counters in series if counters.readings),
        key=lambda counters: counters.readings[-1].at_s,
    )
    found = [
        [interval for interval in intervals(counters) if from_s <= interval.from_s and interval.to_s <= to_s]
        for counters in ordered
    ]
    every = [interval for of_series in found for interval in of_series]
    resolution_s = median(interval.seconds for interval in every) if every else 0.0
    gaps = [interval for interval in every if interval.seconds > GAP * resolution_s]
    close = [
        [interval for interval in of_series if interval.seconds <= GAP * resolution_s] for of_series in found
    ]
    measured = [interval for of_series in close for interval in of_series if interval.sent_mbps is not None]
    last = ordered[-1] if ordered else series[-1]
    sent = Distribution.ordered((interval.sent_mbps or 0.0, interval.seconds) for interval in measured)
    received = Distribution.ordered(
        (interval.received_mbps, interval.seconds)
        for interval in measured
        if interval.received_mbps is not None
    )
    at_cap = [interval for interval in measured if interval.is_at_cap]
    unmet = [*_unmet(ordered, close)] if ordered else []
    latest = last.readings[-1] if last.readings else Reading(to_s, 0)
    return InterfaceUse(
        holder=last.holder,
        reserved_mbps=latest.reserved_mbps,
        cap_mbps=latest.cap_mbps,
        link_mbps=last.link_mbps,
        sent=sent.quantiles(at_least=max((interval.sent_mbps or 0.0 for interval in gaps), default=0.0)),
        received=received.quantiles(),
        at_cap_s=sum(interval.seconds for interval in at_cap),
        losses=_losses_in(measured),
        losses_at_cap=_losses_in(at_cap),
        unmet=tuple(sorted(sorted(unmet, key=_length)[-MAX_PERIODS:], key=lambda period: period.from_s)),
        unmet_s={kind: sum(_length(period) for period in unmet if period.kind is kind) for kind in UnmetKind},
        coverage=_coverage(ordered, every, measured, (from_s, to_s)),
        distribution=sent,
        received_distribution=received,
    )


def _coverage(
    series: Sequence[CounterSeries],
    every: Sequence[Interval],
    measured: Sequence[Interval],
    window: tuple[float, float],
) -> Coverage:
    from_s, to_s = window
    span_s = to_s - max(from_s, min((counters.readings[0].at_s for counters in series), default=to_s))
    resolution_s = median(interval.seconds for interval in every) if every else 0.0
    read_s = sum(interval.seconds for interval in every if interval.seconds <= GAP * resolution_s)
    measured_s = sum(interval.seconds for interval in measured)
    outside_s = span_s - sum(interval.seconds for interval in every)
    return Coverage(
        window_s=to_s - from_s,
        span_s=span_s,
        measured_s=measured_s,
        resolution_s=resolution_s,
        intervals=len(measured),
        gaps=sum(interval.seconds > GAP * resolution_s for interval in every)
        + (outside_s > GAP * resolution_s),
        gap_s=max(0.0, span_s - read_s),
        unknown_s=read_s - measured_s,
        restarts=sum(interval.is_restart for interval in every) + max(0, len(series) - 1),
        is_narrow=any(_is_narrow(counters.readings, counters.link_mbps) for counters in series),
    )


def _losses_in(measured: Sequence[Interval]) -> Losses:
    return Losses(*(_total(getattr(interval, name) for interval in measured) for name in Losses._fields))


def _total(counts: Iterable[int | None]) -> int | None:
    """Add up counts that are known; None if all are unknown."""
    known_counts = [count for count in counts if count is not None]
    return sum(known_counts) if known_counts else None


def _length(unmet: UnmetDemand) -> float:
    return unmet.to_s - unmet.from_s


def _unmet(series: Sequence[CounterSeries], found: Sequence[Sequence[Interval]]) -> Iterator[UnmetDemand]:
    """Find periods of unmet demand: intervals in a row."""
    measured_s = sum(interval.seconds for run in found for interval in run if interval.sent_mbps is not None)
    at_cap_s = sum(interval.seconds for run in found for interval in run if interval.is_at_cap)
    for counters, of_series in zip(series, found, strict=True):
        for run in _runs(of_series, lambda interval: interval.is_unmet):
            if len(run) >= UNMET_INTERVALS and run[-1].to_s - run[0].from_s >= UNMET_S:
                yield _period(UnmetKind.RESERVATION, counters.holder, run, run[0].reserved_mbps)
        if measured_s and at_cap_s >= ALL_THE_TIME * measured_s:
            for run in _runs(of_series, lambda interval: interval.is_at_cap):
                yield _period(UnmetKind.CAP, counters.holder, run, run[0].cap_mbps)


def _runs(found: Iterable[Interval], belongs: Callable[[Interval], bool]) -> Iterator[list[Interval]]:
    """Yield intervals that follow each other without others between them."""
    run: list[Interval] = []
    for interval in found:
        is_next = not run or run[-1].to_s == interval.from_s
        if run and not (belongs(interval) and is_next):
            yield run
            run = []
        if belongs(interval):
            run.append(interval)
    if run:
        yield run


def _period(
    kind: UnmetKind, holder: HeldInterface, run: Sequence[Interval], limit_mbps: int | None
) -> UnmetDemand:
    seconds = sum(interval.seconds for interval in run)
    losses = _losses_in(run)
    return UnmetDemand(
        kind=kind,
        node=holder.node,
        pf=holder.pf,
        pci=holder.pci,
        from_s=run[0].from_s,
        to_s=run[-1].to_s,
        sent_mbps=sum((interval.sent_mbps or 0.0) * interval.seconds for interval in run) / seconds,
        wanted_mbps=limit_mbps or 0,
        dropped=losses.dropped,
        retransmitted=losses.retransmitted,
    )
