"""Offers of PFs to a request: free capacity, the interfaces that each takes, their costs, and strategies.

Interfaces are placed one after the other if PFs differ in the interfaces that they take, and in the cost.

A strategy decides which PFs and nodes score higher, by the shares of a PF that it compares.

Bounds count how many of a request's interfaces each PF surely takes: its free VFs and bandwidth, divided as
if every interface cost as much as the dearest one. If these are enough, any order of placing works, because
an interface that fits on no PF finds each one with as many as were counted, so that all of them have a place
already. Every way of `core.placement.place` begins with placing one after the other, so that it finds a
placement as well, and within its work budget. If all interfaces cost the same and PFs differ only in their
free capacity, the count is exact: too few prove that there is no placement.

If any free VF suits any interface, two figures of a node mostly decide without a look at its PFs: how many
VFs are free, and how much bandwidth all of them can have at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.inventory import Inventory, Pf
from k8s_rdma.core.packing import Room, Work
from k8s_rdma.core.pf_masks import PfMasks
from k8s_rdma.core.pf_use import NOTHING_USED, Used
from k8s_rdma.core.programming import objection, reserved
from k8s_rdma.core.rate_ability import EVERY_RATE
from k8s_rdma.core.request import InterfaceClass, PfPolicy, Request, groups
from k8s_rdma.core.round_robin import Load, RoundRobin, Weighing, keeps_minimums
from k8s_rdma.core.types import NO_NEEDS, Enforce, PciAddress, Setting, Strategy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


WHOLE = 1000
"""Shares are counted in thousandths."""

Worth = Callable[[int, int, int, int], int]
"""The worth of a PF in thousandths, by VFs taken and there, Mb/s taken and there."""

PREFERENCE = 2
"""Work units that it takes to know how much a strategy would rather have an interface on an offer."""

_MOST_CLASSES = 16
_MOST_TRIES = 4_096
"""Interfaces times PFs: `place` spends half of its budget at most on placing so many one after the other."""


def fullness(vfs: int, capacity_vfs: int, mbps: int, link_mbps: int) -> int:
    """Return the larger share taken, in thousandths; a PF without VFs is full, no bandwidth is ignored."""
    share = _share(vfs, capacity_vfs)
    return max(share, _share(mbps, link_mbps)) if link_mbps else share


def gap(vfs: int, capacity_vfs: int, mbps: int, link_mbps: int) -> int:
    """Return the distance of the two used shares, in thousandths; 0 if there is no bandwidth."""
    return abs(_share(vfs, capacity_vfs) - _share(mbps, link_mbps)) if link_mbps else 0


def bandwidth_share(vfs: int, capacity_vfs: int, mbps: int, link_mbps: int) -> int:
    """Return the share of bandwidth taken, in thousandths; if there is no bandwidth, the share of VFs."""
    return _share(mbps, link_mbps) if link_mbps else _share(vfs, capacity_vfs)


def worth_to(strategy: Strategy, *, reserving: bool) -> Worth:
    """Return the worth of PFs to the strategy, for a request with or without reserved bandwidth."""
    if strategy is Strategy.BINPACK:
        return bandwidth_share if reserving else fullness
    distance = fullness if strategy is Strategy.SPREAD else gap
    return lambda *shares: WHOLE - distance(*shares)


def _share(used: int, capacity: int) -> int:
    return min(WHOLE, WHOLE * used // capacity) if capacity > 0 else WHOLE


class Standing(NamedTuple):
    """The free and the whole capacity of PFs: Mb/s, and VFs."""

    mbps: int
    vfs: int
    link_mbps: int
    capacity_vfs: int

    @classmethod
    def from_room(cls, pf: Pf, room: Room) -> Standing:
        """Return the standing of a PF; if its link is unknown, it has no bandwidth."""
        return cls(room.mbps, room.vfs, pf.link_mbps or 0, pf.capacity_vfs)

    @classmethod
    def total(cls, standings: Iterable[Standing]) -> Standing:
        """Return the sum over several PFs."""
        return cls(*map(sum, zip(*standings, strict=True)))

    @property
    def shares(self) -> tuple[int, int, int, int]:
        """VFs taken and there, Mb/s taken and there."""
        return self.capacity_vfs - self.vfs, self.capacity_vfs, self.link_mbps - self.mbps, self.link_mbps

    def minus(self, mbps: int, vfs: int) -> Standing:
        """Return the standing after so much was taken."""
        return self._replace(mbps=self.mbps - mbps, vfs=self.vfs - vfs)


def preference(strategy: Strategy, standing: Standing, mbps: int, vfs: int = 1) -> tuple[int, ...]:
    """Return a key for interfaces that take this much: the strategy prefers the least.

    BINPACK prefers the PF with the least bandwidth left. SPREAD prefers the PF that is least full afterwards.
    BALANCED prefers the PF on which the shares of VFs and of bandwidth come closest, and decides between
    equals as BINPACK does.
    """
    if strategy is Strategy.BINPACK:
        return standing.mbps, standing.vfs
    after = standing.minus(mbps, vfs)
    if strategy is Strategy.SPREAD:
        return fullness(*after.shares), -standing.mbps, -standing.vfs
    return gap(*after.shares) - gap(*standing.shares), standing.mbps, standing.vfs


class Bin:
    """An offer that fills up, and the amount that one more interface of the present kind takes of it.

    cost: 0 for a kind that it does not take.
    after: its load with one more, once it was computed.
    """

    __slots__ = ("after", "cost", "index", "load", "mbps", "offer", "vfs")

    def __init__(self, index: int, offer: Offer) -> None:
        self.index = index
        self.offer = offer
        self.mbps, self.vfs = offer.room
        self.load = offer.round_robin.load() if offer.round_robin else None
        self.cost = 0
        self.after: Load | None = None

    def turn_to(self, kind: int) -> bool:
        """Make ready for interfaces of the kind; whether one may fit."""
        cost = self.offer.costs[kind]
        self.cost, self.after = cost or 0, None
        return cost is not None and self._has_room()

    def accepts(self, work: Work) -> bool:
        """Report whether one more of the kind fits; the effort of finding out goes off `work`."""
        if not self._has_room():
            return False
        round_robin, load = self.offer.round_robin, self.load
        if round_robin is None or load is None:
            return True
        if self.after is None:
            if self.cost > load.largest:  # # all minima are to be weighed again
                work.spend(1 + len(round_robin.mins) // 2)
            self.after = round_robin.join(load, self.cost)
        return self.after.is_within_limit

    def add(self, number: int = 1) -> None:
        """Take more of the kind; more than one only if rates are no weights."""
        self.mbps -= self.cost * number
        self.vfs -= number
        self.load, self.after = self.after, None

    def room_for(self, number: int) -> int:
        """Return the number of these interfaces that the PF takes at once; one if rates are weights."""
        if self.load is not None:
            return 1
        return min(number, self.vfs, self.mbps // self.cost if self.cost else number)

    def preference(self, strategy: Strategy) -> tuple[int, ...]:
        """See `core.offers`; of one more of the kind."""
        standing = Standing(self.mbps, self.vfs, self.offer.pf.link_mbps or 0, self.offer.pf.capacity_vfs)
        return preference(strategy, standing, self.cost)

    def _has_room(self) -> bool:
        return self.cost <= self.mbps and self.vfs > 0


def best_fit(kind_counts: Iterable[tuple[int, int]], offers: Sequence[Offer], work: Work) -> list[int] | None:
    """Give each interface to the offer that it leaves least bandwidth in; None if one fits nowhere.

    Return the index of an offer for each interface; ties as in `packing.best_fit`.
    OutOfWorkError on the way.

    kind_counts: kinds and how many of each.
    """
    return _fit(kind_counts, offers, work, _room)


def preferred_fit(
    kind_counts: Iterable[tuple[int, int]], offers: Sequence[Offer], strategy: Strategy, work: Work
) -> list[int] | None:
    """Fit as `best_fit`, but by the strategy's preference."""

    def order(candidate: Bin) -> tuple[int, ...]:
        return *candidate.preference(strategy), candidate.index

    return _fit(kind_counts, offers, work, order, weighed=PREFERENCE)


def _fit(
    kind_counts: Iterable[tuple[int, int]],
    offers: Sequence[Offer],
    work: Work,
    order: Callable[[Bin], tuple[int, ...]],
    weighed: int = 0,
) -> list[int] | None:
    """Give each interface to the first offer, by this order, that takes it; None if one fits nowhere.

    The first one by its room still takes one more interface of the kind.

    weighed: work units that it takes to put one offer in order, 0 for half of one.
    """
    bins = [Bin(index, offer) for index, offer in enumerate(offers)]
    chosen: list[int] = []
    for kind, number in kind_counts:
        work.spend(1 + len(bins) // 2)
        takers = [candidate for candidate in bins if candidate.turn_to(kind)]
        remaining = number
        while remaining:
            work.spend(1 + (weighed * len(takers) or len(takers) // 2))
            takers.sort(key=order)
            best = next((taker for taker in takers if taker.accepts(work)), None)
            if best is None:
                return None
            batch = best.room_for(remaining) if order is _room else 1
            best.add(batch)
            chosen += [best.index] * batch
            remaining -= batch
    return chosen


def _room(candidate: Bin) -> tuple[int, int, int]:
    return candidate.mbps, candidate.vfs, candidate.index


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The offer of one PF.

    room: its free capacity; no bandwidth if it takes no reservation of the request, no VFs if it takes no
        interface of it.
    costs: the bandwidth that an interface of each class takes of its link, Mb/s; None for a class that it
        does not take.
    round_robin: its shares, if its minimum rates are weights.
    """

    pf: Pf
    room: Room
    costs: tuple[int | None, ...]
    round_robin: RoundRobin | None = None

    @property
    def accepts_any(self) -> bool:
        """Report whether there is a kind of interface that it takes."""
        return any(cost is not None for cost in self.costs)


def room_of(pf: Pf, used: Used) -> Room:
    """Return the free capacity of a PF; an unknown link has no bandwidth to reserve."""
    return Room(max(0, (pf.link_mbps or 0) - used.mbps), max(0, pf.capacity_vfs - used.vfs))


class Terms(NamedTuple):
    """The interfaces that PFs take and their costs, without regard to free capacity.

    Kinds that every PF takes at the same cost are one class: a thousand selectors are few of these. Classes
    are in the order of their first kinds.

    kinds: the first of each class.
    class_of: for each kind.
    costs: for each PF, the bandwidth that an interface of each class takes of its link; None if it does not
        take it.
    """

    kinds: Sequence[InterfaceClass]
    class_of: Sequence[int]
    costs: Sequence[tuple[int | None, ...]]


def terms(kinds: Sequence[InterfaceClass], pfs: Sequence[Pf], work: Work, *, any_pf: bool = False) -> Terms:
    """Return the terms of these distinct kinds of interfaces. OutOfWorkError on the way.

    any_pf: whether every PF is acceptable whose driver supports the interface.
    """
    work.spend(4 * len(kinds) + 2 * len(pfs))
    alike: dict[tuple[object, ...], list[int]] = {}
    for position, pf in enumerate(pfs):
        caps = Setting.SOFTWARE_CAPS in pf.supported_settings
        alike.setdefault((pf.rates, pf.link_mbps, pf.enforce, caps), []).append(position)
    by_software = any(kind.enforce is Enforce.SOFTWARE for kind in kinds)
    rows = [_costs(pfs[indexes[0]], kinds, work, by_software=by_software) for indexes in alike.values()]
    index: dict[tuple[int | None, ...], int] = {}
    class_of = [
        index.setdefault(key, len(index))
        for key in zip(_masks(kinds, pfs, any_pf=any_pf), *rows, strict=True)
    ]
    work.spend((len(kinds) * len(rows) + len(index) * len(pfs)) // 6)
    costs: list[tuple[int | None, ...]] = [()] * len(pfs)
    for row, group in enumerate(alike.values(), start=1):
        for position in group:
            costs[position] = tuple([key[row] if (key[0] or 0) >> position & 1 else None for key in index])
    first = dict(zip(reversed(class_of), reversed(kinds), strict=True))
    return Terms([first[number] for number in range(len(index))], class_of, costs)


def _masks(kinds: Sequence[InterfaceClass], pfs: Sequence[Pf], *, any_pf: bool) -> list[int]:
    """Return the PFs that meet the needs of each kind, as bits."""
    masks = PfMasks(pfs)
    meeting = masks.able if any_pf else masks.meeting
    by_needs = {id(NO_NEEDS): meeting(NO_NEEDS)}
    for kind in kinds:
        if id(kind.needs) not in by_needs:
            by_needs[id(kind.needs)] = meeting(kind.needs)
    return [by_needs[id(kind.needs)] for kind in kinds]


def _costs(
    pf: Pf, kinds: Sequence[InterfaceClass], work: Work, *, by_software: bool
) -> tuple[int | None, ...]:
    """Return the cost of each class on the PF, if the PF takes it.

    by_software: whether software is demanded by any of them.
    """
    if pf.rates is EVERY_RATE and not by_software and pf.enforce is not Enforce.SOFTWARE:
        return tuple([kind.min_tx_rate_mbps for kind in kinds])
    work.spend(3 * len(kinds))
    return tuple([None if objection(pf, kind) else reserved(pf, kind.min_tx_rate_mbps) for kind in kinds])


def offers(found: Terms, pfs: Sequence[Pf], used: Mapping[PciAddress, Used]) -> list[Offer]:
    """Return the offers of all PFs on these terms."""
    reserving = any(kind.min_tx_rate_mbps for kind in found.kinds)
    result = []
    for pf, costs in zip(pfs, found.costs, strict=True):
        usage = used.get(pf.pci, NOTHING_USED)
        room = _useful(room_of(pf, usage), costs, reserving=reserving)
        result.append(Offer(pf=pf, room=room, costs=costs, round_robin=RoundRobin.for_pf(pf, usage)))
    return result


def _useful(room: Room, costs: Sequence[int | None], *, reserving: bool) -> Room:
    """Return the usable part of the room; a request that reserves no bandwidth leaves bandwidth as it is."""
    if any(costs):
        return room
    return Room(0 if reserving else room.mbps, room.vfs if 0 in costs else 0)


def common_costs(offers: Iterable[Offer], kinds: Sequence[InterfaceClass], work: Work) -> list[int] | None:
    """Return the cost of each class, if it is equal on all PFs and minima are no weights.

    PFs with equal costs differ in their room only.
    OutOfWorkError on the way.
    """
    costs: dict[int, int] = {}
    for offer in offers:
        if offer.round_robin is not None:
            return None
        work.spend(len(kinds) // 4)
        for index, kind in enumerate(kinds):
            cost = offer.costs[index]
            if not offer.room.vfs or (kind.min_tx_rate_mbps and not offer.room.mbps):
                continue
            if cost is None or costs.setdefault(index, cost) != cost:
                return None
    return [costs.get(index, kind.min_tx_rate_mbps) for index, kind in enumerate(kinds)]


class Headroom(NamedTuple):
    """The free capacity of a node's PFs, in their order.

    weighings: the effect of more VFs on the others, of each PF whose minimum rates are weights; empty without
        such PFs.
    """

    rooms: tuple[Room, ...]
    weighings: tuple[Weighing | None, ...] = ()

    @classmethod
    def of_node(cls, inventory: Inventory, used: Mapping[PciAddress, Used]) -> Headroom | None:
        """Return the headroom beside the use, unless `used` lacks the `mins` of a PF with weights."""
        usages = [(pf, used.get(pf.pci, NOTHING_USED)) for pf in inventory.pfs]
        rooms = tuple([room_of(pf, usage) for pf, usage in usages])
        if all(pf.rates.weights is None for pf in inventory.pfs):
            return cls(rooms)
        try:
            return cls(rooms, tuple([Weighing.for_pf(pf, usage) for pf, usage in usages]))
        except ValueError:
            return None

    @property
    def each_mbps(self) -> int:
        """The bandwidth that each free VF can have when all have it, Mb/s."""
        return min([room.mbps // room.vfs for room in self.rooms if room.vfs], default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The bounds of one request on all nodes with the same PFs.

    number: of interfaces.
    costs: of the dearest interface on each PF, Mb/s; None if it is not sure that the PF takes any.
    runs: costs, falling, and the number of interfaces of each, if these are equal on all PFs, and the request
        has no policy; empty if not.
    groups: indexes of PFs; one group has to take all interfaces.
    apart: whether each needs a PF of its own.
    weighed: whether minimum rates of a PF are weights.
    each_mbps: the largest cost, if any VF with that much bandwidth suits any interface; None if not.
    """

    number: int
    costs: Sequence[int | None]
    runs: Sequence[tuple[int, int]]
    groups: Sequence[Sequence[int]]
    apart: bool
    weighed: bool
    each_mbps: int | None

    @classmethod
    def for_pfs(cls, request: Request, inventory: Inventory) -> Bounds | None:
        """Return the bounds, if counting decides such a request.

        request: its interfaces are no exclusive devices on these nodes.
        """
        number, pfs, kinds = len(request.interfaces), inventory.pfs, request.shape.kinds
        if request.shape.near_gpus or len(kinds) > _MOST_CLASSES or not 0 < number * len(pfs) <= _MOST_TRIES:
            return None
        found = terms(kinds, pfs, Work(_MOST_TRIES))
        index = {pf.pci: position for position, pf in enumerate(pfs)}
        costs = [_dearest(pf, row) for pf, row in zip(pfs, found.costs, strict=True)]
        weighed = any(pf.rates.weights is not None for pf in pfs)
        accepted = [cost for cost in costs if cost is not None]
        any_vf = request.policy is PfPolicy.ANY and not weighed and len(accepted) == len(pfs)
        return cls(
            number=number,
            costs=costs,
            runs=_runs(request, found),
            weighed=weighed,
            each_mbps=max(accepted) if any_vf else None,
            groups=[[index[pf.pci] for pf in group] for group in groups(request.policy, pfs)],
            apart=request.policy is PfPolicy.SPREAD_PFS,
        )

    def fits(self, headroom: Headroom) -> bool | None:
        """Report whether a node takes the request, if counting decides."""
        if self.runs:
            cost, missing = self.runs[0][0], self.number
            for mbps, vfs in headroom.rooms:
                missing -= mbps // cost if mbps < cost * vfs else vfs
                if missing <= 0:
                    break
            else:
                return False if len(self.runs) == 1 else None
            if not self.weighed:
                return True
        return any(self._fits_in(headroom, group) for group in self.groups) or None

    def places(self, inventory: Inventory, used: Mapping[PciAddress, Used]) -> int | None:
        """Count the places for the request's interfaces, if these are equal and counting decides.

        Each interface takes one of these places, on any PF.
        """
        if len(self.runs) != 1:
            return None
        cost = self.runs[0][0]
        return sum([_places(pf, used.get(pf.pci, NOTHING_USED), cost) for pf in inventory.pfs])

    def best_fit(self, headroom: Headroom) -> dict[int, list[int]] | None:
        """Find the costs on each PF, by its index, of the placement that `place` makes by BINPACK.

        There is no result if placing one interface after the other does not find it.
        """
        if self.weighed and len(self.runs) > 1:
            return None
        placed: dict[int, list[int]] = {}
        rooms = [(mbps, vfs, position) for position, (mbps, vfs) in enumerate(headroom.rooms)]
        for cost, number in self.runs:
            remaining = number
            rooms.sort()
            for rank, (mbps, vfs, position) in enumerate(rooms):
                count = min(remaining, mbps // cost if mbps < cost * vfs else vfs)
                weighing = headroom.weighings[position] if count and headroom.weighings else None
                if weighing is not None and weighing.count(cost) < count:
                    return None
                if count:
                    placed.setdefault(position, []).extend([cost] * count)
                    rooms[rank] = mbps - cost * count, vfs - count, position
                    remaining -= count
            if remaining:
                return None
        return placed or None

    def _fits_in(self, headroom: Headroom, group: Sequence[int]) -> bool:
        """Report whether these PFs surely take all interfaces."""
        places = 0
        for position in group:
            cost, (mbps, vfs) = self.costs[position], headroom.rooms[position]
            if cost is None:
                continue
            count = mbps // cost if mbps < cost * vfs else vfs
            weighing = headroom.weighings[position] if headroom.weighings else None
            if weighing is not None and count:
                count = min(count, weighing.count(cost))
            places += min(count, 1) if self.apart else count
            if places >= self.number:
                return True
        return False


def _places(pf: Pf, used: Used, cost: int) -> int:
    """Return the number of VFs of this reservation that may join."""
    mbps, vfs = room_of(pf, used)
    number = mbps // cost if mbps < cost * vfs else vfs
    if pf.rates.weights is None:
        return number

    def falls_short(joining: int) -> bool:
        mins = (cost,) * joining if cost else ()
        return not keeps_minimums(pf, used + Used(joining, cost * joining, mins))

    return bisect_left(range(1, number + 1), x=True, key=falls_short)


def _runs(request: Request, found: Terms) -> Sequence[tuple[int, int]]:
    """Return the costs, falling, with the number of interfaces of each; empty if PFs differ in them."""
    [costs, *different] = {*found.costs}
    if different or request.policy is not PfPolicy.ANY:
        return ()
    numbers: dict[int, int] = {}
    for kind in request.shape.kind_at:
        cost = costs[found.class_of[kind]]
        if cost is None:
            return ()
        numbers[cost] = numbers.get(cost, 0) + 1
    return sorted(numbers.items(), reverse=True)


def _dearest(pf: Pf, costs: Sequence[int | None]) -> int | None:
    """Return the largest cost on the PF.

    Return None if it does not take them all. Return None also if minimum rates are weights and the interfaces
    have different rates, because costs then depend on which of them come there.
    """
    if pf.rates.weights is not None and len(costs) > 1:
        return None
    accepted = [cost for cost in costs if cost is not None]
    return max(accepted) if len(accepted) == len(costs) else None
