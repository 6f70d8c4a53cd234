"""Proof of impossibility by prices: the linear relaxation of packing, solved by column generation.

Give each rate a price. If the prices of all interfaces together exceed the sum, over the rooms, of
the dearest fill each can hold, then no packing exists: any prices are a proof, and the dual of the
relaxation gives the best ones (Gilmore and Gomory 1961, "A linear programming approach to the
cutting stock problem"). For few distinct rates this finds almost every impossible case in well under
a millisecond, where a search would have to enumerate them.

Prices are found in floating point and the proof is then made in integers, so rounding cannot lie.
"""

from __future__ import annotations

from collections import Counter
from math import isfinite
from typing import TYPE_CHECKING

from k8s_rdma.core.rooms import entries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from k8s_rdma.core.rooms import Demand, Fill, Room, Work

SCALE = 1 << 24
"""Prices lie in 0..1 and become integers of this scale."""

EPSILON = 1e-7
"""Below this a gain or a pivot element is rounding."""

_PRECISION = 80
"""Bits of price per Mb/s kept for sorting: rates below 2^32 cannot change places by rounding."""

_Column = list[tuple[int, float]]
"""The entries of a column other than zero: (row, value)."""


def overpriced(demand: Demand, rooms: Sequence[Room], work: Work) -> bool:
    """Whether some prices prove that there is no packing. False claims nothing.

    Spends work until the relaxation is solved; OutOfWorkError before that.
    """
    relaxation = _Relaxation(demand, rooms)
    while relaxation.unplaced > EPSILON:
        columns = relaxation.price(work)
        if relaxation.proved or relaxation.pivot_all(columns, work) == 0:
            return relaxation.proved
    return False


class _Relaxation:
    """The master problem in revised simplex form: least price of what stays unplaced.

    Rows are the rates (each at least `counts` times), then the kinds of room (each at most as often
    as it exists). `rows` holds the basis inverse and, last in each row, the basic solution;
    `prices` the duals and, last, the objective. It starts with everything unplaced, at a price
    proportional to the rate.
    """

    def __init__(self, demand: Demand, rooms: Sequence[Room]) -> None:
        self.demand = demand
        self.kinds = list(Counter(rooms).items())
        self.proved = False
        wanted = [*demand.counts, *(number for _, number in self.kinds)]
        size = len(wanted)
        largest = demand.sizes[0]
        self.rows = [
            [1.0 if column == row else 0.0 for column in range(size)] + [float(wanted[row])]
            for row in range(size)
        ]
        self.prices = [rate / largest for rate in demand.sizes]
        self.prices += [0.0] * len(self.kinds)
        self.prices.append(demand.total / largest)

    @property
    def unplaced(self) -> float:
        """The price of what the relaxation has not placed; at 0 it has a solution and proves nothing."""
        return self.prices[-1]

    def price(self, work: Work) -> list[_Column]:
        """Columns that gain at the present prices, one a kind of room; sets `proved` if these are a proof."""
        if not all(map(isfinite, self.prices)):
            return []
        types = len(self.demand.sizes)
        whole = [max(0, int(price * SCALE)) for price in self.prices[:types]]
        surplus = sum(price * count for price, count in zip(whole, self.demand.counts, strict=True))
        knapsack = _Knapsack(self.demand, whole)
        columns: list[_Column] = []
        for kind, (room, number) in enumerate(self.kinds):
            paid = max(0, int(-self.prices[types + kind] * SCALE))
            dearest, fill = knapsack.dearest(room, paid, work)
            surplus -= number * dearest
            if fill:
                columns.append([*((row, float(taken)) for row, taken in fill), (types + kind, 1.0)])
        self.proved = surplus > 0
        # at a negative price it is better to place more than is wanted
        columns += [[(row, -1.0)] for row in range(types) if self.prices[row] < -EPSILON]
        return columns

    def pivot_all(self, columns: list[_Column], work: Work) -> int:
        """Take into the basis, one by one, what still gains by then; returns how many."""
        return sum([self.pivot(column, work) for column in columns])

    def pivot(self, column: _Column, work: Work) -> bool:
        """Take a column into the basis; False when it no longer gains, or numbers are too small to go on."""
        gain = sum(self.prices[index] * value for index, value in column)
        change = [sum([row[index] * value for index, value in column]) for row in self.rows]
        steps = [
            (row[-1] / by, at)
            for at, (row, by) in enumerate(zip(self.rows, change, strict=True))
            if by > EPSILON
        ]
        if gain < EPSILON or not steps:
            return False
        work.spend(1 + len(self.rows) ** 2 // 8)
        leaving = min(steps)[1]
        divisor = change[leaving]
        pivot = [value / divisor for value in self.rows[leaving]]
        for at, by in enumerate(change):
            if at == leaving:
                self.rows[at] = pivot
            elif by:
                self.rows[at] = [a - by * b for a, b in zip(self.rows[at], pivot, strict=True)]
        self.prices = [a - gain * b for a, b in zip(self.prices, pivot, strict=True)]
        return True


class _Knapsack:
    """The dearest fill of a room, by branch and bound over rates in order of price per Mb/s."""

    def __init__(self, demand: Demand, prices: Sequence[int]) -> None:
        self.items = sorted(
            (
                (row, size, count, price)
                for row, (size, count, price) in enumerate(
                    zip(demand.sizes, demand.counts, prices, strict=True)
                )
                if price
            ),
            key=lambda item: (item[3] << _PRECISION) // item[1],
            reverse=True,
        )

    def dearest(self, room: Room, at_least: int, work: Work) -> tuple[int, list[tuple[int, int]]]:
        """The dearest fill's value, and the fill as (row, number); if none is dearer, `at_least` and none."""
        items, end = self.items, len(self.items)
        best = at_least
        best_fill: Fill | None = None
        stack: list[tuple[int, int, int, int, Fill | None]] = [(0, room.mbps, room.vfs, 0, None)]
        while stack:
            work.spend(1)
            item, mbps, vfs, value, fill = stack.pop()
            if value > best:
                best, best_fill = value, fill
            while item < end and items[item][1] > mbps:
                item += 1
            if item == end or not vfs:
                continue
            row, size, count, price = items[item]
            if value + mbps * price // size <= best:
                continue
            for taken in range(min(count, mbps // size, vfs) + 1):
                longer = (row, taken, fill) if taken else fill
                stack.append((item + 1, mbps - taken * size, vfs - taken, value + taken * price, longer))
        return best, entries(best_fill)
