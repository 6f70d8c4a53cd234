"""Suggestions for reservations and caps, from the traffic of pods; with a reason, and a level of trust.

A suggestion is never made of unknown figures. With too little data, or while a pod gets less than its demand,
no reservation is suggested to be lowered, and the reason says so.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum, unique
from math import ceil, floor
from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.refusal import count
from k8s_rdma.core.traffic import Losses
from k8s_rdma.core.types import VIRTUAL_DRIVER, Enforcer
from k8s_rdma.core.usage import (
    Distribution,
    InterfaceUse,
    Quantiles,
    UnmetDemand,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

MARGIN = 1.3
"""The part that is added to the largest usual rate: bursts shorter than the resolution are not seen."""

NEEDED_INTERVALS, NEEDED_S = 3, 30.0
"""The least that a suggestion is made of."""

NEAR = 0.1
"""A reservation that differs by no more than this part of itself fits."""

BOUND = 0.01
"""The part of the time at the cap from which on it is not known how much more would be sent."""

HIGH_DAYS, HIGH_SHARE = 6.5, 0.9
MEDIUM_DAYS, MEDIUM_SHARE = 0.95, 0.5
"""The least measured time, and the least part of it that is known, for a confidence."""

_DAY_S = 86_400.0
_LEAST_MBPS = 10

COUNTS_VERBS: Mapping[str, bool] = {
    VIRTUAL_DRIVER: True,
    "mlx5_core": True,
    "igb": True,
    "ixgbe": True,
}
"""Drivers whose counters of a VF are known to have all that it sends, RDMA included.

mlx5_core: the counters of the vport, which firmware counts (`mlx5_eswitch_get_vport_stats`,
drivers/net/ethernet/mellanox/mlx5/core/eswitch.c, 6.1). Virtual PFs, igb and ixgbe have RDMA by software
alone, which sends by the netdev.
"""


@unique
class Trust(IntEnum):
    """The confidence in a suggestion; NONE: there is no suggestion."""

    NONE = 0
    LOW = 1
    MEDIUM = 2
    HIGH = 3


@unique
class Verdict(StrEnum):
    """The relation of a reservation to the traffic that was sent.

    UNMET: less was sent than reserved, although there was demand.
    """

    LOWER = "lower"
    RAISE = "raise"
    FITS = "fits"
    UNMET = "unmet"
    UNKNOWN = "unknown"


class WorkloadName(NamedTuple):
    """Pods with one owner, by the kind of it; a pod without an owner is its own."""

    namespace: str
    kind: str
    name: str

    @property
    def text(self) -> str:
        """Return it as commands print it, for example `research/statefulset/train`."""
        return f"{self.namespace}/{self.kind.lower()}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredInterface:
    """An interface of a pod, with its use.

    driver: of its PF; empty if it is not known.
    min_by, max_by: the enforcer of its reservation and of its cap; None if it is not known, or there is no
        such rate.
    """

    workload: WorkloadName
    use: InterfaceUse
    driver: str = ""
    min_by: Enforcer | None = None
    max_by: Enforcer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """Rates to ask for, in Mb/s; None if there is no suggestion. max_tx_rate_mbps: 0 for no cap.

    covered: the part of the measured time for which no more was sent than the suggested reservation.
    reason: a sentence.
    trust_reasons: a clause for each cause of lower trust.
    """

    verdict: Verdict
    min_tx_rate_mbps: int | None
    max_tx_rate_mbps: int | None
    covered: float | None
    reason: str
    trust: Trust
    trust_reasons: tuple[str, ...] = ()


class InterfaceAdvice(NamedTuple):
    """A suggestion beside the measurements that it is made of."""

    measured: MeasuredInterface
    suggestion: Suggestion


def advise(measured: MeasuredInterface) -> InterfaceAdvice:
    """Suggest rates for an interface."""
    use = measured.use
    trust, doubts = _trust(measured)
    if use.sent is None or use.reserved_mbps is None or trust is Trust.NONE:
        return InterfaceAdvice(measured, _no_suggestion(doubts))
    if use.unmet_reservation_s:
        return InterfaceAdvice(measured, _unmet_suggestion(use, trust, doubts))
    needed_mbps = _needed_mbps(use)
    cap = _cap(use)
    if cap:
        needed_mbps = min(needed_mbps, cap)
    if not needed_mbps and use.reserved_mbps and (why := _silence_doubt(measured)):
        return InterfaceAdvice(measured, _no_suggestion((*doubts, why)))
    is_near = abs(needed_mbps - use.reserved_mbps) <= max(NEAR * use.reserved_mbps, _LEAST_MBPS)
    is_near = is_near and use.distribution.share_up_to(use.reserved_mbps) >= 0.999
    minimum = use.reserved_mbps if is_near else needed_mbps
    verdict = Verdict.FITS if is_near else Verdict.LOWER if minimum < use.reserved_mbps else Verdict.RAISE
    covered = use.distribution.share_up_to(minimum)
    reason = _reason(use, verdict, minimum, covered)
    return InterfaceAdvice(
        measured,
        Suggestion(
            verdict=verdict,
            min_tx_rate_mbps=minimum,
            max_tx_rate_mbps=cap,
            covered=covered,
            reason=reason + _cap_reason(use, cap),
            trust=trust,
            trust_reasons=doubts,
        ),
    )


def _needed_mbps(use: InterfaceUse) -> int:
    """Return the rate that covers all but a thousandth of the time, with the margin; at most the link's."""
    if use.sent is None or not use.sent.maximum:
        return 0
    found = max(rounded_up(MARGIN * use.sent.p999), _LEAST_MBPS)
    return min(found, use.link_mbps or found)


def rounded_up(mbps: float) -> int:
    """Round a rate up to two digits or three, so that equal pods get equal suggestions."""
    step = _LEAST_MBPS if mbps < 1000 else 100 if mbps < 10_000 else 1000
    return ceil(mbps / step - 1e-9) * step


def _cap(use: InterfaceUse) -> int | None:
    """Return the cap to ask for: the present one, twice as much if it binds, or 0 beyond the link."""
    if not use.cap_mbps:
        return use.cap_mbps
    if use.at_cap_share < BOUND:
        return use.cap_mbps
    doubled = 2 * use.cap_mbps
    return 0 if use.link_mbps is not None and doubled >= use.link_mbps else doubled


def _reason(use: InterfaceUse, verdict: Verdict, minimum: int, covered: float) -> str:
    reserved = use.reserved_mbps or 0
    peak = rate_text(use.sent.maximum if use.sent else 0.0)
    window = duration_text(use.coverage.measured_s)
    part = share_text(covered)
    match verdict:
        case Verdict.LOWER if not minimum:
            return f"sent nothing in {window}: {rate_text(reserved)} are held back from others"
        case Verdict.LOWER:
            return (
                f"sent at most {peak} of {rate_text(reserved)} in {window}: {rate_text(minimum)} would have "
                f"covered {part} of the time; {rate_text(reserved - minimum)} are held back from others"
            )
        case Verdict.RAISE:
            beyond = share_text(1 - use.distribution.share_up_to(reserved))
            reserves = f"more than its {rate_text(reserved)}" if reserved else "without a reservation"
            return (
                f"sent {reserves} for {beyond} of {window}, up to {peak}: {rate_text(minimum)} would have "
                f"covered {part} of the time"
            )
        case _ if not reserved:
            return f"sent at most {peak} in {window}: it needs no reservation"
        case _:
            return f"sent at most {peak} of {rate_text(reserved)} in {window}: the reservation fits"


def _cap_reason(use: InterfaceUse, cap: int | None) -> str:
    if not use.cap_mbps or use.at_cap_share < BOUND:
        return ""
    change = f"try {rate_text(cap)}" if cap else "try none"
    part = share_text(use.at_cap_share)
    return (
        f"; it was at its cap of {rate_text(use.cap_mbps)} for {part} of the time, and how much more it "
        f"would send is not known: {change}"
    )


def _unmet_suggestion(use: InterfaceUse, trust: Trust, doubts: tuple[str, ...]) -> Suggestion:
    """Keep a reservation that was not met."""
    reserved = use.reserved_mbps or 0
    unmet_for = duration_text(use.unmet_reservation_s)
    return Suggestion(
        verdict=Verdict.UNMET,
        min_tx_rate_mbps=reserved,
        max_tx_rate_mbps=use.cap_mbps,
        covered=None,
        reason=(
            f"got less than its {rate_text(reserved)} for {unmet_for} while packets were dropped or "
            "sent again: a lower reservation would hide that"
        ),
        trust=trust,
        trust_reasons=doubts,
    )


def _no_suggestion(doubts: tuple[str, ...]) -> Suggestion:
    why = "; ".join(doubts) or "its reservation is not known"
    return Suggestion(
        verdict=Verdict.UNKNOWN,
        min_tx_rate_mbps=None,
        max_tx_rate_mbps=None,
        covered=None,
        reason=f"no suggestion: {why}",
        trust=Trust.NONE,
        trust_reasons=doubts,
    )


def _silence_doubt(measured: MeasuredInterface) -> str:
    """Return why a pod without traffic may need its reservation all the same; empty if it does not."""
    if not _counts_verbs(measured):
        return "it may send by verbs alone"
    if measured.use.coverage.measured_s < MEDIUM_DAYS * _DAY_S:
        return "it sent nothing, which says little of less than a day"
    return ""


def _counts_verbs(measured: MeasuredInterface) -> bool:
    return COUNTS_VERBS.get(measured.driver, False)


def _trust(measured: MeasuredInterface) -> tuple[Trust, tuple[str, ...]]:
    """Judge by time, gaps, restarts, and by whether all that is sent is counted."""
    coverage = measured.use.coverage
    if coverage.is_narrow:
        return Trust.NONE, ("its counters seem to have 32 bits and overflow between two readings",)
    if coverage.intervals < NEEDED_INTERVALS or coverage.measured_s < NEEDED_S:
        found = f"for {duration_text(coverage.measured_s)} in {count(coverage.intervals, 'interval')}"
        needed = f"at least {NEEDED_INTERVALS} intervals and {duration_text(NEEDED_S)} are needed"
        return Trust.NONE, (f"measured {found if coverage.measured_s else 'never'}; {needed}",)
    known_share = min(1.0, coverage.measured_s / coverage.span_s) if coverage.span_s else 1.0
    days = coverage.measured_s / _DAY_S
    trust = (
        Trust.HIGH
        if days >= HIGH_DAYS and known_share >= HIGH_SHARE
        else Trust.MEDIUM
        if days >= MEDIUM_DAYS and known_share >= MEDIUM_SHARE
        else Trust.LOW
    )
    doubts = []
    if days < HIGH_DAYS:
        doubts.append(f"measured for {duration_text(coverage.measured_s)} only")
    if known_share < HIGH_SHARE:
        gaps = count(coverage.gaps, "gap")
        doubts.append(f"{share_text(1 - known_share)} of the time is not known ({gaps})")
    if coverage.restarts:
        often = "once" if coverage.restarts == 1 else f"{coverage.restarts} times"
        doubts.append(f"counters began anew {often}")
    if not _counts_verbs(measured):
        trust = min(trust, Trust.LOW)
        doubts.append(f"whether {measured.driver or 'its driver'} counts RDMA is not known")
    return trust, tuple(doubts)


class FreedBandwidth(NamedTuple):
    """Bandwidth of a PF that suggestions free; below zero if they take more."""

    node: str
    pf: str
    pci: str
    mbps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadAdvice:
    """A suggestion for an interface of all pods of a workload, which have one template.

    pods: with their uses.
    reserved_mbps: of all of them; None if one is not known.
    sent, received: of all together, each pod's time counted.
    freed_mbps: the bandwidth that the suggestion gives back; below zero if it takes more.
    """

    workload: WorkloadName
    interface: str
    pods: tuple[MeasuredInterface, ...]
    reserved_mbps: int | None
    sent: Quantiles | None
    received: Quantiles | None
    at_cap_share: float
    losses: Losses
    losses_at_cap: Losses
    unmet: tuple[UnmetDemand, ...]
    suggestion: Suggestion
    freed_mbps: int
    freed: tuple[FreedBandwidth, ...]


def advise_workloads(measured: Iterable[MeasuredInterface]) -> tuple[WorkloadAdvice, ...]:
    """Suggest rates by workload and interface; those that free most come first."""
    groups: dict[tuple[WorkloadName, str], list[InterfaceAdvice]] = defaultdict(list)
    for entry in measured:
        groups[entry.workload, entry.use.holder.interface].append(advise(entry))
    found = (_workload(name, interface, group) for (name, interface), group in groups.items())
    return tuple(sorted(found, key=lambda entry: (-entry.freed_mbps, entry.workload, entry.interface)))


def _workload(name: WorkloadName, interface: str, group: Sequence[InterfaceAdvice]) -> WorkloadAdvice:
    pods = [entry.measured for entry in group]
    uses = [entry.use for entry in pods]
    sent = Distribution.ordered(part for use in uses for part in use.distribution.parts)
    received = Distribution.ordered(part for use in uses for part in use.received_distribution.parts)
    measured_s = sum(use.coverage.measured_s for use in uses)
    suggestion = _for_all(group, sent)
    freed = tuple(_freed(pods, suggestion.min_tx_rate_mbps))
    return WorkloadAdvice(
        workload=name,
        interface=interface,
        pods=tuple(pods),
        reserved_mbps=_sum(use.reserved_mbps for use in uses),
        sent=sent.quantiles(at_least=max((use.sent.maximum for use in uses if use.sent), default=0.0)),
        received=received.quantiles(),
        at_cap_share=sum(use.at_cap_s for use in uses) / measured_s if measured_s else 0.0,
        losses=_all_lost(use.losses for use in uses),
        losses_at_cap=_all_lost(use.losses_at_cap for use in uses),
        unmet=tuple(sorted((entry for use in uses for entry in use.unmet), key=lambda entry: entry.from_s)),
        suggestion=suggestion,
        freed_mbps=sum(entry.mbps for entry in freed),
        freed=freed,
    )


def _for_all(group: Sequence[InterfaceAdvice], sent: Distribution) -> Suggestion:
    """Choose the suggestion that every pod can have: the largest; of pods that want more, theirs."""
    advised = [entry for entry in group if entry.suggestion.min_tx_rate_mbps is not None]
    if len(group) == 1 or not advised:
        return group[0].suggestion
    leading = max(advised, key=lambda entry: _need(entry.suggestion))
    found = leading.suggestion
    doubts = found.trust_reasons
    if len(advised) < len(group):
        doubts = (*doubts, f"{len(group) - len(advised)} of {len(group)} pods could not be judged")
    caps = [entry.suggestion.max_tx_rate_mbps for entry in advised]
    minimum = found.min_tx_rate_mbps or 0
    return replace(
        found,
        max_tx_rate_mbps=0 if 0 in caps else max((cap for cap in caps if cap is not None), default=None),
        covered=None if found.verdict is Verdict.UNMET else sent.share_up_to(minimum),
        reason=f"{leading.measured.use.holder.pod}, which needs most of {len(group)} pods, {found.reason}",
        trust=Trust.LOW if len(advised) < len(group) else min(entry.suggestion.trust for entry in advised),
        trust_reasons=doubts,
    )


def _need(suggestion: Suggestion) -> tuple[bool, int]:
    return suggestion.verdict is Verdict.UNMET, suggestion.min_tx_rate_mbps or 0


def _freed(pods: Iterable[MeasuredInterface], minimum: int | None) -> Iterator[FreedBandwidth]:
    """Yield the bandwidth by PF that a reservation frees, if all of those pods have it."""
    if minimum is None:
        return
    by_pf: dict[tuple[str, str, str], int] = defaultdict(int)
    for pod in pods:
        holder = pod.use.holder
        if pod.use.reserved_mbps is not None:
            by_pf[holder.node, holder.pf, holder.pci] += pod.use.reserved_mbps - minimum
    yield from (FreedBandwidth(*pf, mbps) for pf, mbps in sorted(by_pf.items()) if mbps)


def freed_by_pf(advice: Iterable[WorkloadAdvice]) -> tuple[FreedBandwidth, ...]:
    """Add up the bandwidth that suggestions free, by PF, the most first."""
    by_pf: dict[tuple[str, str, str], int] = defaultdict(int)
    for entry in advice:
        for freed in entry.freed:
            by_pf[freed.node, freed.pf, freed.pci] += freed.mbps
    found = (FreedBandwidth(*pf, mbps) for pf, mbps in by_pf.items() if mbps)
    return tuple(sorted(found, key=lambda entry: (-entry.mbps, entry)))


def _sum(values: Iterable[int | None]) -> int | None:
    """Add up; None if one is not known."""
    found = list(values)
    known_values = [value for value in found if value is not None]
    return sum(known_values) if len(known_values) == len(found) else None


def _all_lost(losses: Iterable[Losses]) -> Losses:
    """Add up the counts that are known; None if no pod's is."""
    found = list(losses)
    sums = []
    for name in Losses._fields:
        counts = [value for entry in found if (value := getattr(entry, name)) is not None]
        sums.append(sum(counts) if counts else None)
    return Losses(*sums)


def rate_text(mbps: float) -> str:
    """Format a rate in two digits or three: `9.1 Gb/s`, `300 Mb/s`."""
    if mbps >= 1000:
        return f"{mbps / 1000:.1f}".removesuffix(".0") + " Gb/s"
    return f"{mbps:.0f} Mb/s" if mbps >= 10 or mbps == int(mbps) else f"{mbps:.1f} Mb/s"


def share_text(share: float) -> str:
    """Format a part of a whole in tenths of a per cent; 0 and 100 % only if they are exact."""
    tenths = floor(1000 * share + 1e-9) if share > 0.5 else ceil(1000 * share - 1e-9)
    return f"{tenths / 10:g} %"


def duration_text(seconds: float) -> str:
    """Format a time span: `45 s`, `10 minutes`, `3 hours`, `7 days`."""
    whole = round(seconds)
    for unit, length in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if whole >= 2 * length or (whole >= 0.95 * length and unit != "minute"):
            return count(round(whole / length), unit)
    return f"{whole} s"
