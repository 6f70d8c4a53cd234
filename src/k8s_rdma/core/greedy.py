"""One interface after the other where PFs differ in what they take, and at what cost.

What finds almost every placement, and one after a strategy's own heart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.preference import Standing, preference

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

    __slots__ = ("after", "at", "cost", "load", "mbps", "offer", "vfs")

    def __init__(self, at: int, offer: Offer) -> None:
        self.at = at
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

    def takes(self, work: Work) -> bool:
        """Whether one more of the kind fits; what that takes to find out goes off `work`."""
        if not self._has_room():
            return False
        round_robin, load = self.offer.round_robin, self.load
        if round_robin is None or load is None:
            return True
        if self.after is None:
            if self.cost > load.largest:  # all minima are to be weighed anew
                work.spend(1 + len(round_robin.mins) // 2)
            self.after = round_robin.join(load, self.cost)
        return self.after.keeps

    def take(self) -> None:
        """Take one more of the kind."""
        self.mbps -= self.cost
        self.vfs -= 1
        self.load, self.after = self.after, None

    def preference(self, strategy: Strategy) -> tuple[int, ...]:
        """See `core.preference`; of one more of the kind."""
        there = Standing(self.mbps, self.vfs, self.offer.pf.link_mbps or 0, self.offer.pf.capacity_vfs)
        return preference(strategy, there, self.cost)

    def _has_room(self) -> bool:
        return self.cost <= self.mbps and self.vfs > 0


def best_fit(wanted: Iterable[tuple[int, int]], made: Sequence[Offer], work: Work) -> list[int] | None:
    """Give each interface to the offer it leaves least bandwidth in; None when one fits nowhere.

    wanted: kinds and how many of each. Returns the index of an offer for each interface; ties as in
    `packing.best_fit`. OutOfWorkError on the way.
    """
    return _fit(wanted, made, work, _room)


def preferred_fit(
    wanted: Iterable[tuple[int, int]], made: Sequence[Offer], strategy: Strategy, work: Work
) -> list[int] | None:
    """As `best_fit`, but give each to the offer that the strategy would rather have it on."""

    def order(each: Bin) -> tuple[int, ...]:
        return *each.preference(strategy), each.at

    return _fit(wanted, made, work, order, weighed=PREFERENCE)


def _fit(
    wanted: Iterable[tuple[int, int]],
    made: Sequence[Offer],
    work: Work,
    order: Callable[[Bin], tuple[int, ...]],
    weighed: int = 0,
) -> list[int] | None:
    """weighed: work units that it takes to put one offer in order."""
    bins = [Bin(at, offer) for at, offer in enumerate(made)]
    chosen: list[int] = []
    for kind, number in wanted:
        takers = [each for each in bins if each.turn_to(kind)]
        for _ in range(number):
            work.spend(weighed * len(takers))
            takers.sort(key=order)
            best = next((each for each in takers if each.takes(work)), None)
            if best is None:
                return None
            best.take()
            chosen.append(best.at)
    return chosen


def _room(each: Bin) -> tuple[int, int, int]:
    return each.mbps, each.vfs, each.at
