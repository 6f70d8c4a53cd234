"""Interfaces matched to PFs by number: maximum flow, and repair of bandwidth afterwards.

If only the numbers of VFs and of reservations count, because each PF has one price for all interfaces that
reserve bandwidth, a maximum flow decides exactly. A refusal is then a proof (Hall's theorem: some interfaces
have too few VFs on the PFs that take them). If reservations have several sizes, the flow's answer is a start
that overloads some PFs, and interfaces change places until no PF is overloaded.
"""

from __future__ import annotations

from collections import Counter, deque
from itertools import combinations, islice, pairwise
from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.packing import NoPacking, Room, Work

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from k8s_rdma.core.offers import Offer


_Graph = list[dict[int, int]]
"""The residual capacities of a flow network, from each node to others."""

_UNLIMITED = 1 << 62
_SOURCE, _SINK = 0, 1

Shares = list[Counter[int]]
"""The number of interfaces of each class, by PF."""

_ALL_SETS_OF_PFS = 6
"""The number of PFs up to which every set is examined; of more, at most `_PAIRS` sets and the requested
ones."""
_PAIRS = 256


class Lot(NamedTuple):
    """Interfaces that the same PFs take. reserving: whether they take bandwidth there."""

    takers: tuple[int, ...]
    reserving: bool
    number: int


def share_out(
    lots: Sequence[Lot], rooms: Sequence[Room], reservations: Sequence[int], work: Work
) -> list[dict[int, int]] | None:
    """Share lots out among PFs: the number of each on each, unless counting excludes it. OutOfWorkError.

    reservations: the most interfaces with a reservation that each PF takes.
    """
    work.spend(sum([len(lot.takers) for lot in lots]))
    graph: _Graph = [{} for _ in range(2 + len(lots) + 2 * len(rooms))]
    first = 2 + len(lots)
    for index, (room, reservation) in enumerate(zip(rooms, reservations, strict=True)):
        pf = first + 2 * index
        _join(graph, pf, _SINK, room.vfs)
        _join(graph, pf + 1, pf, reservation)
    for index, lot in enumerate(lots, start=2):
        _join(graph, _SOURCE, index, lot.number)
        for pf in lot.takers:
            _join(graph, index, first + 2 * pf + lot.reserving, _UNLIMITED)
    if _flow(graph, work) < sum(lot.number for lot in lots):
        return None
    return [
        {pf: number for pf in lot.takers if (number := graph[first + 2 * pf + lot.reserving][position])}
        for position, lot in enumerate(lots, start=2)
    ]


def _join(graph: _Graph, tail: int, head: int, capacity: int) -> None:
    graph[tail][head] = capacity
    graph[head][tail] = 0


def _flow(graph: _Graph, work: Work) -> int:
    """Return the largest flow from source to sink (Dinic 1970); the graph keeps the rest of its capacity."""
    edges = sum(map(len, graph))
    total = 0
    while True:
        work.spend(1 + edges // 2)
        levels = _levels(graph)
        if levels[_SINK] < 0:
            return total
        untried = [
            [target for target, capacity in ways.items() if capacity and levels[target] == level + 1]
            for ways, level in zip(graph, levels, strict=True)
        ]
        while pushed := _push(graph, untried, work):
            total += pushed


def _levels(graph: _Graph) -> list[int]:
    """Return the distance of each node from the source; -1 for unreachable ones."""
    levels = [-1] * len(graph)
    levels[_SOURCE] = 0
    queue = deque([_SOURCE])
    while queue:
        node = queue.popleft()
        for target, capacity in graph[node].items():
            if capacity and levels[target] < 0:
                levels[target] = levels[node] + 1
                queue.append(target)
    return levels


def _push(graph: _Graph, untried: Sequence[list[int]], work: Work) -> int:
    """Send as much as one way takes; 0 if there is no way left."""
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
    amount = min(graph[source][target] for source, target in steps)
    for start, end in steps:
        graph[start][end] -= amount
        graph[end][start] += amount
    return amount


class Batch(NamedTuple):
    """The interfaces of one class (`core.offers.Terms`).

    takers: the PFs that take one of them beside no other.
    cost: Mb/s on the PF that takes the least.
    """

    kind: int
    number: int
    takers: tuple[int, ...]
    cost: int

    @classmethod
    def for_kind(cls, kind: int, number: int, offers: Sequence[Offer]) -> Batch:
        """Return the batch before these offers."""
        costs = {
            pf: cost
            for pf, offer in enumerate(offers)
            if (cost := offer.costs[kind]) is not None and offer.room.vfs and cost <= offer.room.mbps
        }
        return cls(kind, number, tuple(costs), min(costs.values(), default=0))


def match_counts(numbers: Mapping[int, int], offers: Sequence[Offer], work: Work) -> Shares | NoPacking:
    """Find the number of each class on each PF; `IMPOSSIBLE` if there is provably no way.

    Every PF has VFs for its share, but changes of place may not have led to enough bandwidth for it. If all
    interfaces with a reservation cost the same on a PF, its bandwidth is enough.
    OutOfWorkError on the way.

    numbers: how many there are of each class.
    """
    work.spend(1 + len(numbers) * len(offers) // 2)
    batches = [Batch.for_kind(index, number, offers) for index, number in sorted(numbers.items())]
    lots: Counter[tuple[tuple[int, ...], bool]] = Counter()
    for batch in batches:
        lots[batch.takers, batch.cost > 0] += batch.number
    rooms = [offer.room for offer in offers]
    shared = share_out([Lot(*key, lots[key]) for key in lots], rooms, _reservations(batches, offers), work)
    if shared is None:
        return NoPacking.IMPOSSIBLE
    work.spend(sum([batch.number * (2 + len(batch.takers) // 4) for batch in batches]))
    mending = _Rebalancing(_deal(batches, dict(zip(lots, shared, strict=True)), offers), batches, offers)
    if not mending.is_balanced and crowded(batches, rooms, work):
        return NoPacking.IMPOSSIBLE
    return mending.run(work)


def dealt(classes: Iterable[int], shares: Shares) -> list[int]:
    """Return the PF of each interface, given as its class."""
    homes: dict[int, deque[int]] = {}
    for pf, share in enumerate(shares):
        for kind, number in share.items():
            homes.setdefault(kind, deque()).extend([pf] * number)
    return [homes[kind].popleft() for kind in classes]


def _reservations(batches: Iterable[Batch], offers: Sequence[Offer]) -> list[int]:
    """Return the most interfaces with a reservation that each PF takes: as many as of the smallest."""
    smallest: dict[int, int] = {}
    for batch in batches:
        for pf in batch.takers:
            cost = offers[pf].costs[batch.kind]
            if cost:
                smallest[pf] = min(cost, smallest.get(pf, cost))
    return [offer.room.mbps // smallest[pf] if pf in smallest else 0 for pf, offer in enumerate(offers)]


def crowded(batches: Iterable[Batch], rooms: Sequence[Room], work: Work) -> bool:
    """Report whether some PFs must take more than they have, because the others lack VFs or refuse.

    So many interfaces must come to these PFs that even the smallest ones cost more than their free bandwidth.
    """
    ascending = sorted(batches, key=lambda batch: batch.cost)
    masks = [sum([1 << pf for pf in batch.takers]) for batch in ascending]
    total = sum([batch.number for batch in ascending])
    for pf_set in _sets_of_pfs(frozenset(masks), len(rooms)):
        work.spend(1 + (len(ascending) + len(rooms)) // 2)
        set_rooms = [room for pf, room in enumerate(rooms) if pf_set >> pf & 1]
        elsewhere = sum([room.vfs for pf, room in enumerate(rooms) if not pf_set >> pf & 1])
        bound = [
            batch.number if not mask & ~pf_set else 0 for batch, mask in zip(ascending, masks, strict=True)
        ]
        missing_vfs, mbps = max(0, total - elsewhere - sum(bound)), 0
        for batch, mask, number in zip(ascending, masks, bound, strict=True):
            joining = min(missing_vfs, batch.number) if mask & pf_set and not number else 0
            missing_vfs -= joining
            mbps += batch.cost * (number + joining)
        if missing_vfs or mbps > sum([room.mbps for room in set_rooms]):
            return True
    return False


def _sets_of_pfs(pf_masks: Collection[int], pfs: int) -> Iterable[int]:
    """List sets, as bits, that are worth checking; pf_masks: those that some interfaces are bound to."""
    every = (1 << pfs) - 1
    if pfs <= _ALL_SETS_OF_PFS:
        return range(1, every + 1)
    pf_sets = {*pf_masks, *(1 << pf for pf in range(pfs))}
    pairs = islice((first | second for first, second in combinations(sorted(pf_masks), 2)), _PAIRS)
    return sorted({*pf_sets, *(every & ~pf_set for pf_set in pf_sets), *pairs} - {0})


def _deal(
    batches: Iterable[Batch],
    shared: Mapping[tuple[tuple[int, ...], bool], dict[int, int]],
    offers: Sequence[Offer],
) -> Shares:
    """Give the classes to PFs in these numbers, the largest first, each where most is left for a VF."""
    mbps = [offer.room.mbps for offer in offers]
    vfs = [offer.room.vfs for offer in offers]
    shares: Shares = [Counter() for _ in offers]
    for batch in batches:
        places = shared[batch.takers, batch.cost > 0]
        for _ in range(batch.number):
            pf = max((pf for pf in places if places[pf]), key=lambda pf: mbps[pf] / vfs[pf])
            places[pf] -= 1
            mbps[pf] -= offers[pf].costs[batch.kind] or 0
            vfs[pf] -= 1
            shares[pf][batch.kind] += 1
    return shares


class _Rebalancing:
    """Interfaces change places while that takes load off PFs that have too much of it."""

    def __init__(self, shares: Shares, batches: Iterable[Batch], offers: Sequence[Offer]) -> None:
        self._shares = shares
        self._takers = {batch.kind: frozenset(batch.takers) for batch in batches}
        self._costs = [[cost or 0 for cost in offer.costs] for offer in offers]
        self._vfs = [offer.room.vfs - share.total() for offer, share in zip(offers, shares, strict=True)]
        self._mbps = [
            offer.room.mbps - sum([costs[kind] * number for kind, number in share.items()])
            for offer, costs, share in zip(offers, self._costs, shares, strict=True)
        ]

    @property
    def is_balanced(self) -> bool:
        """Report whether no PF is overloaded."""
        return min(self._mbps) >= 0

    def run(self, work: Work) -> Shares:
        """Exchange until no PF is overloaded, or no exchange helps."""
        while not self.is_balanced:
            if not any(self._relieve(pf, work) for pf in self._by_room() if self._mbps[pf] < 0):
                break
        return self._shares

    def _by_room(self) -> list[int]:
        """Return the PFs, the most overloaded first."""
        return sorted(range(len(self._mbps)), key=self._mbps.__getitem__)

    def _relieve(self, source: int, work: Work) -> bool:
        """Take load off a PF by the best exchange with the first other that helps; report if one does."""
        for target in reversed(self._by_room()):
            if target == source:
                continue
            found = self._exchange(source, target, work)
            if found is not None:
                goes, comes = found
                self._shift(goes, source, target)
                if comes is not None:
                    self._shift(comes, target, source)
                return True
        return False

    def _exchange(self, source: int, target: int, work: Work) -> tuple[int, int | None] | None:
        """Return the best exchange of two PFs: the class that goes and the one that comes back."""
        costs, target_costs = self._costs[source], self._costs[target]
        mine, target_mbps = self._mbps[source], self._mbps[target]
        least = min(0, mine) + min(0, target_mbps)
        best: tuple[int, int | None] | None = None
        come: list[tuple[int | None, int, int]] = [(None, 0, 0)] if self._vfs[target] else []
        come += [
            (share, costs[share], target_costs[share])
            for share in self._shares[target]
            if source in self._takers[share]
        ]
        go = [kind for kind in self._shares[source] if target in self._takers[kind]]
        work.spend(2 + (len(self._shares[source]) + len(self._shares[target]) + len(go) * len(come)) // 2)
        for goes in go:
            after, target_after = mine + costs[goes], target_mbps - target_costs[goes]
            for comes, cost, freed in come:
                lacking = min(0, after - cost) + min(0, target_after + freed)
                if lacking > least:
                    least, best = lacking, (goes, comes)
        return best

    def _shift(self, batch: int, source: int, target: int) -> None:
        self._shares[source][batch] -= 1
        if not self._shares[source][batch]:
            del self._shares[source][batch]
        self._shares[target][batch] += 1
        self._vfs[source] += 1
        self._vfs[target] -= 1
        self._mbps[source] += self._costs[source][batch]
        self._mbps[target] -= self._costs[target][batch]
