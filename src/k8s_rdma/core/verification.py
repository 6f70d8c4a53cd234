"""The trials that show whether a PF keeps its reservations and caps, and how their figures are judged.

Rates are in Mb/s of Ethernet frames, as caps count. A site sends the traffic (`verify.node`,
`verify.cluster`); the decisions from its figures are here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, unique
from typing import TYPE_CHECKING, NoReturn, Protocol

from k8s_rdma.core.types import Enforcer, PciAddress
from k8s_rdma.errors import K8sRdmaError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TOLERANCE = 0.1
"""A rate holds within this part of itself. Cards count up to 24 bytes more a frame, 1.6 % of full ones."""

SHARES = (0.5, 0.2, 0.1)
"""Parts of a PF's unreserved bandwidth that three competing interfaces reserve; the rest is free for all."""

CAP_SHARE = 0.1
"""The part of a link that is the cap by default: low enough for one processor to exceed it without a cap."""

MAX_ATTEMPTS = 3
"""A busy machine carries less: too little is measured again, too much never is."""

_ROOM = 1.5
"""A cap shows only if the machine carries this many times the cap without one."""

_SMALLEST_MBPS = 10
"""Smaller reservations disappear in the tolerance of the larger ones."""

_ACCOUNTED = "accounted only: nothing enforces it"
_BYPASSED = "a cap by software does not cover a card's verbs"


@unique
class Result(StrEnum):
    """The result of a check. UNENFORCED: the rate is not enforced, and the node says so."""

    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    UNENFORCED = "unclaimed"
    UNMEASURED = "unmeasured"


@unique
class Check(StrEnum):
    """Comparison of a rate with a figure. RECEIVED: towards a capped interface, which may receive more."""

    RESERVATION = "reservation"
    CAP = "cap"
    RECEIVED = "received under a cap"


@unique
class TrafficKind(StrEnum):
    """Traffic of a trial: TCP connections, or RDMA writes."""

    TCP = "tcp"
    VERBS = "verbs"


class UnmeasuredError(K8sRdmaError):
    """A trial that could not be made; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceRates:
    """Reservation and cap of an interface; 0 for no rate."""

    min_mbps: int = 0
    max_mbps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PfFacts:
    """A PF before its trials.

    free_mbps: for pods that ask by annotation.
    holders: pods on it.
    vendor: PCI vendor and device.
    firmware: empty if unknown.
    link_mbps: None if unknown.
    rdma: whether its VFs have RDMA devices, so that verbs are to be measured.
    """

    name: str
    pci: PciAddress
    driver: str
    vendor: str = ""
    firmware: str = ""
    link_mbps: int | None
    free_mbps: int
    rdma: bool = False
    holders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Traffic from interfaces with these rates on a PF to one interface without rates.

    reverse: the other way, from the interface without rates to the only other one.
    """

    pf: PfFacts
    senders: tuple[InterfaceRates, ...]
    traffic: TrafficKind = TrafficKind.TCP
    reverse: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """The traffic that one interface sent, or received in a reverse trial.

    min_by, max_by: the enforcer of its rates, as its node reports it; None if that does not cover this
        traffic.
    cap_mbps: the cap as programmed, which is rounded down to a rate that the driver takes.
    """

    mbps: float
    min_by: Enforcer | None = None
    max_by: Enforcer | None = None
    cap_mbps: int = 0


class Site(Protocol):
    """The place of trials: interfaces come by the normal way, and are given back."""

    def run(self, trial: Trial) -> tuple[Flow, ...]:
        """Make a trial; a flow for each sender. UnmeasuredError if it cannot be made."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutcome:
    """One row of a report.

    mbps: measured, None if it was not.
    enforced: by the node's report.
    rate_mbps: the reservation or the cap.
    """

    check: Check
    traffic: TrafficKind
    rate_mbps: int
    enforced: Enforcer | None = None
    mbps: float | None = None
    result: Result
    why: str = ""


def verify_pf(site: Site, pf: PfFacts, *, cap_mbps: int = 0) -> Iterator[TrialOutcome]:
    """Make the trials of a PF, and yield each outcome as soon as it is known. cap_mbps: 0 for the default.

    A site's error other than UnmeasuredError ends them.
    """
    carried_mbps = 0.0
    for outcome in _reservations(site, pf):
        carried_mbps += outcome.mbps or 0.0
        yield outcome
    cap = cap_mbps or max(1, round(CAP_SHARE * (pf.link_mbps or 0)))
    yield from _cap(site, pf, cap, carried_mbps)
    if pf.rdma:
        yield from _cap(site, pf, cap, 0.0, TrafficKind.VERBS)


def _reservations(site: Site, pf: PfFacts) -> Iterator[TrialOutcome]:
    """Let three interfaces compete for the PF."""
    reserved = [int(share * pf.free_mbps) for share in SHARES]
    trial = Trial(pf=pf, senders=tuple(InterfaceRates(min_mbps=mbps) for mbps in reserved))
    try:
        _require_link(pf)
        if min(reserved) < _SMALLEST_MBPS:
            _refuse(f"{pf.free_mbps} Mb/s are unreserved, too few for three reservations")
        for _ in range(MAX_ATTEMPTS):
            flows = site.run(trial)
            judged = tuple(judge_reservations(reserved, flows, pf.free_mbps))
            if all(result in (Result.PASS, Result.UNENFORCED) for result, _ in judged):
                break
    except UnmeasuredError as error:
        flows, judged = (), ((Result.UNMEASURED, error.message),) * len(reserved)
    for index, (mbps, (result, why)) in enumerate(zip(reserved, judged, strict=True)):
        yield TrialOutcome(
            check=Check.RESERVATION,
            traffic=trial.traffic,
            rate_mbps=mbps,
            enforced=flows[index].min_by if flows else None,
            mbps=flows[index].mbps if flows else None,
            result=result,
            why=why,
        )


def _require_link(pf: PfFacts) -> None:
    if pf.link_mbps is None:
        _refuse("the link's speed is unknown: is it up?")


def _refuse(why: str) -> NoReturn:
    raise UnmeasuredError(why)


def judge_reservations(
    reserved: Sequence[int], flows: Sequence[Flow], free_mbps: int
) -> Iterator[tuple[Result, str]]:
    """Judge interfaces that sent together. free_mbps: the rate that they fill if they compete at all."""
    total = sum(flow.mbps for flow in flows)
    is_full = total >= (1 - TOLERANCE) * free_mbps
    for mbps, flow in zip(reserved, flows, strict=True):
        holds = flow.mbps >= (1 - TOLERANCE) * mbps
        if flow.min_by in (None, "accounted"):
            yield Result.UNENFORCED, _ACCOUNTED
        elif not is_full:
            yield (
                Result.UNMEASURED,
                f"all three sent {total:.0f} of {free_mbps} Mb/s: this machine does not fill the link",
            )
        elif holds:
            yield Result.PASS, ""
        else:
            yield Result.FAIL, "less than reserved while others had more"


def _cap(
    site: Site, pf: PfFacts, cap_mbps: int, carried_mbps: float, traffic: TrafficKind = TrafficKind.TCP
) -> Iterator[TrialOutcome]:
    """Let an interface with a cap send, and receive. carried_mbps: sent before without a cap."""
    trial = Trial(pf=pf, senders=(InterfaceRates(max_mbps=cap_mbps),), traffic=traffic)
    reverse = Trial(pf=pf, senders=trial.senders, traffic=traffic, reverse=True)
    try:
        _require_link(pf)
        [received] = site.run(reverse)
        for _ in range(MAX_ATTEMPTS):
            [sent] = site.run(trial)
            result, why = judge_cap(sent, cap_mbps, max(carried_mbps, received.mbps))
            if result in (Result.PASS, Result.UNENFORCED) or sent.mbps > cap_mbps:
                break
    except UnmeasuredError as error:
        yield TrialOutcome(
            check=Check.CAP,
            traffic=traffic,
            rate_mbps=cap_mbps,
            result=Result.UNMEASURED,
            why=error.message,
        )
        return
    yield TrialOutcome(
        check=Check.CAP,
        traffic=traffic,
        rate_mbps=sent.cap_mbps or cap_mbps,
        enforced=sent.max_by,
        mbps=sent.mbps,
        result=result,
        why=why,
    )
    yield TrialOutcome(
        check=Check.RECEIVED,
        traffic=traffic,
        rate_mbps=cap_mbps,
        mbps=received.mbps,
        result=Result.UNENFORCED,
        why="caps are of what is sent",
    )


def judge_cap(flow: Flow, cap_mbps: int, carried_mbps: float) -> tuple[Result, str]:
    """Judge an interface that sent alone. carried_mbps: the rate that the machine carries without a cap."""
    cap = flow.cap_mbps or cap_mbps
    if flow.max_by in (None, "accounted"):
        return Result.UNENFORCED, _ACCOUNTED if flow.max_by else _BYPASSED
    if flow.mbps > (1 + TOLERANCE) * cap:
        return Result.FAIL, "more than the cap"
    if carried_mbps < _ROOM * cap:
        return (
            Result.UNMEASURED,
            f"without a cap the machine carries {carried_mbps:.0f} Mb/s: choose a lower one with --cap",
        )
    if flow.mbps < (1 - TOLERANCE) * cap:  # no more than the cap, but no proof of it either
        return Result.UNMEASURED, "less than the cap: this machine is busy, or the card limits more than that"
    return Result.PASS, ""


def exit_status(outcomes: Sequence[TrialOutcome]) -> int:
    """0 when every claim holds, 1 when one does not, 2 when there is one that could not be measured."""
    results = {outcome.result for outcome in outcomes}
    if Result.FAIL in results:
        return 1
    return 2 if Result.UNMEASURED in results or not results else 0
