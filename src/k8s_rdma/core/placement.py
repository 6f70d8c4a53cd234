"""Which PF each interface of a request goes on, or why it cannot be placed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.core.ids import NodeName, PciAddress
from k8s_rdma.core.inventory import NOTHING_USED, Used
from k8s_rdma.core.packing import best_fit, pack
from k8s_rdma.core.refusal import Free, explain
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.core.rooms import Demand, Room, Verdict, Work
from k8s_rdma.errors import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from k8s_rdma.core.inventory import Inventory, Pf
    from k8s_rdma.core.packing import Packing

DEFAULT_BUDGET = 11_000
"""Work units for one decision: 7 ms on a 2.6 GHz EPYC. See `core.rooms.Work` and bench/test_place.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedInterface:
    """An interface on a PF; rates in Mb/s, 0 as in `InterfaceRequest`."""

    pf: PciAddress
    min_tx_rate_mbps: int = 0
    max_tx_rate_mbps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A possible assignment on a node; `interfaces` in the request's order."""

    node: NodeName
    interfaces: tuple[PlacedInterface, ...]

    def usage(self) -> dict[PciAddress, Used]:
        """What this placement takes of each PF."""
        return usage_of(self.interfaces)

    def request(self) -> Request:
        """The request that it serves: its rates, without the PFs."""
        return Request(
            tuple(
                InterfaceRequest(
                    min_tx_rate_mbps=placed.min_tx_rate_mbps, max_tx_rate_mbps=placed.max_tx_rate_mbps
                )
                for placed in self.interfaces
            )
        )


def usage_of(interfaces: Iterable[PlacedInterface]) -> dict[PciAddress, Used]:
    """What placed interfaces take of each PF."""
    result: dict[PciAddress, Used] = {}
    for interface in interfaces:
        result[interface.pf] = result.get(interface.pf, Used()) + Used(1, interface.min_tx_rate_mbps)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """Why there is no placement on a node.

    reason: `NO_RDMA` (no PF at all), `EXCEEDS_CAPACITY` (would not fit on the empty node),
        `INSUFFICIENT` (would fit if enough of what is used were free) or `UNDECIDED` (the search
        ended at its work budget; nothing is claimed about the request).
    message: one line with the node's numbers, without the node's name.
    """

    node: NodeName
    reason: Reason
    message: str


def place(
    request: Request,
    inventory: Inventory,
    used: Mapping[PciAddress, Used],
    *,
    budget: int = DEFAULT_BUDGET,
) -> Placement | Rejection:
    """Find a PF for every interface: a free VF each, and unreserved bandwidth for the reservations together.

    Pure and total: equal arguments give equal answers, ties go by PCI address. A `Placement` if and only
    if one exists, unless finding out takes more than `budget` work units: then `UNDECIDED`.
    `EXCEEDS_CAPACITY` is claimed where it is proved within what the first answer left of the budget.

    used: more than a PF has counts as all of it; PFs that the inventory lacks do not matter.
    """
    order = _largest_first(request)
    rates = [request.interfaces[at].min_tx_rate_mbps for at in order]
    rooms = [_room(pf, used.get(pf.pci, NOTHING_USED)) for pf in inventory.pfs]
    work = Work(budget)
    chosen = _choose(rates, rooms, work)
    if isinstance(chosen, Verdict):
        return _reject(request, inventory, used, chosen, work)
    placed: list[PlacedInterface | None] = [None] * len(order)
    for at, pf in zip(order, chosen, strict=True):
        wanted = request.interfaces[at]
        placed[at] = PlacedInterface(
            pf=inventory.pfs[pf].pci,
            min_tx_rate_mbps=wanted.min_tx_rate_mbps,
            max_tx_rate_mbps=wanted.max_tx_rate_mbps,
        )
    return Placement(node=inventory.node, interfaces=tuple(interface for interface in placed if interface))


def _largest_first(request: Request) -> list[int]:
    """Positions by reservation, then by cap: interfaces that are equal in both may change places."""
    keys = [(-wanted.min_tx_rate_mbps, -wanted.max_tx_rate_mbps) for wanted in request.interfaces]
    return sorted(range(len(keys)), key=keys.__getitem__)


def _room(pf: Pf, used: Used) -> Room:
    """What is free of a PF; an unknown link has no bandwidth to reserve."""
    return Room(max(0, (pf.link_mbps or 0) - used.mbps), max(0, pf.capacity_vfs - used.vfs))


def _choose(rates: Sequence[int], rooms: Sequence[Room], work: Work) -> list[int] | Verdict:
    """A PF's index for each rate; rates fall."""
    chosen = best_fit(rates, rooms)
    if chosen is not None:
        return chosen
    demand = Demand.of(rates)
    if len(rates) > sum(room.vfs for room in rooms) or not demand.sizes:
        return Verdict.IMPOSSIBLE
    packing = pack(demand, rooms, work)
    return packing if isinstance(packing, Verdict) else _dealt(rates, packing, rooms)


def _dealt(rates: Sequence[int], packing: Packing, rooms: Sequence[Room]) -> list[int]:
    """A packing as a PF's index for each rate; what reserves nothing takes the VFs that are left."""
    homes: dict[int, deque[int]] = {}
    left = list(rooms)
    for at, fill in enumerate(packing):
        for rate, number in fill.items():
            homes.setdefault(rate, deque()).extend([at] * number)
            left[at] = Room(left[at].mbps - rate * number, left[at].vfs - number)
    free = best_fit([rate for rate in rates if not rate], left)
    homes[0] = deque(free or ())
    return [homes[rate].popleft() for rate in rates]


def _reject(
    request: Request, inventory: Inventory, used: Mapping[PciAddress, Used], verdict: Verdict, work: Work
) -> Rejection:
    """Find the reason, and put the numbers into words."""
    reason = Reason.UNDECIDED
    if not inventory.pfs:
        reason = Reason.NO_RDMA
    elif verdict is Verdict.IMPOSSIBLE:
        reason = Reason.INSUFFICIENT
        rates = sorted((wanted.min_tx_rate_mbps for wanted in request.interfaces), reverse=True)
        empty = [_room(pf, NOTHING_USED) for pf in inventory.pfs]
        if _choose(rates, empty, work) is Verdict.IMPOSSIBLE:
            reason = Reason.EXCEEDS_CAPACITY
            used = {}
    free = [Free(pf, _room(pf, used.get(pf.pci, NOTHING_USED))) for pf in inventory.pfs]
    return Rejection(node=inventory.node, reason=reason, message=explain(request, free, reason))
