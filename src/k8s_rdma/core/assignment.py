"""A PF for each of a request's interfaces, where PFs also differ in what they take, and at what cost.

So they do where some cannot program a rate that must be, where drivers round differently, and where
minimum rates are weights: then what an interface takes depends on the others. The interfaces come in
falling order of their reservations, on which `Scheduler.join` relies: once the first has joined, every
further one only takes from the others, so that what fails now will not hold later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.arrangement import arrange
from k8s_rdma.core.rooms import OutOfWorkError, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from k8s_rdma.core.offers import Offer
    from k8s_rdma.core.rooms import Work
    from k8s_rdma.core.weights import Load


class _Berth(NamedTuple):
    """What is left of an offer after some interfaces went there."""

    mbps: int
    vfs: int
    load: Load | None


_Berths = tuple[_Berth, ...]


def assign(kinds: Sequence[int], made: Sequence[Offer], work: Work) -> list[int] | Verdict:
    """An offer's index for each interface, given as its kind; kinds rise, and their reservations fall.

    The usual first: best fit, then any packing of the cheapest costs that happens to hold (if there is
    none, that is the proof that nothing holds), then a search of everything.
    """
    board = _Board(kinds, made)
    chosen = board.best_fit()
    if chosen is not None:
        return chosen
    if None in board.cheapest:
        return Verdict.IMPOSSIBLE
    costs = [board.cheapest[kind] or 0 for kind in kinds]
    order = sorted(range(len(kinds)), key=lambda at: -costs[at])
    packed = arrange([costs[at] for at in order], [offer.room for offer in made], work)
    if isinstance(packed, Verdict):
        return packed
    found = dict(zip(order, packed, strict=True))
    packed = [found[at] for at in range(len(kinds))]
    if board.holds(packed):
        return packed
    try:
        return board.search(work) or Verdict.IMPOSSIBLE
    except OutOfWorkError:
        return Verdict.UNDECIDED


@dataclass(slots=True)
class _Level:
    """An interface under way: the berths before it, and the offers that it has not tried yet."""

    berths: _Berths
    floor: int
    tries: Iterator[int]
    tried: int = -1


class _Board:
    """Interfaces by kind, before the offers."""

    def __init__(self, kinds: Sequence[int], made: Sequence[Offer]) -> None:
        self.kinds = kinds
        self.made = made
        self.start: _Berths = tuple(
            _Berth(offer.room.mbps, offer.room.vfs, offer.scheduler.load() if offer.scheduler else None)
            for offer in made
        )
        taken = [[offer.costs[kind] for offer in made] for kind in range(max(kinds) + 1)]
        self.cheapest = [min((cost for cost in row if cost is not None), default=None) for row in taken]
        self._left = [0] * (len(kinds) + 1)
        for at in reversed(range(len(kinds))):
            self._left[at] = self._left[at + 1] + (self.cheapest[kinds[at]] or 0)
        self._alike = [
            next(at for at, other in enumerate(made) if _same_terms(offer, other)) for offer in made
        ]

    def best_fit(self) -> list[int] | None:
        """Each where it leaves least bandwidth; ties as in `packing.best_fit`. None when one fits nowhere."""
        berths = list(self.start)
        chosen: list[int] = []
        for kind in self.kinds:
            best, least = -1, inf
            for at, berth in enumerate(berths):
                free = berth.mbps
                tighter = free < least or (free == least and berth.vfs < berths[best].vfs)
                if tighter and self._after(berth, at, kind) is not None:
                    best, least = at, free
            after = self._after(berths[best], best, kind) if best >= 0 else None
            if after is None:
                return None
            berths[best] = after
            chosen.append(best)
        return chosen

    def holds(self, chosen: Sequence[int]) -> bool:
        """Whether every offer takes what is to go there."""
        berths: list[_Berth] = list(self.start)
        for at, kind in zip(chosen, self.kinds, strict=True):
            after = self._after(berths[at], at, kind)
            if after is None:
                return False
            berths[at] = after
        return True

    def _after(self, berth: _Berth, at: int, kind: int) -> _Berth | None:
        """The berth with one more interface of the kind; None when that does not fit."""
        cost = self.made[at].costs[kind]
        if cost is None or not berth.vfs or cost > berth.mbps:
            return None
        load = berth.load
        scheduler = self.made[at].scheduler
        if load is not None and scheduler is not None:
            load = scheduler.join(load, cost)
            if not load.keeps:
                return None
        return _Berth(berth.mbps - cost, berth.vfs - 1, load)

    def search(self, work: Work) -> list[int] | None:
        """Depth first, remembering what failed; None when nothing holds. OutOfWorkError on the way."""
        failed: set[tuple[int, int, _Berths]] = set()
        levels = [self._level(0, 0, self.start)]
        while levels:
            level = levels[-1]
            at = len(levels) - 1
            work.spend(4 + len(self.made))
            step = self._step(level, at)
            if step is None:
                failed.add((at, level.floor, level.berths))
                levels.pop()
                continue
            if at + 1 == len(self.kinds):
                return [each.tried for each in levels]
            floor = level.tried if self.kinds[at + 1] == self.kinds[at] else 0
            if self._room_for(at + 1, step) and (at + 1, floor, step) not in failed:
                levels.append(self._level(at + 1, floor, step))
        return None

    def _level(self, at: int, floor: int, berths: _Berths) -> _Level:
        """Interfaces of one kind go to offers in order, so that no two levels differ by their names alone."""
        kind = self.kinds[at]
        seen: set[tuple[int, _Berth]] = set()
        tries = []
        for offer in range(floor, len(berths)):
            key = self._alike[offer], berths[offer]
            if self.made[offer].costs[kind] is not None and key not in seen:
                seen.add(key)
                tries.append(offer)
        tries.sort(key=lambda offer: berths[offer][:2])
        return _Level(berths, floor, iter(tries))

    def _step(self, level: _Level, at: int) -> _Berths | None:
        for offer in level.tries:
            after = self._after(level.berths[offer], offer, self.kinds[at])
            if after is not None:
                level.tried = offer
                return (*level.berths[:offer], after, *level.berths[offer + 1 :])
        return None

    def _room_for(self, at: int, berths: _Berths) -> bool:
        mbps = sum([berth.mbps for berth in berths])
        vfs = sum([berth.vfs for berth in berths])
        return self._left[at] <= mbps and len(self.kinds) - at <= vfs


def _same_terms(one: Offer, other: Offer) -> bool:
    return one.costs == other.costs and one.scheduler == other.scheduler
