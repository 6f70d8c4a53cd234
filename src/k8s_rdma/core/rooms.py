"""The values of packing: rooms (what is free of each PF), the demand, and the budget of work.

Proofs that a demand fits no arrangement, from the cheapest to the dearest.

Each is sound: it speaks only when there is no packing. None is complete.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import accumulate
from math import gcd
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Room(NamedTuple):
    """The free capacity of a PF: unreserved Mb/s, and VFs."""

    mbps: int
    vfs: int


class Verdict(Enum):
    """The reason for no packing: there is provably none, or the work budget ended before an answer."""

    IMPOSSIBLE = auto()
    UNDECIDED = auto()


class OutOfWorkError(Exception):
    """The budget is spent. Internal to packing, which turns it into `Verdict.UNDECIDED`."""


@dataclass(slots=True)
class Work:
    """A budget of work units, counted and not timed, so that an answer never depends on the machine.

    A unit is what CPython 3.11 does in about half a microsecond on a 2.6 GHz EPYC.
    """

    remaining: int

    @contextmanager
    def share(self, percent: int) -> Iterator[Work]:
        """Lend a part of what is left; what is not spent of it comes back."""
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

    descending: every single rate; largest: `largest[i]` is the sum of the i largest.
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
        """The same in larger units; `unit` divides every rate."""
        return Demand(tuple(size // unit for size in self.sizes), self.counts)

    @property
    def unit(self) -> int:
        """The largest unit that all rates are whole multiples of; round rates make small numbers."""
        return gcd(*self.sizes)


Fill = tuple[int, int, "Fill | None"]
"""What one room takes, grown one rate at a time: (index of the rate, how many, the fill before)."""


def entries(fill: Fill | None) -> list[tuple[int, int]]:
    """A fill as (index of the rate, how many), in the order in which it grew."""
    found = []
    while fill is not None:
        index, number, fill = fill
        found.append((index, number))
    found.reverse()
    return found


MAX_BITS = 1 << 21
"""Longest bit set made: sums up to 2 Tb/s in units of 1 Mb/s. Larger numbers go without that proof."""


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
    """The number of interfaces of this rate that the rooms take."""
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
    """The rooms, each lowered to the largest sum of rates that fits it; None when these are too small.

    A bit set (bit n: some of the rates add up to n) grows from the largest rate down, and at every
    rate the sums reached must have room for all so far. Rooms too long for a bit set stay as they are.
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
    """The bit set `sums` with up to `count` copies of `size` added, cut off at `mask`.

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
    """The largest sum in the bit set that is at most `limit`."""
    return (sums & ((2 << limit) - 1)).bit_length() - 1
