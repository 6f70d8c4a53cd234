"""The problem of placing one request on one node: a PF for each interface, as policy and strategy ask.

Exact within a budget of work.

PFs may also differ in the interfaces that they take, and in the costs. They differ if some cannot program a
rate that must be enforced, if drivers round differently, or if minimum rates are weights, because the cost of
an interface then depends on the others. Interfaces go to such a PF in falling order of their reservations, on
which `RoundRobin.join` relies: once the first has joined, every further one only takes from the others, so
that a load that fails now will not hold later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.bipartite_matching import TooFew, match
from k8s_rdma.core.inventory import Inventory, Pf
from k8s_rdma.core.matching import dealt, match_counts
from k8s_rdma.core.offers import (
    PREFERENCE,
    Offer,
    Standing,
    Terms,
    best_fit,
    common_costs,
    offers,
    preference,
    preferred_fit,
    room_of,
    terms,
)
from k8s_rdma.core.packing import NoPacking, OutOfWorkError, Room, Work, arrange
from k8s_rdma.core.pf_needs import has_pf_constraints
from k8s_rdma.core.pf_use import NOTHING_USED, Used
from k8s_rdma.core.rate_ability import EVERY_RATE
from k8s_rdma.core.request import InterfaceClass, PfPolicy, groups
from k8s_rdma.core.types import NO_NEEDS, Enforce, PciAddress, Strategy

if TYPE_CHECKING:
    from k8s_rdma.core.round_robin import Load

Usage = Mapping[PciAddress, Used]

_BY_NUMBERS_PERCENT = 70
"""The share of the work, at most, for methods that are cheaper than an exhaustive search."""

_GREEDY_PERCENT = 30
"""The share of the work, at most, for a strategy's own method; the following search is exact."""


def assign(classes: Sequence[int], offers: Sequence[Offer], work: Work) -> list[int] | NoPacking:
    """Return an offer's index for each interface, given as its class; the reservations of classes fall.

    The usual ways come first: best fit, then matching by numbers alone (`core.matching`), which is exact for
    most requests of few rates, then improvement of its answer by changing places. Next is any packing of the
    cheapest costs that happens to hold; if there is no such packing, that is the proof that no assignment
    holds. The last way is a search of everything.
    OutOfWorkError on the way.
    """
    work.spend(len(classes) + len(offers[0].costs) * len(offers) // 4)
    order = _order(classes, offers)
    chosen = _assign([classes[index] for index in order], offers, work)
    if isinstance(chosen, NoPacking):
        return chosen
    found = dict(zip(order, chosen, strict=True))
    return [found[index] for index in range(len(classes))]


def _order(kinds: Sequence[int], offers: Sequence[Offer]) -> Sequence[int]:
    """Order the interfaces: those that fewest PFs take come first, unless an order is given."""
    if any(offer.round_robin for offer in offers):
        return sorted(range(len(kinds)), key=kinds.__getitem__)
    refusing = [row.count(None) for row in _rows(offers)]
    return sorted(range(len(kinds)), key=lambda index: (-refusing[kinds[index]], kinds[index]))


def _assign(kinds: Sequence[int], offers: Sequence[Offer], work: Work) -> list[int] | NoPacking:
    """Assign kinds to offers; OutOfWorkError when the work is used up."""
    numbers = Counter(kinds)
    least = [min([cost for cost in row if cost is not None], default=None) for row in _rows(offers)]
    if any(least[kind] is None for kind in numbers) or _exceeds_assignment(numbers, least, offers):
        return NoPacking.IMPOSSIBLE
    chosen = best_fit([(kind, len(list(group))) for kind, group in groupby(kinds)], offers, work)
    if chosen is not None:
        return chosen
    costs = [least[kind] or 0 for kind in kinds]
    board = _Board(kinds, offers)
    try:
        with work.share(_BY_NUMBERS_PERCENT) as share:
            found = match_counts(numbers, offers, share)
            if isinstance(found, NoPacking):
                return found
            chosen = dealt(kinds, found)
            if board.holds(chosen, share):
                return chosen
    except OutOfWorkError:
        pass
    return _searched(costs, offers, board, work)


def _searched(
    costs: Sequence[int], offers: Sequence[Offer], board: _Board, work: Work
) -> list[int] | NoPacking:
    """Search by packing the least costs, then by a search of everything."""
    falling = sorted(range(len(costs)), key=costs.__getitem__, reverse=True)
    packed = arrange([costs[index] for index in falling], [offer.room for offer in offers], work)
    if isinstance(packed, NoPacking):
        return packed
    homes = dict(zip(falling, packed, strict=True))
    chosen = [homes[position] for position in range(len(costs))]
    if board.holds(chosen, work):
        return chosen
    return board.search(work) or NoPacking.IMPOSSIBLE


def _exceeds_assignment(
    numbers: Mapping[int, int], least: Sequence[int | None], offers: Sequence[Offer]
) -> bool:
    """Report whether sums alone exclude it."""
    if numbers and sum(numbers.values()) > sum(offer.room.vfs for offer in offers):
        return True
    mbps = sum((least[kind] or 0) * number for kind, number in numbers.items())
    return mbps > sum(offer.room.mbps for offer in offers)


def _rows(offers: Sequence[Offer]) -> list[tuple[int | None, ...]]:
    """Return the costs of each kind with all offers."""
    return list(zip(*(offer.costs for offer in offers), strict=True))


class _RemainingOffer(NamedTuple):
    """The rest of an offer after some interfaces were placed on it."""

    mbps: int
    vfs: int
    load: Load | None


_Berths = tuple[_RemainingOffer, ...]


@dataclass(slots=True)
class _Level:
    """An interface under way: the berths before it, and the offers that it has not tried yet."""

    berths: _Berths
    floor: int
    tries: Iterator[int]
    tried: int = -1


class _Board:
    """Interfaces by kind, before the offers."""

    def __init__(self, kinds: Sequence[int], offers: Sequence[Offer]) -> None:
        self._kinds = kinds
        self._offers = offers
        self._start: _Berths = tuple(
            _RemainingOffer(
                offer.room.mbps, offer.room.vfs, offer.round_robin.load() if offer.round_robin else None
            )
            for offer in offers
        )
        self._alike: list[int] = []

    def holds(self, chosen: Sequence[int], work: Work) -> bool:
        """Report whether every offer takes all that is assigned to it. OutOfWorkError."""
        work.spend(len(chosen))
        berths: list[_RemainingOffer] = list(self._start)
        for index, kind in zip(chosen, self._kinds, strict=True):
            after = self._berth_after(berths[index], index, kind)
            if after is None:
                return False
            berths[index] = after
        return True

    def search(self, work: Work) -> list[int] | None:
        """Search depth first, remembering failed states; None if no assignment holds. OutOfWorkError."""
        work.spend(len(self._offers) ** 2 * (1 + len(self._offers[0].costs) // 32) // 2)
        self._alike = [
            next(index for index, candidate in enumerate(self._offers) if _same_terms(offer, candidate))
            for offer in self._offers
        ]
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
            if (depth + 1, floor, after) not in failed:
                levels.append(self._level(depth + 1, floor, after))
        return None

    def _level(self, depth: int, floor: int, berths: _Berths) -> _Level:
        """Interfaces of one kind go to offers in order: that they change places makes no other assignment.

        The same holds for offers that take all alike and have as much left.
        """
        kind = self._kinds[depth]
        visited: set[tuple[int, _RemainingOffer]] = set()
        tries = []
        for offer in range(floor, len(berths)):
            key = self._alike[offer], berths[offer]
            if self._offers[offer].costs[kind] is not None and key not in visited:
                visited.add(key)
                tries.append(offer)
        tries.sort(key=lambda offer: berths[offer][:2])
        return _Level(berths, floor, iter(tries))

    def _step(self, level: _Level, depth: int) -> _Berths | None:
        """Return the berths after the next offer that takes the interface, if there is one."""
        for offer in level.tries:
            after = self._berth_after(level.berths[offer], offer, self._kinds[depth])
            if after is not None:
                level.tried = offer
                return (*level.berths[:offer], after, *level.berths[offer + 1 :])
        return None

    def _berth_after(self, berth: _RemainingOffer, offer: int, kind: int) -> _RemainingOffer | None:
        """Return the berth with one more interface of the kind, if that fits."""
        cost = self._offers[offer].costs[kind]
        if cost is None or not berth.vfs or cost > berth.mbps:
            return None
        load, round_robin = berth.load, self._offers[offer].round_robin
        if load is not None and round_robin is not None:
            load = round_robin.join(load, cost)
            if not load.is_within_limit:
                return None
        return _RemainingOffer(berth.mbps - cost, berth.vfs - 1, load)


def _same_terms(first: Offer, second: Offer) -> bool:
    same_costs = first.costs is second.costs or first.costs == second.costs
    return same_costs and first.round_robin == second.round_robin


class Offered(NamedTuple):
    """The offers to interfaces: the class of each (`core.offers.Terms`), the terms, and the offers."""

    classes: list[int]
    terms: Terms
    offers: list[Offer]


@dataclass(slots=True)
class PlacementProblem:
    """The interfaces to be placed, and the PFs.

    kinds: of interfaces, distinct, the largest reservation first.
    class_indexes: the kind of each interface, rising.
    sibling_pfs: the PFs of other interfaces of the pod.
    any_pf: whether names, links and MTU of the PFs are ignored.
    found: the PFs' terms, once they are known; they do not depend on the use.
    """

    kinds: Sequence[InterfaceClass]
    class_indexes: Sequence[int]
    inventory: Inventory
    policy: PfPolicy = PfPolicy.ANY
    sibling_pfs: Collection[PciAddress] = ()
    strategy: Strategy = Strategy.BINPACK
    any_pf: bool = False
    found: Terms | None = None

    @property
    def requested_classes(self) -> list[InterfaceClass]:
        """The kind of each interface."""
        return [self.kinds[kind] for kind in self.class_indexes]

    @property
    def rates(self) -> list[int]:
        """The reservation of each interface, Mb/s."""
        return [self.kinds[kind].min_tx_rate_mbps for kind in self.class_indexes]

    @property
    def needy(self) -> bool:
        """Report whether an interface needs something of a PF."""
        for kind in self.kinds:  # noqa: SIM110 - a generator takes three times as long
            if kind.needs is not NO_NEEDS:
                return True
        return False

    @property
    def rooms_alone(self) -> bool:
        """Report whether PFs differ for these interfaces only in their free capacity."""
        return self.inventory.takes_every_rate and not self.needy

    @property
    def choosy(self) -> bool:
        """Report whether an interface needs certain PFs, apart from the abilities of their drivers."""
        return any(has_pf_constraints(kind.needs) for kind in self.kinds)

    def groups(self) -> list[tuple[Pf, ...]]:
        """Return the sets of PFs; one set has to take all interfaces."""
        return groups(self.policy, self.inventory.pfs, self.sibling_pfs)

    def among(self, pfs: tuple[Pf, ...]) -> PlacementProblem:
        """Return the problem for these PFs only, which satisfy the policy."""
        inventory = Inventory(node=self.inventory.node, pfs=pfs)
        return replace(self, inventory=inventory, policy=PfPolicy.ANY, found=None)

    def anywhere(self) -> PlacementProblem:
        """Return the problem without conditions on the choice of PFs."""
        return replace(self, any_pf=True, found=None)

    def plain(self) -> PlacementProblem:
        """Return the problem as if drivers supported everything, and only rates were requested."""
        kinds = [InterfaceClass(kind.min_tx_rate_mbps, 0, Enforce.AUTO, NO_NEEDS) for kind in self.kinds]
        pfs = tuple(replace(pf, rates=EVERY_RATE, enforce=Enforce.AUTO) for pf in self.inventory.pfs)
        inventory = Inventory(node=self.inventory.node, pfs=pfs)
        return replace(self, kinds=kinds, inventory=inventory, found=None)

    def offered(self, used: Usage, work: Work) -> Offered:
        """Compute the offers to the interfaces. OutOfWorkError."""
        if self.found is None:
            self.found = terms(self.kinds, self.inventory.pfs, work, any_pf=self.any_pf)
        class_indexes = [self.found.class_of[kind] for kind in self.class_indexes]
        return Offered(class_indexes, self.found, offers(self.found, self.inventory.pfs, used))


def choose(task: PlacementProblem, used: Usage, work: Work) -> list[int] | NoPacking:
    """Return the index of a PF for each interface."""
    if _too_much(task, used):
        return NoPacking.IMPOSSIBLE
    try:
        if task.policy is PfPolicy.ANY:
            return _anywhere(task, used, work)
        if task.policy is PfPolicy.SPREAD_PFS:
            return _place_spread(task, used, work)
        return _place_in_one_group(task, used, work)
    except OutOfWorkError:
        return NoPacking.UNDECIDED


def _too_much(task: PlacementProblem, used: Usage) -> bool:
    """Report whether sums alone exclude it, for any PFs; no reservation costs less."""
    free, rates = rooms(task.inventory, used), task.rates
    if len(rates) > sum([room.vfs for room in free]) or sum(rates) > sum([room.mbps for room in free]):
        return True
    return bool(rates) and rates[0] > max([room.mbps for room in free if room.vfs], default=0)


def _anywhere(task: PlacementProblem, used: Usage, work: Work) -> list[int] | NoPacking:
    """Search for any assignment; OutOfWorkError when the work is used up."""
    if task.strategy is not Strategy.BINPACK:
        chosen = _preferred(task, used, work)
        if chosen:
            return chosen
    if task.rooms_alone:
        return arrange(task.rates, rooms(task.inventory, used), work)
    class_indexes, found, offers = task.offered(used, work)
    costs = common_costs(offers, found.kinds, work)
    if costs is None:
        return assign(class_indexes, offers, work)
    falling = sorted(range(len(class_indexes)), key=lambda index: -costs[class_indexes[index]])
    arranged = arrange(
        [costs[class_indexes[position]] for position in falling], [offer.room for offer in offers], work
    )
    if isinstance(arranged, NoPacking):
        return arranged
    homes = dict(zip(falling, arranged, strict=True))
    return [homes[index] for index in range(len(class_indexes))]


def _preferred(task: PlacementProblem, used: Usage, work: Work) -> list[int] | None:
    """Place by the strategy's preference, unless that fails, or takes too long for so many."""
    needed = PREFERENCE * len(task.class_indexes) * len(task.inventory.pfs)
    if needed > work.remaining * _GREEDY_PERCENT // 100:
        return None
    class_indexes, _, offers = task.offered(used, work)
    runs = [(kind, len(list(run))) for kind, run in groupby(class_indexes)]
    try:
        with work.share(_GREEDY_PERCENT) as share:
            return preferred_fit(runs, offers, task.strategy, share)
    except OutOfWorkError:
        return None


def rooms(inventory: Inventory, used: Usage) -> list[Room]:
    """Return the free capacity of each PF."""
    return [room_of(pf, used.get(pf.pci, NOTHING_USED)) for pf in inventory.pfs]


def _place_in_one_group(task: PlacementProblem, used: Usage, work: Work) -> list[int] | NoPacking:
    """Place all on one group of PFs: the first that takes them, in the strategy's order.

    Each may take its part of the work that is left, so that a hard one does not keep from trying the next.
    """
    found = NoPacking.IMPOSSIBLE
    ordered = _roomy(task, used)
    for tried, group in enumerate(ordered):
        with work.share(100 // (len(ordered) - tried)) as share:
            chosen = choose(task.among(group), used, share)
        if not isinstance(chosen, NoPacking):
            positions = {pf.pci: index for index, pf in enumerate(task.inventory.pfs)}
            return [positions[group[index].pci] for index in chosen]
        if chosen is NoPacking.UNDECIDED:
            found = chosen
    return found


def _roomy(task: PlacementProblem, used: Usage) -> list[tuple[Pf, ...]]:
    """Return the groups that would have room if it were of one piece, the preferred one first.

    A reservation costs as much as it says at least.
    """
    mbps, vfs = sum(task.rates), len(task.class_indexes)

    def standing(group: Iterable[Pf]) -> Standing:
        return Standing.total(
            [Standing.from_room(pf, room_of(pf, used.get(pf.pci, NOTHING_USED))) for pf in group]
        )

    found = [(standing(group), group) for group in task.groups()]
    roomy = [(free, group) for free, group in found if mbps <= free.mbps and vfs <= free.vfs]
    return [
        group for room, group in sorted(roomy, key=lambda pair: preference(task.strategy, pair[0], mbps, vfs))
    ]


def _place_spread(task: PlacementProblem, used: Usage, work: Work) -> list[int] | NoPacking:
    """Place each interface on a PF of its own."""
    found = matched(task, used, work)
    if isinstance(found, TooFew):
        return NoPacking.IMPOSSIBLE
    positions = [index for index, pf in enumerate(task.inventory.pfs) if pf.pci not in task.sibling_pfs]
    return [positions[index] for index in found]


def matched(task: PlacementProblem, used: Usage, work: Work) -> list[int] | TooFew:
    """Match each interface with a PF of its own besides these; or the interfaces with too few PFs."""
    [free] = task.groups()
    if len(task.class_indexes) > len(free):
        return TooFew(range(len(task.class_indexes)), range(len(free)))
    class_indexes, _, offers = task.among(free).offered(used, work)
    return match(class_indexes, offers, task.strategy, work)
