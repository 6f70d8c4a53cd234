"""Best fit where PFs differ in what they take, and at what cost: what finds almost every placement."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from k8s_rdma.core.weights import Load

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from k8s_rdma.core.offers import Offer


class _Bin:
    """An offer that fills up, and what one more interface of the present kind takes of it.

    cost: None where it takes none of that kind, or none any more. share: of its scheduler; 0 without one.
    """

    __slots__ = ("at", "cost", "largest", "limit", "load", "mbps", "offer", "share", "total", "vfs")

    def __init__(self, at: int, offer: Offer) -> None:
        self.at = at
        self.offer = offer
        self.mbps, self.vfs = offer.room
        self.load = offer.scheduler.load() if offer.scheduler else None
        self.cost: int | None = None
        self.share = self.total = self.limit = self.largest = 0

    def turn_to(self, kind: int) -> None:
        """Make ready for interfaces of the kind."""
        self.cost = self.offer.costs[kind]
        if self.cost is not None and (self.cost > self.mbps or not self.vfs):
            self.cost = None
        scheduler, load = self.offer.scheduler, self.load
        if scheduler is None or load is None or self.cost is None:
            return
        after = scheduler.join(load, self.cost)
        before = load if after.largest == load.largest else scheduler.load(after.largest)
        self.largest, self.total, self.limit = after.largest, before.total, after.limit
        self.share = after.total - before.total

    @property
    def fits(self) -> bool:
        """Whether one more of the kind fits."""
        if self.cost is None or self.cost > self.mbps or not self.vfs:
            return False
        return self.load is None or self.total + self.share <= self.limit

    def take(self, cost: int) -> None:
        """Take one more of the kind."""
        self.mbps -= cost
        self.vfs -= 1
        if self.load is not None:
            self.total += self.share
            self.load = Load(self.largest, self.total, self.limit)


def best_fit(wanted: Iterable[tuple[int, int]], made: Sequence[Offer]) -> list[int] | None:
    """Give each interface to the offer it leaves least bandwidth in; None when one fits nowhere.

    wanted: kinds and how many of each. Returns the index of an offer for each interface; ties as in
    `packing.best_fit`.
    """
    bins = [_Bin(at, offer) for at, offer in enumerate(made)]
    chosen: list[int] = []
    for kind, number in wanted:
        for each in bins:
            each.turn_to(kind)
        takers = [each for each in bins if each.fits]
        for _ in range(number):
            best = _tightest(takers)
            if best is None or best.cost is None:
                return None
            best.take(best.cost)
            chosen.append(best.at)
    return chosen


def _tightest(takers: Iterable[_Bin]) -> _Bin | None:
    best, least, fewest = None, inf, inf
    for each in takers:
        free = each.mbps
        if (free < least or (free == least and each.vfs < fewest)) and each.fits:
            best, least, fewest = each, free, each.vfs
    return best
