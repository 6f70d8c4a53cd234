"""The values of packing: rooms (what is free of each PF), the demand, and the budget of work."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import accumulate
from math import gcd
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Room(NamedTuple):
    """What is free of a PF: unreserved Mb/s, and VFs."""

    mbps: int
    vfs: int


class Verdict(Enum):
    """Why there is no packing: it is proved that none exists, or the work budget ended before an answer."""

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
    """What is to be placed: distinct positive rates, largest first, and how often each occurs.

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
