"""Which PFs interfaces go to where their numbers alone count: a maximum flow.

By numbers alone means: so many VFs a PF, and so many interfaces with a reservation. That decides exactly
where each PF has one price for all that reserve anything of it, and it is a proof wherever it says no
(Hall's theorem: some interfaces have too few VFs on the PFs that take them).
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from k8s_rdma.core.rooms import Room, Work

_Graph = list[dict[int, int]]
"""For each node what may still flow to which others."""

_UNLIMITED = 1 << 62
_SOURCE, _SINK = 0, 1


class Lot(NamedTuple):
    """Interfaces that the same PFs take. reserving: whether they take bandwidth there."""

    takers: tuple[int, ...]
    reserving: bool
    number: int


def share_out(
    lots: Sequence[Lot], rooms: Sequence[Room], reservations: Sequence[int], work: Work
) -> list[dict[int, int]] | None:
    """How many of each lot go to each PF; None when numbers alone exclude it. OutOfWorkError on the way.

    reservations: how many of the reserving interfaces each PF takes at most.
    """
    graph: _Graph = [{} for _ in range(2 + len(lots) + 2 * len(rooms))]
    first = 2 + len(lots)
    for at, (room, most) in enumerate(zip(rooms, reservations, strict=True)):
        pf = first + 2 * at
        _join(graph, pf, _SINK, room.vfs)
        _join(graph, pf + 1, pf, most)
    for at, lot in enumerate(lots, start=2):
        _join(graph, _SOURCE, at, lot.number)
        for pf in lot.takers:
            _join(graph, at, first + 2 * pf + lot.reserving, _UNLIMITED)
    if _flow(graph, work) < sum(lot.number for lot in lots):
        return None
    return [
        {pf: number for pf in lot.takers if (number := graph[first + 2 * pf + lot.reserving][at])}
        for at, lot in enumerate(lots, start=2)
    ]


def flows(amounts: Collection[tuple[tuple[int, ...], int]], capacities: Sequence[int], work: Work) -> bool:
    """Whether amounts, each with the PFs that it may be divided over, fit these capacities."""
    graph: _Graph = [{} for _ in range(2 + len(amounts) + len(capacities))]
    first = 2 + len(amounts)
    for at, capacity in enumerate(capacities):
        _join(graph, first + at, _SINK, capacity)
    for at, (takers, amount) in enumerate(amounts, start=2):
        _join(graph, _SOURCE, at, amount)
        for pf in takers:
            _join(graph, at, first + pf, _UNLIMITED)
    return _flow(graph, work) == sum(amount for _, amount in amounts)


def _join(graph: _Graph, one: int, other: int, capacity: int) -> None:
    graph[one][other] = capacity
    graph[other][one] = 0


def _flow(graph: _Graph, work: Work) -> int:
    """The largest flow from source to sink (Dinic 1970); the graph is what is left of it."""
    edges = sum(map(len, graph))
    total = 0
    while True:
        work.spend(1 + edges // 2)
        levels = _levels(graph)
        if levels[_SINK] < 0:
            return total
        untried = [
            [to for to, capacity in ways.items() if capacity and levels[to] == level + 1]
            for ways, level in zip(graph, levels, strict=True)
        ]
        while pushed := _push(graph, untried, work):
            total += pushed


def _levels(graph: _Graph) -> list[int]:
    """How far each node is from the source; -1 for those that nothing reaches."""
    levels = [-1] * len(graph)
    levels[_SOURCE] = 0
    queue = deque([_SOURCE])
    while queue:
        at = queue.popleft()
        for to, capacity in graph[at].items():
            if capacity and levels[to] < 0:
                levels[to] = levels[at] + 1
                queue.append(to)
    return levels


def _push(graph: _Graph, untried: Sequence[list[int]], work: Work) -> int:
    """Send as much as one way takes; 0 when there is none left."""
    path = [_SOURCE]
    while path[-1] != _SINK:
        ways = untried[path[-1]]
        while ways and not graph[path[-1]][ways[-1]]:
            ways.pop()
        work.spend(1)
        if ways:
            path.append(ways[-1])
            continue
        path.pop()
        if not path:
            return 0
        untried[path[-1]].pop()
    steps = list(pairwise(path))
    amount = min(graph[one][other] for one, other in steps)
    for one, other in steps:
        graph[one][other] -= amount
        graph[other][one] += amount
    return amount
