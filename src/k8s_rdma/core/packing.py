"""Exact packing of a request's interfaces into PFs that differ in free bandwidth and VFs alone.

This is vector bin packing in two dimensions, bandwidth and number: NP-hard, and users write the instances.
So the cheap and usual is tried first, proofs of impossibility (`core.rooms`) come before the search, and
everything counts its work.

The search fills one room after another and remembers what failed. Rooms that hold few interfaces come
first, since they have fewest fills; within a room, fills that waste no more than the room's share of the
slack come first, since most packings are made of such. A fill is left out when another that is as good for
all others exists (dominance):

- one of its rates could be swapped for a larger one that is left over (the packing that has the larger one
elsewhere can take the smaller instead), or a left-over rate could be added; - the remaining rooms are all
alike and it lacks the largest rate left (that is in one of them: this one).

Both hold together in the packing whose fills are, room after room, lexicographically largest. What each part
of the search earns is measured in docs/adr/0021-parts-of-the-placement-search.md.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from math import inf

from k8s_rdma.core.rooms import (
    MAX_BITS,
    Demand,
    Fill,
    OutOfWorkError,
    Room,
    Verdict,
    Work,
    add_copies,
    attainable,
    entries,
    surely_too_much,
)


@dataclass(frozen=True, slots=True)
class RemainingItems:
    """The items still to be placed.

    types: the rates' indices in the whole demand; sizes, counts: their values and numbers.
    starts[i]: how many interfaces are larger than type i. largest[n], smallest[n]: the sum of the n
    largest or smallest. number, total: of all that is left, how many and their sum.
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
        """Drop the types of which none is left."""
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


_Frame = tuple[int, int, int, int, int, "Fill | None"]
"""Next type, Mb/s and waste and VFs left, the smallest rate left over so far (0: none), the fill so far."""


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
        """Push the frame's continuations: none of the type first, so that most of it is popped first."""
        index, mbps, waste, vfs, leftover, fill = frame
        size, count = self._remaining.sizes[index], self._remaining.counts[index]
        limit = mbps // size
        limit = min(limit, count)
        limit = min(limit, vfs)
        # left over: of this type, if not all are taken; then what fits beside the fill must not be that large
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


_State = tuple[int, tuple[int, ...]]
"""Which room is next, and how many of each type are left."""


@dataclass(slots=True)
class _Level:
    """A room under way: its state, what is left, the fills not tried yet, the one being tried."""

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
        """Find for each room the number of each rate; None when no packing exists. OutOfWorkError."""
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
        """Start on a room; None when this state is known or seen at once to fail."""
        depth, counts = state
        if depth == len(self._rooms) or state in self._failed:
            return None
        remaining = RemainingItems.from_counts(self._demand.sizes, counts)
        self._work.spend(8 + len(remaining.sizes) // 2)
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
        """The state after the innermost room's next fill; None, and that room given up, when it has none."""
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
        """The fills of all levels, in the order in which the rooms were given."""
        packing: list[dict[int, int]] = [{} for _ in self._rooms]
        for room_index, level in zip(self._order, levels, strict=False):
            packing[room_index] = {self._demand.sizes[index]: number for index, number in level.fill}
        return packing


Packing = list[dict[int, int]]
"""For each room the number of each rate."""


def pack(demand: Demand, rooms: Sequence[Room], work: Work) -> Packing | Verdict:
    """Put the demand into the rooms, or say why not; takes what it does off `work`.

    To be asked after `best_fit` has failed, which it does not repeat.
    """
    unit = demand.unit
    small = demand.in_units(unit)
    useful = [index for index, room in enumerate(rooms) if room.vfs > 0 and room.mbps >= demand.sizes[-1]]
    if not useful or len(demand.sizes) == 1:  # best fit is exact for one rate
        return Verdict.IMPOSSIBLE
    try:
        found = _pack(small, [Room(rooms[index].mbps // unit, rooms[index].vfs) for index in useful], work)
    except OutOfWorkError:
        return Verdict.UNDECIDED
    if found is None:
        return Verdict.IMPOSSIBLE
    packing: Packing = [{} for _ in rooms]
    for index, fill in zip(useful, found, strict=True):
        packing[index] = {size * unit: number for size, number in fill.items()}
    return packing


def _pack(demand: Demand, rooms: Sequence[Room], work: Work) -> Packing | None:
    """The steps in order; None when it is proved that there is no packing."""
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
    """A room for each rate, as the number of each rate for each room."""
    packing: Packing = [{} for _ in range(rooms)]
    for rate, index in zip(descending, chosen, strict=True):
        packing[index][rate] = packing[index].get(rate, 0) + 1
    return packing


def best_fit(descending: Sequence[int], rooms: Sequence[Room]) -> list[int] | None:
    """Give each rate, largest first, to the room it leaves least bandwidth in; None when one fits nowhere.

    Returns the index of a room for each rate. Ties go to fewer free VFs, then to the earlier room.
    Rates of 0 go where bandwidth is scarcest: a VF there is of least use to others.
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

    Finds packings where VFs are as scarce as bandwidth: it keeps both running out together.
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


def arrange(rates: Sequence[int], rooms: Sequence[Room], work: Work) -> list[int] | Verdict:
    """A room's index for each rate; rates fall. OutOfWorkError on the way."""
    if len(rates) > sum([room.vfs for room in rooms]) or sum(rates) > sum([room.mbps for room in rooms]):
        return Verdict.IMPOSSIBLE
    work.spend(len(rates) * len(rooms) // 8)
    chosen = best_fit(rates, rooms)
    if chosen is not None:
        return chosen
    demand = Demand.from_rates(rates)
    if not demand.sizes:
        return Verdict.IMPOSSIBLE
    packing = pack(demand, rooms, work)
    return packing if isinstance(packing, Verdict) else _dealt(rates, packing, rooms)


def _dealt(rates: Sequence[int], packing: Packing, rooms: Sequence[Room]) -> list[int]:
    """A packing as a room's index for each rate; what reserves nothing takes the VFs that are left."""
    homes: dict[int, deque[int]] = {}
    remaining = list(rooms)
    for index, fill in enumerate(packing):
        for rate, number in fill.items():
            homes.setdefault(rate, deque()).extend([index] * number)
            remaining[index] = Room(remaining[index].mbps - rate * number, remaining[index].vfs - number)
    free = best_fit([rate for rate in rates if not rate], remaining)
    homes[0] = deque(free or ())
    return [homes[rate].popleft() for rate in rates]
