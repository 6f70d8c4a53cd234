"""What each PF offers to a request: what is free of it, which interfaces it takes, and at what cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.inventory import NOTHING_USED, Pf
from k8s_rdma.core.options import NO_NEEDS, Setting
from k8s_rdma.core.programming import objection, reserved
from k8s_rdma.core.rates import EVERY_RATE, Enforce
from k8s_rdma.core.request import PfMasks
from k8s_rdma.core.rooms import Room
from k8s_rdma.core.weights import RoundRobin

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from k8s_rdma.core.ids import PciAddress
    from k8s_rdma.core.inventory import Used
    from k8s_rdma.core.request import InterfaceClass
    from k8s_rdma.core.rooms import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One PF's.

    room: what is free of it; no bandwidth where it takes no reservation of the request, no VFs where it
        takes nothing of it.
    costs: what an interface of each class takes of its link, Mb/s; None for one that it does not take.
    round_robin: where its minimum rates are weights.
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
    """What is free of a PF; an unknown link has no bandwidth to reserve."""
    return Room(max(0, (pf.link_mbps or 0) - used.mbps), max(0, pf.capacity_vfs - used.vfs))


class Terms(NamedTuple):
    """What PFs take, and at what cost, whatever is free of them.

    Kinds that every PF takes at the same cost are one class: a thousand selectors are few of these. Classes
    are in the order of their first kinds.

    kinds: the first of each class. class_of: for each kind.
    costs: for each PF, what an interface of each class takes of its link; None where it does not take it.
    """

    kinds: Sequence[InterfaceClass]
    class_of: Sequence[int]
    costs: Sequence[tuple[int | None, ...]]


def terms(kinds: Sequence[InterfaceClass], pfs: Sequence[Pf], work: Work, *, any_pf: bool = False) -> Terms:
    """The terms of these distinct kinds of interfaces. OutOfWorkError on the way.

    any_pf: as if it did not matter which PFs these are, but for what their drivers can do.
    """
    work.spend(4 * len(kinds) + 2 * len(pfs))
    alike: dict[tuple[object, ...], list[int]] = {}
    for position, pf in enumerate(pfs):
        by_software = Setting.SOFTWARE_CAPS in pf.supported_settings
        alike.setdefault((pf.rates, pf.link_mbps, pf.enforce, by_software), []).append(position)
    rows = [_costs(pfs[indexes[0]], kinds, work) for indexes in alike.values()]
    index: dict[tuple[int | None, ...], int] = {}
    class_of = [
        index.setdefault(key, len(index))
        for key in zip(_masks(kinds, pfs, any_pf=any_pf), *rows, strict=True)
    ]
    work.spend(len(index) * len(pfs) // 8)
    costs: list[tuple[int | None, ...]] = [()] * len(pfs)
    for row, group in enumerate(alike.values(), start=1):
        for position in group:
            costs[position] = tuple([key[row] if (key[0] or 0) >> position & 1 else None for key in index])
    first = dict(zip(reversed(class_of), reversed(kinds), strict=True))
    return Terms([first[number] for number in range(len(index))], class_of, costs)


def _masks(kinds: Sequence[InterfaceClass], pfs: Sequence[Pf], *, any_pf: bool) -> list[int]:
    """The PFs that are what each kind needs, as bits."""
    masks = PfMasks(pfs)
    meeting = masks.able if any_pf else masks.meeting
    by_needs = {id(NO_NEEDS): meeting(NO_NEEDS)}
    for kind in kinds:
        if id(kind.needs) not in by_needs:
            by_needs[id(kind.needs)] = meeting(kind.needs)
    return [by_needs[id(kind.needs)] for kind in kinds]


def _costs(pf: Pf, kinds: Sequence[InterfaceClass], work: Work) -> tuple[int | None, ...]:
    """What each kind costs on the PF, if the PF is what it needs."""
    by_software = pf.enforce is Enforce.SOFTWARE or any(kind.enforce is Enforce.SOFTWARE for kind in kinds)
    if pf.rates is EVERY_RATE and not by_software:
        return tuple([kind.min_tx_rate_mbps for kind in kinds])
    work.spend(3 * len(kinds))
    return tuple([None if objection(pf, kind) else reserved(pf, kind.min_tx_rate_mbps) for kind in kinds])


def offers(found: Terms, pfs: Sequence[Pf], used: Mapping[PciAddress, Used]) -> list[Offer]:
    """What each PF offers on these terms."""
    reserving = any(kind.min_tx_rate_mbps for kind in found.kinds)
    result = []
    for pf, costs in zip(pfs, found.costs, strict=True):
        usage = used.get(pf.pci, NOTHING_USED)
        room = _useful(room_of(pf, usage), costs, reserving=reserving)
        result.append(Offer(pf=pf, room=room, costs=costs, round_robin=RoundRobin.for_pf(pf, usage)))
    return result


def _useful(room: Room, costs: Sequence[int | None], *, reserving: bool) -> Room:
    """The room as far as the request may use it; one that reserves nothing leaves bandwidth as it is."""
    if any(costs):
        return room
    return Room(0 if reserving else room.mbps, room.vfs if 0 in costs else 0)


def common_costs(offers: Iterable[Offer], kinds: Sequence[InterfaceClass]) -> list[int] | None:
    """What each kind costs wherever there is room for it; None when that differs, or minima are weights.

    Then a PF is told from another by its room alone.
    """
    costs: dict[int, int] = {}
    for offer in offers:
        if offer.round_robin is not None:
            return None
        for index, kind in enumerate(kinds):
            cost = offer.costs[index]
            if not offer.room.vfs or (kind.min_tx_rate_mbps and not offer.room.mbps):
                continue
            if cost is None or costs.setdefault(index, cost) != cost:
                return None
    return [costs.get(index, kind.min_tx_rate_mbps) for index, kind in enumerate(kinds)]
