"""Traffic of pods' interfaces: rates between two samples of a node's counters.

A VF's counters count from when its pod got the interface, so that they begin at 0 with each holder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from k8s_rdma.core.types import BITS_PER_MEGABIT, MAX_RATE_MBPS

DISTINCT_S = 1.0
"""Samples that are closer than this are one: an agent takes one in 15 s for all its readers."""

_BITS_PER_BYTE = 8


class VfHolder(NamedTuple):
    """An interface that a pod holds. pf, pci: name and address of its PF. interface: its name in the pod."""

    pf: str
    pci: str
    vf: int
    namespace: str
    pod: str
    interface: str


class ByteCounts(NamedTuple):
    """Bytes by the pod since it has the interface."""

    sent: int
    received: int


class ProgrammedRates(NamedTuple):
    """Rates that are programmed for an interface, in Mb/s. cap_mbps: 0 for no cap."""

    reserved_mbps: int
    cap_mbps: int


class MeanRates(NamedTuple):
    """Means between two samples, in Mb/s."""

    sent_mbps: float
    received_mbps: float


class Losses(NamedTuple):
    """Packets that were dropped, and events after which they were sent again; None if not counted."""

    dropped: int | None = None
    retransmitted: int | None = None


NO_LOSSES = Losses()


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterSample:
    """The counters of a node's VFs at one time, in seconds.

    programmed: the rates of the interfaces that pods hold.
    losses: of packets that were to be sent, if they were read.
    """

    sampled_at: float
    counts: Mapping[VfHolder, ByteCounts]
    programmed: Mapping[VfHolder, ProgrammedRates]
    losses: Mapping[VfHolder, Losses] = field(default_factory=dict)

    def rates(self, earlier: CounterSample) -> dict[VfHolder, MeanRates]:
        """Compute the rates since an earlier sample, of those VFs for which they are known.

        A VF has no rate yet if it had no holder or another one then, or if a counter went back, which means
        that it was reset. A rate above that of any link means that a counter leapt, and is left out.
        """
        seconds = self.sampled_at - earlier.sampled_at
        rates = {}
        for holder, now in self.counts.items():
            former = earlier.counts.get(holder)
            if former is None or now.sent < former.sent or now.received < former.received:
                continue
            found = MeanRates(
                _mbps(now.sent - former.sent, seconds), _mbps(now.received - former.received, seconds)
            )
            if max(found) <= MAX_RATE_MBPS:
                rates[holder] = found
        return rates


def _mbps(count: int, seconds: float) -> float:
    return round(_BITS_PER_BYTE * count / seconds / BITS_PER_MEGABIT, 3)


@dataclass(slots=True)
class Meter:
    """The last two distinct samples of a node. earliest: the one that came before both."""

    latest: CounterSample | None = None
    earlier: CounterSample | None = None
    earliest: CounterSample | None = None

    def add(self, sample: CounterSample | None) -> None:
        """Take a sample; None discards the earlier samples."""
        if sample is None or self.latest is None:
            self.latest, self.earlier, self.earliest = sample, None, None
        elif sample.sampled_at - self.latest.sampled_at >= DISTINCT_S:
            self.latest, self.earlier, self.earliest = sample, self.latest, self.earlier

    def rates(self) -> dict[VfHolder, MeanRates]:
        """Compute the rates between the two; empty before the second.

        A counter that went back, and then returned to its value, has no rate: some drivers report a 0 now and
        then, after which all that was ever sent would seem to be sent at once.
        """
        if self.latest is None or self.earlier is None:
            return {}
        return {
            holder: rates
            for holder, rates in self.latest.rates(self.earlier).items()
            if not self._is_back(holder)
        }

    def _is_back(self, holder: VfHolder) -> bool:
        counts = [
            sample.counts.get(holder) if sample else None
            for sample in (self.earliest, self.earlier, self.latest)
        ]
        if None in counts:
            return False
        return any(dip < start <= now for start, dip, now in zip(*filter(None, counts), strict=True))
