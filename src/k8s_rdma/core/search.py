"""Exact search for a packing: fills one room after another, remembers what failed.

Rooms that hold few interfaces come first, since they have fewest fills; within a room, fills that
waste no more than the room's share of the slack come first, since most packings are made of such.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import TYPE_CHECKING

from k8s_rdma.core.fills import Ask, Fills, Left, Reach
from k8s_rdma.core.rooms import Fill, Room, Work, entries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from k8s_rdma.core.rooms import Demand

_Ceiling = tuple[int, int] | None
_State = tuple[int, tuple[int, ...], _Ceiling]
"""Which room is next, how many of each type are left, and the bound by the room before if that is alike."""


@dataclass(slots=True)
class _Level:
    """A room under way: its state, what is left, the fills not tried yet, the one being tried."""

    state: _State
    left: Left
    fills: Iterator[Fill | None]
    fill: list[tuple[int, int]]


class Search:
    """One search. `run` again after OutOfWorkError goes on: what has failed is remembered."""

    def __init__(self, demand: Demand, rooms: Sequence[Room]) -> None:
        mean = demand.total // len(demand.descending)
        self._order = sorted(
            range(len(rooms)), key=lambda at: (min(rooms[at].mbps, rooms[at].vfs * mean), rooms[at], at)
        )
        self._rooms = [rooms[at] for at in self._order]
        self._demand = demand
        self._work = Work(0)
        self._failed: set[_State] = set()
        last = len(rooms)
        self._alike = [len(set(self._rooms[at:])) <= 1 for at in range(last + 1)]
        self._mbps = [*accumulate((room.mbps for room in reversed(self._rooms)), initial=0)][::-1]
        self._vfs = [*accumulate((room.vfs for room in reversed(self._rooms)), initial=0)][::-1]

    def run(self, work: Work) -> list[dict[int, int]] | None:
        """For each room the number of each rate; None when no packing exists. OutOfWorkError on the way."""
        self._work = work
        levels: list[_Level] = []
        state: _State | None = (0, self._demand.counts, None)
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
        at, counts, ceiling = state
        if at == len(self._rooms) or state in self._failed:
            return None
        left = Left.of(self._demand.sizes, counts)
        self._work.spend(8 + len(left.sizes) // 2)
        if left.number > self._vfs[at] or left.total > self._mbps[at]:
            return None
        holds = [
            min(room.mbps, left.largest[min(room.vfs, left.number)]) for room in self._rooms[at:]
        ]  # no more than the bandwidth, and no more than the largest rates for its VFs
        slack = sum(holds) - left.total
        if slack < 0:
            return None
        room = Room(holds[0], self._rooms[at].vfs)
        alike = self._alike[at]
        if alike and left.sizes[0] > room.mbps:
            return None
        ask = Ask(room, (0, slack), left.number - self._vfs[at + 1], alike, ceiling)
        return _Level(state, left, self._fills(left, ask, slack // len(holds)), [])

    def _fills(self, left: Left, ask: Ask, share: int) -> Iterator[Fill | None]:
        """Fills that waste no more than `share` of the slack, then the others."""
        room, (_, slack) = ask.room, ask.waste
        most = min(slack, room.mbps)
        reach = Reach(left, room, most, self._work)
        windows = [(0, min(share, most)), (share + 1, most)]
        return chain.from_iterable(
            Fills(left, Ask(room, window, ask.at_least, ask.largest_first, ask.ceiling), reach, self._work)
            for window in windows
            if window[0] <= window[1]
        )

    def _advance(self, levels: list[_Level]) -> _State | None:
        """The state after the innermost room's next fill; None, and that room given up, when it has none."""
        level = levels[-1]
        at, counts, _ = level.state
        for fill in level.fills:
            level.fill = [(level.left.types[index], number) for index, number in entries(fill)]
            remaining = list(counts)
            for index, number in level.fill:
                remaining[index] -= number
            twin = at + 1 < len(self._rooms) and self._rooms[at + 1] == self._rooms[at]
            ceiling = level.fill[0] if twin and not self._alike[at + 1] and level.fill else None
            return at + 1, tuple(remaining), ceiling
        self._failed.add(level.state)
        levels.pop()
        return None

    def _packing(self, levels: Sequence[_Level]) -> list[dict[int, int]]:
        """The fills of all levels, in the order in which the rooms were given."""
        packing: list[dict[int, int]] = [{} for _ in self._rooms]
        for at, level in zip(self._order, levels, strict=False):
            packing[at] = {self._demand.sizes[index]: number for index, number in level.fill}
        return packing
