"""A PF for each of a request's interfaces, where PFs also differ in what they take, and at what cost.

So they do where some cannot program a rate that must be, where drivers round differently, and where
minimum rates are weights: then what an interface takes depends on the others. Interfaces go to such a PF
in falling order of their reservations, on which `RoundRobin.join` relies: once the first has joined, every
further one only takes from the others, so that what fails now will not hold later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.greedy import best_fit
from k8s_rdma.core.matching import dealt, match_counts
from k8s_rdma.core.packing import arrange
from k8s_rdma.core.rooms import OutOfWorkError, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from k8s_rdma.core.offers import Offer
    from k8s_rdma.core.rooms import Work
    from k8s_rdma.core.weights import Load

_BY_NUMBERS_PERCENT = 70
"""Of the work, at most, for what is cheaper than a search of everything."""


def assign(classes: Sequence[int], offers: Sequence[Offer], work: Work) -> list[int] | Verdict:
    """An offer's index for each interface, given as its class; the reservations of classes fall.

    The usual first: best fit, then what numbers alone say (`core.matching`), exact for most requests of few
    rates, then what can be made of that by changing places, then any packing of the cheapest costs that
    happens to hold (if there is none, that is the proof that nothing holds), then a search of everything.
    OutOfWorkError on the way.
    """
    work.spend(len(classes) + len(offers[0].costs) * len(offers) // 4)
    order = _order(classes, offers)
    chosen = _assign([classes[index] for index in order], offers, work)
    if isinstance(chosen, Verdict):
        return chosen
    found = dict(zip(order, chosen, strict=True))
    return [found[index] for index in range(len(classes))]


def _order(kinds: Sequence[int], offers: Sequence[Offer]) -> Sequence[int]:
    """Where no order is demanded, the interfaces that fewest PFs take come first."""
    if any(offer.round_robin for offer in offers):
        return sorted(range(len(kinds)), key=kinds.__getitem__)
    takers = {kind: sum(offer.costs[kind] is not None for offer in offers) for kind in set(kinds)}
    return sorted(range(len(kinds)), key=lambda index: (takers[kinds[index]], kinds[index]))


def _assign(kinds: Sequence[int], offers: Sequence[Offer], work: Work) -> list[int] | Verdict:
    """OutOfWorkError on the way."""
    numbers = Counter(kinds)
    least = [min((cost for cost in row if cost is not None), default=None) for row in _rows(offers)]
    if any(least[kind] is None for kind in numbers) or _too_much(numbers, least, offers):
        return Verdict.IMPOSSIBLE
    chosen = best_fit([(kind, len(list(group))) for kind, group in groupby(kinds)], offers, work)
    if chosen is not None:
        return chosen
    costs = [least[kind] or 0 for kind in kinds]
    board = _Board(kinds, offers, costs)
    try:
        with work.share(_BY_NUMBERS_PERCENT) as share:
            found = match_counts(numbers, offers, share)
            if isinstance(found, Verdict):
                return found
            chosen = dealt(kinds, found)
            if board.holds(chosen):
                return chosen
    except OutOfWorkError:
        pass
    return _searched(costs, offers, board, work)


def _searched(
    costs: Sequence[int], offers: Sequence[Offer], board: _Board, work: Work
) -> list[int] | Verdict:
    """By what packing the least costs says, and by a search of everything."""
    falling = sorted(range(len(costs)), key=costs.__getitem__, reverse=True)
    packed = arrange([costs[index] for index in falling], [offer.room for offer in offers], work)
    if isinstance(packed, Verdict):
        return packed
    homes = dict(zip(falling, packed, strict=True))
    chosen = [homes[position] for position in range(len(costs))]
    if board.holds(chosen):
        return chosen
    return board.search(work) or Verdict.IMPOSSIBLE


def _too_much(numbers: Mapping[int, int], least: Sequence[int | None], offers: Sequence[Offer]) -> bool:
    """Report whether sums alone exclude it."""
    if numbers and sum(numbers.values()) > sum(offer.room.vfs for offer in offers):
        return True
    mbps = sum((least[kind] or 0) * number for kind, number in numbers.items())
    return mbps > sum(offer.room.mbps for offer in offers)


def _rows(offers: Sequence[Offer]) -> list[tuple[int | None, ...]]:
    """The costs of each kind with all offers."""
    return list(zip(*(offer.costs for offer in offers), strict=True))


class _Berth(NamedTuple):
    """What is left of an offer after some interfaces went there."""

    mbps: int
    vfs: int
    load: Load | None


_Berths = tuple[_Berth, ...]


@dataclass(slots=True)
class _Level:
    """An interface under way: the berths before it, and the offers that it has not tried yet."""

    berths: _Berths
    floor: int
    tries: Iterator[int]
    tried: int = -1


class _Board:
    """Interfaces by kind, before the offers. costs: what each costs at least."""

    def __init__(self, kinds: Sequence[int], offers: Sequence[Offer], costs: Sequence[int]) -> None:
        self._kinds = kinds
        self._offers = offers
        self._start: _Berths = tuple(
            _Berth(offer.room.mbps, offer.room.vfs, offer.round_robin.load() if offer.round_robin else None)
            for offer in offers
        )
        self._remaining_costs = [*accumulate(reversed(costs), initial=0)][::-1]
        self._alike = [
            next(index for index, candidate in enumerate(offers) if _same_terms(offer, candidate))
            for offer in offers
        ]

    def holds(self, chosen: Sequence[int]) -> bool:
        """Report whether every offer takes what is to go there."""
        berths: list[_Berth] = list(self._start)
        for index, kind in zip(chosen, self._kinds, strict=True):
            after = self._berth_after(berths[index], index, kind)
            if after is None:
                return False
            berths[index] = after
        return True

    def search(self, work: Work) -> list[int] | None:
        """Depth first, remembering what failed; None when nothing holds. OutOfWorkError on the way."""
        failed: set[tuple[int, int, _Berths]] = set()
        levels = [self._level(0, 0, self._start)]
        while levels:
            level = levels[-1]
            depth = len(levels) - 1
            work.spend(8 + 2 * len(self._offers))
            after = self._step(level, depth)
            if after is None:
                failed.add((depth, level.floor, level.berths))
                levels.pop()
                continue
            if depth + 1 == len(self._kinds):
                return [entry.tried for entry in levels]
            floor = level.tried if self._kinds[depth + 1] == self._kinds[depth] else 0
            if self._room_for(depth + 1, after) and (depth + 1, floor, after) not in failed:
                levels.append(self._level(depth + 1, floor, after))
        return None

    def _level(self, depth: int, floor: int, berths: _Berths) -> _Level:
        """Interfaces of one kind go to offers in order: that they change places makes no other assignment.

        Nor does it make one that offers do, which take all alike and of which as much is left.
        """
        kind = self._kinds[depth]
        visited: set[tuple[int, _Berth]] = set()
        tries = []
        for offer in range(floor, len(berths)):
            key = self._alike[offer], berths[offer]
            if self._offers[offer].costs[kind] is not None and key not in visited:
                visited.add(key)
                tries.append(offer)
        tries.sort(key=lambda offer: berths[offer][:2])
        return _Level(berths, floor, iter(tries))

    def _step(self, level: _Level, depth: int) -> _Berths | None:
        """The berths after the next offer that takes the interface; None when there is none left."""
        for offer in level.tries:
            after = self._berth_after(level.berths[offer], offer, self._kinds[depth])
            if after is not None:
                level.tried = offer
                return (*level.berths[:offer], after, *level.berths[offer + 1 :])
        return None

    def _berth_after(self, berth: _Berth, offer: int, kind: int) -> _Berth | None:
        """The berth with one more interface of the kind; None when that does not fit."""
        cost = self._offers[offer].costs[kind]
        if cost is None or not berth.vfs or cost > berth.mbps:
            return None
        load, round_robin = berth.load, self._offers[offer].round_robin
        if load is not None and round_robin is not None:
            load = round_robin.join(load, cost)
            if not load.is_within_limit:
                return None
        return _Berth(berth.mbps - cost, berth.vfs - 1, load)

    def _room_for(self, depth: int, berths: _Berths) -> bool:
        """Report whether what comes from this interface on could be held by as much of one piece."""
        mbps = sum([berth.mbps for berth in berths])
        vfs = sum([berth.vfs for berth in berths])
        return self._remaining_costs[depth] <= mbps and len(self._kinds) - depth <= vfs


def _same_terms(first: Offer, second: Offer) -> bool:
    same_costs = first.costs is second.costs or first.costs == second.costs
    return same_costs and first.round_robin == second.round_robin
