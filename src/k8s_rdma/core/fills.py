"""Every fill of one room that a packing may need, largest rates first.

A fill is left out when another that is as good for everyone else exists (dominance):
- one of its rates could be swapped for a larger one that is left over (whoever has the larger one
  in some packing can take the smaller instead), or a left-over rate could be added;
- the remaining rooms are all alike and it lacks the largest rate left (that is in one of them: this one);
- the room before is just like this one, and it puts larger rates here than there.
All of these hold together in the packing whose fills are, room after room, lexicographically largest.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from k8s_rdma.core.bounds import MAX_BITS, add_copies
from k8s_rdma.core.rooms import Room

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from k8s_rdma.core.rooms import Fill, Work


@dataclass(frozen=True, slots=True)
class Left:
    """What is still to be placed.

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
    def of(cls, sizes: Sequence[int], counts: Sequence[int]) -> Left:
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
    """Which sums the types from the i-th on can make, as bit sets, each made when first asked for.

    With a grain above 1 rates are rounded down to multiples of it: the answer may then be a wrong
    yes, never a wrong no, and costs as much less. The grain is chosen so that rounding blurs a sum
    by no more than the waste allowed anyway.
    """

    def __init__(self, left: Left, room: Room, waste: int, work: Work) -> None:
        most = min(room.vfs, bisect_right(left.smallest, room.mbps) - 1)
        self.grain = max(1, waste // max(1, most))
        self._blur = most * (self.grain - 1)
        self._left = left
        self._work = work
        self._longest = room.mbps // self.grain
        self._sums = {len(left.sizes): 1}

    def between(self, first: int, lowest: int, highest: int) -> bool:
        """Whether types from `first` on may add up to something in `lowest`..`highest`."""
        if self._longest > MAX_BITS:
            return True
        low = -((self._blur - lowest) // self.grain)
        low = max(low, 0)
        sums = self._sums.get(first) or self._build(first)
        return (sums >> low) & ((2 << highest // self.grain - low) - 1) != 0

    def _build(self, first: int) -> int:
        """Add type by type to the longest set there is."""
        built = len(self._left.sizes) + 1 - len(self._sums)
        sums = self._sums[built]
        mask = (2 << self._longest) - 1
        for index in range(built - 1, first - 1, -1):
            size = self._left.sizes[index] // self.grain
            sums = add_copies(sums, size, self._left.counts[index], mask, self._work)
            self._sums[index] = sums
        return sums


@dataclass(frozen=True, slots=True)
class Ask:
    """Which fills are wanted.

    room: its mbps no more than the largest sum that its VFs can hold.
    waste: bandwidth that may stay unused, from and to (inclusive).
    at_least: interfaces that the rooms after this one have no VFs for.
    largest_first: the first type must be in the fill.
    ceiling: (type, number) that the fill's first entry must not exceed, in the whole demand's types.
    """

    room: Room
    waste: tuple[int, int]
    at_least: int
    largest_first: bool
    ceiling: tuple[int, int] | None


_Frame = tuple[int, int, int, int, int, "Fill | None"]
"""Next type, Mb/s and waste and VFs left, the smallest rate left over so far (0: none), the fill so far."""


class Fills:
    """Iterates over the fills, larger rates first; indices in `left`."""

    def __init__(self, left: Left, ask: Ask, reach: Reach, work: Work) -> None:
        self._left = left
        self._ask = ask
        self._reach = reach
        self._work = work
        self._total = [left.total - left.largest[start] for start in left.starts]
        room = ask.room
        self._vf_spare = room.vfs >= left.number or left.smallest[room.vfs] > room.mbps
        self._most_vfs_left = room.vfs - max(0, ask.at_least)
        self._vfs_matter = ask.at_least > 0 or not self._vf_spare
        self._least_waste = ask.waste[0]

    def __iter__(self) -> Iterator[Fill | None]:
        """Depth first: as many of a type as fit, then fewer."""
        sizes, end, work = self._left.sizes, len(self._left.sizes), self._work
        least_waste, most_waste = self._ask.waste
        stack: list[_Frame] = [(0, self._ask.room.mbps, most_waste, self._ask.room.vfs, 0, None)]
        while stack:
            work.spend(2)
            index, mbps, waste, vfs, left_over, fill = stack.pop()
            while index < end and sizes[index] > mbps:
                left_over = sizes[index]
                index += 1
            if index == end or not vfs:
                if least_waste <= mbps <= waste and vfs <= self._most_vfs_left:
                    yield fill
            elif self._possible(index, mbps, waste, vfs):
                self._branch(stack, (index, mbps, waste, vfs, left_over, fill))

    def _possible(self, index: int, mbps: int, waste: int, vfs: int) -> bool:
        """Whether the types from `index` on may still make a fill: by sum, by number, by exact sums."""
        needed = mbps - waste
        if self._total[index] < needed or (
            self._vfs_matter and not self._vfs_allow(index, mbps, needed, vfs)
        ):
            return False
        least_waste = self._least_waste
        if not least_waste:
            if needed <= 0 or waste >= self._left.sizes[index]:
                return True  # small enough steps to land in the window
            return self._reach.between(index, needed, mbps)
        return mbps >= least_waste and self._reach.between(index, needed, mbps - least_waste)

    def _vfs_allow(self, index: int, mbps: int, needed: int, vfs: int) -> bool:
        """Whether the VFs hold enough bandwidth, and the bandwidth enough interfaces for the later rooms."""
        left = self._left
        start = left.starts[index]
        if left.largest[min(start + vfs, left.number)] - left.largest[start] < needed:
            return False
        missing = vfs - self._most_vfs_left
        return missing <= 0 or (missing <= left.number - start and left.smallest[missing] <= mbps)

    def _branch(self, stack: list[_Frame], frame: _Frame) -> None:
        """Push the frame's continuations: none of the type first, so that most of it is popped first."""
        index, mbps, waste, vfs, left_over, fill = frame
        size, count = self._left.sizes[index], self._left.counts[index]
        most = mbps // size
        most = min(most, count)
        most = min(most, vfs)
        if fill is None and self._ask.ceiling is not None:
            most = self._below_ceiling(index, most)
        # left over: of this type, if not all are taken; then what fits beside the fill must not be that large
        some_left = size - 1 if self._vf_spare and size <= waste else waste
        if not (self._ask.largest_first and index == 0) and some_left >= self._least_waste:
            stack.append((index + 1, mbps, some_left, vfs, size, fill))
        if left_over and left_over - size <= waste:
            waste = left_over - size - 1
            some_left = min(some_left, waste)
        for number in range(1, most + 1):
            mbps -= size
            allowed = some_left if number < count else waste
            if allowed >= self._least_waste:
                rest = size if number < count else left_over
                stack.append((index + 1, mbps, allowed, vfs - number, rest, (index, number, fill)))

    def _below_ceiling(self, index: int, most: int) -> int:
        """How many of a type the first entry may have."""
        if self._ask.ceiling is None:
            return most
        first, number = self._ask.ceiling
        whole = self._left.types[index]
        if whole == first:
            return min(most, number)
        return most if whole > first else 0
