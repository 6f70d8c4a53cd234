"""Exact packing of a request's interfaces into PFs that differ in free bandwidth and VFs alone.

This is vector bin packing in two dimensions, bandwidth and number: NP-hard, and users write the instances. So
the cheap and usual is tried first, proofs of impossibility come before the search, and everything counts its
work.

The search fills one room after another and remembers states that failed. Rooms that hold few interfaces come
first, because they have fewest fills. Within a room, fills that waste no more than the room's share of the
slack come first, because most packings are made of these. A fill is left out if another exists that is as
good for all others (dominance):

- one of its rates could be swapped for a larger one that is left over (the packing that has the larger one
  elsewhere can take the smaller instead), or a left-over rate could be added;
- the remaining rooms are all alike and it lacks the largest rate left (that is in one of them: this one).

Both hold together in the packing whose fills are, room after room, lexicographically largest.
docs/adr/0021-parts-of-the-placement-search.md measures the gain of each part of the search.

Rooms are the free capacities of PFs. Proofs that a demand fits no arrangement go from the cheapest to the
dearest. Each is sound: it refuses only if there is no packing. But it is not complete.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import accumulate, chain
from math import gcd, inf
from typing import NamedTuple

Fill = tuple[int, int, "Fill | None"]
"""The content of one room, grown one rate at a time: (index of the rate, how many, the fill before)."""

MAX_BITS = 1 << 21
"""Longest bit set made: sums up to 2 Tb/s in units of 1 Mb/s. Larger numbers go without that proof."""

_Frame = tuple[int, int, int, int, int, "Fill | None"]
"""Next type, Mb/s and waste and VFs left, the smallest rate left over (0: no rate is left over), the fill so
far."""

_State = tuple[int, tuple[int, ...]]
"""The state of the search: the next room, and how many items of each type are left."""

Packing = list[dict[int, int]]
"""The number of items of each rate, by room."""


class Room(NamedTuple):
    """The free capacity of a PF: unreserved Mb/s, and VFs."""

    mbps: int
    vfs: int


class NoPacking(Enum):
    """The reason for no packing: there is provably no packing, or the work budget ended before an answer."""

    IMPOSSIBLE = auto()
    UNDECIDED = auto()


class OutOfWorkError(Exception):
    """The budget is spent. Internal to packing, which turns it into `NoPacking.UNDECIDED`."""


@dataclass(slots=True)
class Work:
    """A budget of work units, counted and not timed, so that an answer never depends on the machine.

    CPython 3.11 does a unit in about half a microsecond on a 2.6 GHz EPYC.
    """

    remaining: int

    @contextmanager
    def share(self, percent: int) -> Iterator[Work]:
        """Lend a part of the rest; the part of it that is not spent comes back."""
        lent = Work(self.remaining * percent // 100)
        self.remaining -= lent.remaining
        try:
            yield lent
        finally:
            self.remaining += max(0, lent.remaining)

    def spend(self, units: int) -> None:
        """Take units off; OutOfWorkError when there are not that many."""
        self.remaining -= units
        if self.remaining < 0:
            raise OutOfWorkError


@dataclass(frozen=True, slots=True)
class Demand:
    """The rates to be placed: distinct, positive, largest first, and how often each occurs.

    descending: every single rate.
    largest: `largest[i]` is the sum of the i largest.
    """

    sizes: tuple[int, ...]
    counts: tuple[int, ...]
    descending: tuple[int, ...] = field(init=False)
    largest: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Derive the lists that every bound needs."""
        descending = tuple(s for s, n in zip(self.sizes, self.counts, strict=True) for _ in range(n))
        object.__setattr__(self, "descending", descending)
        object.__setattr__(self, "largest", tuple(accumulate(descending, initial=0)))

    @classmethod
    def from_rates(cls, rates: Sequence[int]) -> Demand:
        """Group rates; zeros are left out."""
        counts: dict[int, int] = {}
        for rate in sorted(rates, reverse=True):
            if rate:
                counts[rate] = counts.get(rate, 0) + 1
        return cls(tuple(counts), tuple(counts.values()))

    @property
    def total(self) -> int:
        """The sum of all rates."""
        return self.largest[-1]

    def in_units(self, unit: int) -> Demand:
        """Return the demand in larger units; `unit` divides every rate."""
        return Demand(tuple(size // unit for size in self.sizes), self.counts)

    @property
    def unit(self) -> int:
        """The largest unit that all rates are whole multiples of; round rates make small numbers."""
        return gcd(*self.sizes)


def entries(fill: Fill | None) -> list[tuple[int, int]]:
    """Return a fill as (index of the rate, how many), in the order in which it grew."""
    found = []
    while fill is not None:
        index, number, fill = fill
        found.append((index, number))
    found.reverse()
    return found


def surely_too_much(demand: Demand, rooms: Sequence[Room], work: Work) -> bool:
    """Report whether counting excludes a packing: sums, places for large rates, VFs and bandwidth."""
    if demand.total > sum(room.mbps for room in rooms):
        return True
    if len(demand.descending) > sum(room.vfs for room in rooms):
        return True
    return _too_few_places(demand, rooms, work) or _too_few_vfs_where_bandwidth_is(demand, rooms)


def _too_few_places(demand: Demand, rooms: Sequence[Room], work: Work) -> bool:
    """Report whether for some rate more interfaces are that large than the rooms have places of that size.

    Dual feasible functions for sizes just over a half, a third and so on are cases of this.
    """
    needed = 0
    for size, count in zip(demand.sizes, demand.counts, strict=True):
        work.spend(1 + len(rooms) // 4)
        needed += count
        if needed > places(size, rooms):
            return True
    return False


def places(size: int, rooms: Sequence[Room]) -> int:
    """Return the number of interfaces of this rate that the rooms take."""
    return sum(min(room.vfs, room.mbps // size) for room in rooms)


def _too_few_vfs_where_bandwidth_is(demand: Demand, rooms: Sequence[Room]) -> bool:
    """Report whether the rooms richest in bandwidth per VF cannot take enough even of the largest rates.

    Let them take as many of the largest as they have VFs: the remainder must fit into the others.
    """
    vfs = 0
    elsewhere = sum(room.mbps for room in rooms)
    for room in sorted(rooms, key=lambda room: room.mbps / room.vfs, reverse=True):
        vfs = min(vfs + room.vfs, len(demand.descending))
        elsewhere -= room.mbps
        if demand.total - demand.largest[vfs] > elsewhere:
            return True
    return False


def attainable(demand: Demand, rooms: Sequence[Room], work: Work) -> list[Room] | None:
    """Return the rooms, each lowered to the largest sum of rates that fits it, if these are large enough.

    A bit set (bit n: some of the rates add up to n) grows from the largest rate down, and at every rate the
    sums reached must have room for all so far. Rooms too long for a bit set stay unchanged.
    """
    longest = max(room.mbps for room in rooms)
    if longest > MAX_BITS:
        return list(rooms)
    mask = (2 << longest) - 1
    alike = Counter(room.mbps for room in rooms)
    sums, needed = 1, 0
    for size, count in zip(demand.sizes, demand.counts, strict=True):
        sums = add_copies(sums, size, count, mask, work)
        work.spend(len(alike) * (1 + (longest >> 15)))
        needed += size * count
        if needed > sum(rooms_alike * _top(sums, mbps) for mbps, rooms_alike in alike.items()):
            return None
    return [Room(_top(sums, room.mbps), room.vfs) for room in rooms]


def add_copies(sums: int, size: int, count: int, mask: int, work: Work) -> int:
    """Return the bit set `sums` with up to `count` copies of `size` added, cut off at `mask`.

    Copies are added in portions 1, 2, 4, ... and the remainder, which reach every number of copies.
    """
    cost = 1 + (mask.bit_length() >> 13)
    portion = 1
    while count > 0:
        work.spend(cost)
        portion = min(portion, count)
        sums |= (sums << size * portion) & mask
        count -= portion
        portion *= 2
    return sums


def _top(sums: int, limit: int) -> int:
    """Return the largest sum in the bit set that is at most `limit`."""
    return (sums & ((2 << limit) - 1)).bit_length() - 1


@dataclass(frozen=True, slots=True)
class RemainingItems:
    """The items still to be placed.

    types: the rates' indices in the whole demand.
    sizes, counts: their values and numbers.
    starts[i]: how many interfaces are larger than type i. largest[n], smallest[n]: the sum of the n largest
    or smallest.
    number, total: of all that is left, how many and their sum.
    """

    types: list[int]
    sizes: list[int]
    counts: list[int]
    starts: list[int]
    largest: list[int]
    smallest: list[int]
    number: int
    total: int

    @classmethod
    def from_counts(cls, sizes: Sequence[int], counts: Sequence[int]) -> RemainingItems:
        """Drop the types without remaining items."""
        types = [index for index, count in enumerate(counts) if count]
        present = [sizes[index] for index in types]
        numbers = [counts[index] for index in types]
        single: list[int] = []
        for size, number in zip(present, numbers, strict=True):
            single += [size] * number
        return cls(
            types,
            present,
            numbers,
            [0, *accumulate(numbers)],
            [0, *accumulate(single)],
            [0, *accumulate(reversed(single))],
            len(single),
            sum(single),
        )


class Reach:
    """The sums that the types from the i-th on can make, as bit sets, each made on first use.

    With a grain above 1 rates are rounded down to multiples of it: the answer may then be a wrong
    yes, never a wrong no, and costs as much less. The grain is chosen so that rounding blurs a sum
    by no more than the waste allowed anyway.
    """

    def __init__(self, remaining: RemainingItems, room: Room, waste: int, work: Work) -> None:
        limit = min(room.vfs, bisect_right(remaining.smallest, room.mbps) - 1)
        self.grain = max(1, waste // max(1, limit))
        self._blur = limit * (self.grain - 1)
        self._remaining = remaining
        self._work = work
        self._longest = room.mbps // self.grain
        self._sums = {len(remaining.sizes): 1}

    def between(self, first: int, lowest: int, highest: int) -> bool:
        """Report whether types from `first` on may add up to something in `lowest`..`highest`."""
        if self._longest > MAX_BITS:
            return True
        low = -((self._blur - lowest) // self.grain)
        low = max(low, 0)
        sums = self._sums.get(first) or self._build(first)
        return (sums >> low) & ((2 << highest // self.grain - low) - 1) != 0

    def _build(self, first: int) -> int:
        """Add type by type to the longest set there is."""
        built = len(self._remaining.sizes) + 1 - len(self._sums)
        sums = self._sums[built]
        mask = (2 << self._longest) - 1
        for index in range(built - 1, first - 1, -1):
            size = self._remaining.sizes[index] // self.grain
            sums = add_copies(sums, size, self._remaining.counts[index], mask, self._work)
            self._sums[index] = sums
        return sums


@dataclass(frozen=True, slots=True)
class Query:
    """The constraints on fills.

    room: its mbps no more than the largest sum that its VFs can hold.
    waste: bandwidth that may stay unused, from and to (inclusive).
    at_least: interfaces that the rooms after this one have no VFs for.
    largest_first: the first type must be in the fill.
    """

    room: Room
    waste: tuple[int, int]
    at_least: int
    largest_first: bool


class Patterns:
    """Iterates over the fills, larger rates first; indices in `remaining`."""

    def __init__(self, remaining: RemainingItems, query: Query, reach: Reach, work: Work) -> None:
        self._remaining = remaining
        self._query = query
        self._reach = reach
        self._work = work
        self._total = [remaining.total - remaining.largest[start] for start in remaining.starts]
        room = query.room
        self._vf_spare = room.vfs >= remaining.number or remaining.smallest[room.vfs] > room.mbps
        self._most_vfs_left = room.vfs - max(0, query.at_least)
        self._vfs_matter = query.at_least > 0 or not self._vf_spare
        self._least_waste = query.waste[0]

    def __iter__(self) -> Iterator[Fill | None]:
        """Depth first: as many of a type as fit, then fewer."""
        sizes, end, work = self._remaining.sizes, len(self._remaining.sizes), self._work
        least_waste, most_waste = self._query.waste
        stack: list[_Frame] = [(0, self._query.room.mbps, most_waste, self._query.room.vfs, 0, None)]
        while stack:
            work.spend(2)
            index, mbps, waste, vfs, leftover, fill = stack.pop()
            while index < end and sizes[index] > mbps:
                leftover = sizes[index]
                index += 1
            if index == end or not vfs:
                if least_waste <= mbps <= waste and vfs <= self._most_vfs_left:
                    yield fill
            elif self._possible(index, mbps, waste, vfs):
                self._branch(stack, (index, mbps, waste, vfs, leftover, fill))

    def _possible(self, index: int, mbps: int, waste: int, vfs: int) -> bool:
        """Report whether types from `index` on may still make a fill: by sum, number, exact sums."""
        needed = mbps - waste
        if self._total[index] < needed or (
            self._vfs_matter and not self._vfs_allow(index, mbps, needed, vfs)
        ):
            return False
        least_waste = self._least_waste
        if not least_waste:
            if needed <= 0 or waste >= self._remaining.sizes[index]:
                return True  # small enough steps to land in the window
            return self._reach.between(index, needed, mbps)
        return mbps >= least_waste and self._reach.between(index, needed, mbps - least_waste)

    def _vfs_allow(self, index: int, mbps: int, needed: int, vfs: int) -> bool:
        """Report whether VFs and bandwidth suffice for the later rooms."""
        remaining = self._remaining
        start = remaining.starts[index]
        if remaining.largest[min(start + vfs, remaining.number)] - remaining.largest[start] < needed:
            return False
        missing = vfs - self._most_vfs_left
        return missing <= 0 or (missing <= remaining.number - start and remaining.smallest[missing] <= mbps)

    def _branch(self, stack: list[_Frame], frame: _Frame) -> None:
        """Push the frame's continuations: few items of the type first, so that most are popped first."""
        index, mbps, waste, vfs, leftover, fill = frame
        size, count = self._remaining.sizes[index], self._remaining.counts[index]
        limit = mbps // size
        limit = min(limit, count)
        limit = min(limit, vfs)
        self._work.spend(limit // 2)
        # # A part of the type's items may be left over. The space beside the fill must then be smaller than
        # they are.
        partial = size - 1 if self._vf_spare and size <= waste else waste
        if not (self._query.largest_first and index == 0) and partial >= self._least_waste:
            stack.append((index + 1, mbps, partial, vfs, size, fill))
        if leftover and leftover - size <= waste:
            waste = leftover - size - 1
            partial = min(partial, waste)
        for number in range(1, limit + 1):
            mbps -= size
            allowed = partial if number < count else waste
            if allowed >= self._least_waste:
                remainder = size if number < count else leftover
                stack.append((index + 1, mbps, allowed, vfs - number, remainder, (index, number, fill)))


@dataclass(slots=True)
class _Level:
    """A room under way: its state, the remaining items, the fills not tried yet, the one being tried."""

    state: _State
    remaining: RemainingItems
    fills: Iterator[Fill | None]
    fill: list[tuple[int, int]]


class Search:
    """A search. `run` again after OutOfWorkError goes on: failures are remembered."""

    def __init__(self, demand: Demand, rooms: Sequence[Room]) -> None:
        mean = demand.total // len(demand.descending)
        self._order = sorted(
            range(len(rooms)),
            key=lambda index: (min(rooms[index].mbps, rooms[index].vfs * mean), rooms[index], index),
        )
        self._rooms = [rooms[position] for position in self._order]
        self._demand = demand
        self._work = Work(0)
        self._failed: set[_State] = set()
        last = len(rooms)
        self._alike = [len(set(self._rooms[start:])) <= 1 for start in range(last + 1)]
        self._mbps = [*accumulate((room.mbps for room in reversed(self._rooms)), initial=0)][::-1]
        self._vfs = [*accumulate((room.vfs for room in reversed(self._rooms)), initial=0)][::-1]

    def run(self, work: Work) -> list[dict[int, int]] | None:
        """Find for each room the number of each rate, if a packing exists. OutOfWorkError."""
        self._work = work
        levels: list[_Level] = []
        state: _State | None = (0, self._demand.counts)
        while True:
            if state is not None:
                if not any(state[1]):
                    return self._packing(levels)
                level = self._enter(state)
                if level is not None:
                    levels.append(level)
            if not levels:
                return None
            state = self._advance(levels)

    def _enter(self, state: _State) -> _Level | None:
        """Start on a room, unless this state is known to fail, or fails by its numbers."""
        depth, counts = state
        if depth == len(self._rooms) or state in self._failed:
            return None
        remaining = RemainingItems.from_counts(self._demand.sizes, counts)
        self._work.spend(8 + len(remaining.sizes) // 2 + remaining.number // 8)
        if remaining.number > self._vfs[depth] or remaining.total > self._mbps[depth]:
            return None
        holds = [
            min(room.mbps, remaining.largest[min(room.vfs, remaining.number)]) for room in self._rooms[depth:]
        ]  # no more than the bandwidth, and no more than the largest rates for its VFs
        slack = sum(holds) - remaining.total
        if slack < 0:
            return None
        room = Room(holds[0], self._rooms[depth].vfs)
        alike = self._alike[depth]
        if alike and remaining.sizes[0] > room.mbps:
            return None
        query = Query(room, (0, slack), remaining.number - self._vfs[depth + 1], alike)
        return _Level(state, remaining, self._fills(remaining, query, slack // len(holds)), [])

    def _fills(self, remaining: RemainingItems, query: Query, share: int) -> Iterator[Fill | None]:
        """Fills that waste no more than `share` of the slack, then the others."""
        room, (_, slack) = query.room, query.waste
        limit = min(slack, room.mbps)
        reach = Reach(remaining, room, limit, self._work)
        windows = [(0, min(share, limit)), (share + 1, limit)]
        return chain.from_iterable(
            Patterns(
                remaining,
                Query(room, window, query.at_least, query.largest_first),
                reach,
                self._work,
            )
            for window in windows
            if window[0] <= window[1]
        )

    def _advance(self, levels: list[_Level]) -> _State | None:
        """Return the state after the innermost room's next fill, or give that room up without one."""
        level = levels[-1]
        depth, counts = level.state
        for fill in level.fills:
            level.fill = [(level.remaining.types[index], number) for index, number in entries(fill)]
            remaining = list(counts)
            for index, number in level.fill:
                remaining[index] -= number
            return depth + 1, tuple(remaining)
        self._failed.add(level.state)
        levels.pop()
        return None

    def _packing(self, levels: Sequence[_Level]) -> list[dict[int, int]]:
        """Return the fills of all levels, in the order in which the rooms were given."""
        packing: list[dict[int, int]] = [{} for _ in self._rooms]
        for room_index, level in zip(self._order, levels, strict=False):
            packing[room_index] = {self._demand.sizes[index]: number for index, number in level.fill}
        return packing


def pack(demand: Demand, rooms: Sequence[Room], work: Work) -> Packing | NoPacking:
    """Put the demand into the rooms, or say why not; the effort goes off `work`.

    Call it after `best_fit` has failed, because it does not repeat that.
    """
    unit = demand.unit
    small = demand.in_units(unit)
    useful = [index for index, room in enumerate(rooms) if room.vfs > 0 and room.mbps >= demand.sizes[-1]]
    if not useful or len(demand.sizes) == 1:  # best fit is exact for one rate
        return NoPacking.IMPOSSIBLE
    try:
        found = _pack(small, [Room(rooms[index].mbps // unit, rooms[index].vfs) for index in useful], work)
    except OutOfWorkError:
        return NoPacking.UNDECIDED
    if found is None:
        return NoPacking.IMPOSSIBLE
    packing: Packing = [{} for _ in rooms]
    for index, fill in zip(useful, found, strict=True):
        packing[index] = {size * unit: number for size, number in fill.items()}
    return packing


def _pack(demand: Demand, rooms: Sequence[Room], work: Work) -> Packing | None:
    """Return the steps in order, unless it is proved that there is no packing."""
    if surely_too_much(demand, rooms, work):
        return None
    work.spend(1 + len(demand.descending) * len(rooms) // 4)
    chosen = balanced_fit(demand.descending, rooms)
    if chosen is not None:
        return _grouped(demand.descending, chosen, len(rooms))
    try:
        with work.share(30) as share:
            lowered = attainable(demand, rooms, share)
    except OutOfWorkError:
        return Search(demand, rooms).run(work)
    if lowered is None or surely_too_much(demand, lowered, work):
        return None
    return Search(demand, lowered).run(work)


def _grouped(descending: Sequence[int], chosen: Sequence[int], rooms: int) -> Packing:
    """Return a room for each rate, as the number of each rate for each room."""
    packing: Packing = [{} for _ in range(rooms)]
    for rate, index in zip(descending, chosen, strict=True):
        packing[index][rate] = packing[index].get(rate, 0) + 1
    return packing


def best_fit(descending: Sequence[int], rooms: Sequence[Room]) -> list[int] | None:
    """Give each rate, largest first, to the room that it leaves least bandwidth in; None if one fits nowhere.

    Return the index of a room for each rate. Ties go to fewer free VFs, then to the earlier room. Rates of 0
    go where bandwidth is scarcest, because a VF there is of least use to others.
    """
    mbps = [room.mbps for room in rooms]
    vfs = [room.vfs for room in rooms]
    everywhere = range(len(rooms))
    chosen: list[int] = []
    for rate in descending:
        best, least = -1, inf
        for index in everywhere:
            free = mbps[index]
            if rate <= free <= least and vfs[index] and (free < least or vfs[index] < vfs[best]):
                best, least = index, free
        if best < 0:
            return None
        mbps[best] -= rate
        vfs[best] -= 1
        chosen.append(best)
    return chosen


def balanced_fit(descending: Sequence[int], rooms: Sequence[Room]) -> list[int] | None:
    """Give each rate, largest first, to the room with most bandwidth per free VF; None as `best_fit`.

    It finds packings if VFs are as scarce as bandwidth, because it keeps both running out together.
    """
    mbps = [room.mbps for room in rooms]
    vfs = [room.vfs for room in rooms]
    per_vf = [room.mbps / room.vfs if room.vfs else -1.0 for room in rooms]
    everywhere = range(len(rooms))
    chosen: list[int] = []
    for rate in descending:
        best, largest = -1, -1.0
        for index in everywhere:
            if per_vf[index] > largest and mbps[index] >= rate:
                best, largest = index, per_vf[index]
        if best < 0:
            return None
        mbps[best] -= rate
        vfs[best] -= 1
        per_vf[best] = mbps[best] / vfs[best] if vfs[best] else -1.0
        chosen.append(best)
    return chosen


def arrange(rates: Sequence[int], rooms: Sequence[Room], work: Work) -> list[int] | NoPacking:
    """Return a room's index for each rate; rates fall. OutOfWorkError on the way."""
    if len(rates) > sum([room.vfs for room in rooms]) or sum(rates) > sum([room.mbps for room in rooms]):
        return NoPacking.IMPOSSIBLE
    work.spend(len(rates) * len(rooms) // 8)
    chosen = best_fit(rates, rooms)
    if chosen is not None:
        return chosen
    demand = Demand.from_rates(rates)
    if not demand.sizes:
        return NoPacking.IMPOSSIBLE
    packing = pack(demand, rooms, work)
    return packing if isinstance(packing, NoPacking) else _dealt(rates, packing, rooms)


def _dealt(rates: Sequence[int], packing: Packing, rooms: Sequence[Room]) -> list[int]:
    """Return a packing as a room's index for each rate; rates of 0 take the VFs that are left."""
    homes: dict[int, deque[int]] = {}
    remaining = list(rooms)
    for index, fill in enumerate(packing):
        for rate, number in fill.items():
            homes.setdefault(rate, deque()).extend([index] * number)
            remaining[index] = Room(remaining[index].mbps - rate * number, remaining[index].vfs - number)
    free = best_fit([rate for rate in rates if not rate], remaining)
    homes[0] = deque(free or ())
    return [homes[rate].popleft() for rate in rates]
