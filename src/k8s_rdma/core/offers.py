"""What each PF offers to a request: what is free of it, which interfaces it takes, and at what cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.core.inventory import NOTHING_USED, Pf
from k8s_rdma.core.needs import meets
from k8s_rdma.core.options import NO_NEEDS
from k8s_rdma.core.programming import objection, reserved
from k8s_rdma.core.rates import EVERY_RATE, Enforce
from k8s_rdma.core.rooms import Room
from k8s_rdma.core.weights import RoundRobin

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from k8s_rdma.core.ids import PciAddress
    from k8s_rdma.core.inventory import Inventory, Used
    from k8s_rdma.core.needs import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One PF's.

    room: what is free of it; no bandwidth where it takes no reservation of the request, no VFs where it
        takes nothing of it.
    costs: what each kind of interface takes of its link, Mb/s; None for one that it does not take.
    round_robin: where its minimum rates are weights.
    """

    pf: Pf
    room: Room
    costs: tuple[int | None, ...]
    round_robin: RoundRobin | None = None

    @property
    def takes_any(self) -> bool:
        """Whether there is a kind of interface that it takes."""
        return any(cost is not None for cost in self.costs)


def room_of(pf: Pf, used: Used) -> Room:
    """What is free of a PF; an unknown link has no bandwidth to reserve."""
    return Room(max(0, (pf.link_mbps or 0) - used.mbps), max(0, pf.capacity_vfs - used.vfs))


def offers(kinds: Sequence[Kind], inventory: Inventory, used: Mapping[PciAddress, Used]) -> list[Offer]:
    """What each PF offers to these distinct kinds of interfaces."""
    terms: dict[tuple[object, ...], tuple[int | None, ...]] = {}
    needs = [kind.needs for kind in kinds] if any(kind.needs is not NO_NEEDS for kind in kinds) else ()
    made = []
    for pf in inventory.pfs:
        met = tuple([meets(pf, each) for each in needs])
        alike = id(pf.rates), pf.link_mbps, pf.enforce, met
        costs = terms.get(alike)
        if costs is None:
            costs = terms[alike] = _costs(pf, kinds, met)
        there = used.get(pf.pci, NOTHING_USED)
        room = _useful(room_of(pf, there), costs, kinds)
        made.append(Offer(pf=pf, room=room, costs=costs, round_robin=RoundRobin.of(pf, there)))
    return made


def _costs(pf: Pf, kinds: Sequence[Kind], met: Sequence[bool]) -> tuple[int | None, ...]:
    """met: whether the PF is what each kind needs; empty where none needs anything."""
    if pf.rates is EVERY_RATE and pf.enforce is not Enforce.SOFTWARE:
        costs: tuple[int | None, ...] = tuple([kind.min_tx_rate_mbps for kind in kinds])
    else:
        costs = tuple(
            [None if objection(pf, kind) else reserved(pf, kind.min_tx_rate_mbps) for kind in kinds]
        )
    return (
        tuple([cost if is_met else None for cost, is_met in zip(costs, met, strict=True)]) if met else costs
    )


def _useful(room: Room, costs: Sequence[int | None], kinds: Sequence[Kind]) -> Room:
    """The room as far as the request may use it; one that reserves nothing leaves bandwidth as it is."""
    if any(costs):
        return room
    reserving = any(kind.min_tx_rate_mbps for kind in kinds)
    return Room(0 if reserving else room.mbps, room.vfs if 0 in costs else 0)


def common_costs(made: Iterable[Offer], kinds: Sequence[Kind]) -> list[int] | None:
    """What each kind costs wherever there is room for it; None when that differs, or minima are weights.

    Then a PF is told from another by its room alone.
    """
    costs: dict[int, int] = {}
    for offer in made:
        if offer.round_robin is not None:
            return None
        for index, kind in enumerate(kinds):
            cost = offer.costs[index]
            if not offer.room.vfs or (kind.min_tx_rate_mbps and not offer.room.mbps):
                continue
            if cost is None or costs.setdefault(index, cost) != cost:
                return None
    return [costs.get(index, kind.min_tx_rate_mbps) for index, kind in enumerate(kinds)]
