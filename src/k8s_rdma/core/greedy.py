"""One interface after the other where PFs differ in what they take, and at what cost.

What finds almost every placement, and one after a strategy's own heart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.strategy import Standing, preference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from k8s_rdma.core.offers import Offer
    from k8s_rdma.core.rooms import Work
    from k8s_rdma.core.strategy import Strategy
    from k8s_rdma.core.weights import Load


PREFERENCE = 2
"""Work units that it takes to know how much a strategy would rather have an interface on an offer."""


class Bin:
    """An offer that fills up, and what one more interface of the present kind takes of it.

    cost: 0 for a kind that it does not take. after: its load with one more, None until that was asked for.
    """

    __slots__ = ("after", "cost", "index", "load", "mbps", "offer", "vfs")

    def __init__(self, index: int, offer: Offer) -> None:
        self.index = index
        self.offer = offer
        self.mbps, self.vfs = offer.room
        self.load = offer.round_robin.load() if offer.round_robin else None
        self.cost = 0
        self.after: Load | None = None

    def turn_to(self, kind: int) -> bool:
        """Make ready for interfaces of the kind; whether one may fit."""
        cost = self.offer.costs[kind]
        self.cost, self.after = cost or 0, None
        return cost is not None and self._has_room()

    def accepts(self, work: Work) -> bool:
        """Report whether one more of the kind fits; what that takes to find out goes off `work`."""
        if not self._has_room():
            return False
        round_robin, load = self.offer.round_robin, self.load
        if round_robin is None or load is None:
            return True
        if self.after is None:
            if self.cost > load.largest:  # all minima are to be weighed anew
                work.spend(1 + len(round_robin.mins) // 2)
            self.after = round_robin.join(load, self.cost)
        return self.after.is_within_limit

    def add(self, number: int = 1) -> None:
        """Take more of the kind; more than one only where rates are no weights."""
        self.mbps -= self.cost * number
        self.vfs -= number
        self.load, self.after = self.after, None

    def room_for(self, number: int) -> int:
        """How many of so many it takes at once; where rates are weights, each has to be asked about."""
        if self.load is not None:
            return 1
        return min(number, self.vfs, self.mbps // self.cost if self.cost else number)

    def preference(self, strategy: Strategy) -> tuple[int, ...]:
        """See `core.strategy`; of one more of the kind."""
        standing = Standing(self.mbps, self.vfs, self.offer.pf.link_mbps or 0, self.offer.pf.capacity_vfs)
        return preference(strategy, standing, self.cost)

    def _has_room(self) -> bool:
        return self.cost <= self.mbps and self.vfs > 0


def best_fit(kind_counts: Iterable[tuple[int, int]], offers: Sequence[Offer], work: Work) -> list[int] | None:
    """Give each interface to the offer it leaves least bandwidth in; None when one fits nowhere.

    kind_counts: kinds and how many of each. Returns the index of an offer for each interface; ties as in
    `packing.best_fit`. OutOfWorkError on the way.
    """
    return _fit(kind_counts, offers, work, _room)


def preferred_fit(
    kind_counts: Iterable[tuple[int, int]], offers: Sequence[Offer], strategy: Strategy, work: Work
) -> list[int] | None:
    """As `best_fit`, but give each to the offer that the strategy would rather have it on."""

    def order(candidate: Bin) -> tuple[int, ...]:
        return *candidate.preference(strategy), candidate.index

    return _fit(kind_counts, offers, work, order, weighed=PREFERENCE)


def _fit(
    kind_counts: Iterable[tuple[int, int]],
    offers: Sequence[Offer],
    work: Work,
    order: Callable[[Bin], tuple[int, ...]],
    weighed: int = 0,
) -> list[int] | None:
    """weighed: work units that it takes to put one offer in order, 0 for half of one.

    What comes first by its room still does with one more interface of the kind on it.
    """
    bins = [Bin(index, offer) for index, offer in enumerate(offers)]
    chosen: list[int] = []
    for kind, number in kind_counts:
        work.spend(1 + len(bins) // 2)
        takers = [candidate for candidate in bins if candidate.turn_to(kind)]
        remaining = number
        while remaining:
            work.spend(1 + (weighed * len(takers) or len(takers) // 2))
            takers.sort(key=order)
            best = next((taker for taker in takers if taker.accepts(work)), None)
            if best is None:
                return None
            batch = best.room_for(remaining) if order is _room else 1
            best.add(batch)
            chosen += [best.index] * batch
            remaining -= batch
    return chosen


def _room(candidate: Bin) -> tuple[int, int, int]:
    return candidate.mbps, candidate.vfs, candidate.index
