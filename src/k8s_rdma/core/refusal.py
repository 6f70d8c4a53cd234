"""Why a request does not fit, in one line with the node's numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.bounds import places
from k8s_rdma.core.options import NO_NEEDS
from k8s_rdma.core.rooms import Demand, Room
from k8s_rdma.errors import Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from k8s_rdma.core.inventory import Pf
    from k8s_rdma.core.request import InterfaceRequest


class Free(NamedTuple):
    """A PF and what is free of it."""

    pf: Pf
    room: Room


def explain(
    wanted: Sequence[InterfaceRequest], free: Sequence[Free], reason: Reason, objections: Sequence[str] = ()
) -> str:
    """The sentence: what is needed, found against it, and what to do where something can be done.

    free: of the node as it is, or of the empty node for `EXCEEDS_CAPACITY` and `DRIVER_REFUSES`; where
        interfaces need something of a PF, of those PFs alone that are what any of them needs.
    objections: what PFs and drivers have against it, in clauses.
    """
    demand = Demand.of([interface.min_tx_rate_mbps for interface in wanted])
    number = len(wanted)
    if not free:
        found = objections or ["the node has no SR-IOV PF"]
        return "; ".join([f"needs {_needed(number, demand)}", *found])
    empty = reason in (Reason.EXCEEDS_CAPACITY, Reason.DRIVER_REFUSES)
    scene = _Scene(number, demand, free, empty=empty)
    if reason is Reason.DRIVER_REFUSES:
        needy = any(interface.needs is not NO_NEEDS for interface in wanted)
        said = scene.impossible() + scene.unknown_links() if needy else scene.needs
        return "; ".join([said, *objections])
    said = scene.undecided() if reason is Reason.UNDECIDED else scene.impossible() + scene.unknown_links()
    return "; ".join([said, *objections])


def _needed(number: int, demand: Demand) -> str:
    """`2 interfaces of 100000 Mb/s`, or what else the request is."""
    interfaces = _count(number, "interface")
    if not demand.sizes:
        return interfaces
    rates = f"{demand.sizes[0]} Mb/s"
    if len(demand.sizes) > 1:
        rates = f"{demand.sizes[-1]} to {rates}"
    reserving = len(demand.descending)
    return (
        f"{interfaces} of {rates}" if reserving == number else f"{interfaces}, {reserving} of them of {rates}"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class _Scene:
    """A request before a node's PFs."""

    def __init__(self, number: int, demand: Demand, free: Sequence[Free], *, empty: bool) -> None:
        self.number = number
        self.demand = demand
        self.free = free
        self.empty = empty
        self.rooms = [room for _, room in free]
        self.mbps = sum(room.mbps for room in self.rooms)
        self.vfs = sum(room.vfs for room in self.rooms)
        self.pfs = f"{_count(len(free), 'PF')} {'has' if len(free) == 1 else 'have'}"
        self.needs = f"needs {_needed(number, demand)}"

    def impossible(self) -> str:
        """The simplest of the causes that apply."""
        if self.number > self.vfs or not self.demand.sizes:
            return f"{self.needs}; {self.pfs} {self._free_vfs()}"
        best = max((room for room in self.rooms if room.vfs), default=Room(0, 0))
        if self.demand.sizes[0] > best.mbps:
            return self._none_large_enough(best)
        if self.demand.total > self.mbps:
            return (
                f"needs {self.demand.total} Mb/s for {_count(self.number, 'interface')}; "
                f"{self.pfs} {self._free_mbps()} and {self._free_vfs()}"
            )
        return self._too_few_places() or f"{self._together()}, but no arrangement of the interfaces fits"

    def undecided(self) -> str:
        """What is known, and how to make the request decidable."""
        return (
            f"{self._together()}; the search for an arrangement of {len(self.demand.sizes)} distinct rates "
            "ended at its work budget: fewer distinct rates (such as multiples of 1000 Mb/s), "
            "fewer interfaces or less bandwidth make it decidable"
        )

    def unknown_links(self) -> str:
        """A clause on PFs whose link speed is unknown; empty without any, or when VFs are what is missing."""
        if not self.demand.sizes or self.number > self.vfs:
            return ""
        names = [pf.name for pf, room in self.free if pf.link_mbps is None and room.vfs]
        if not names:
            return ""
        return (
            f"; link speed of {', '.join(names)} is unknown (link down?), "
            "only interfaces without a reservation fit there"
        )

    def _none_large_enough(self, best: Room) -> str:
        """For an interface larger than what any PF has free."""
        needs = self.needs
        if len(self.demand.sizes) > 1:
            needs = f"needs an interface of {self.demand.sizes[0]} Mb/s"
        return f"{needs}; best PF has {best.mbps} Mb/s and {_count(best.vfs, 'VF')} {self._condition()}"

    def _too_few_places(self) -> str:
        """For more interfaces of some rate, or larger, than there is room for; empty when it is not that."""
        needed = 0
        for size, count in zip(self.demand.sizes, self.demand.counts, strict=True):
            needed += count
            room_for = places(size, self.rooms)
            if needed > room_for:
                least = " or more" if size < self.demand.sizes[0] else ""
                return (
                    f"needs {_count(needed, 'interface')} of {size} Mb/s{least}; "
                    f"{self.pfs} {self._free_mbps()} and {self._free_vfs()}, "
                    f"room for {room_for} such interfaces"
                )
        return ""

    def _together(self) -> str:
        return (
            f"{self.needs} ({self.demand.total} Mb/s together); "
            f"{self.pfs} {self._free_mbps()} and {self._free_vfs()}"
        )

    def _free_mbps(self) -> str:
        if self.empty:
            return f"{self.mbps} Mb/s"
        return f"{self.mbps} of {sum(pf.link_mbps or 0 for pf, _ in self.free)} Mb/s unreserved"

    def _free_vfs(self) -> str:
        if self.empty:
            return f"{_count(self.vfs, 'VF')} {self._condition()}"
        return f"{self.vfs} of {_count(sum(pf.capacity_vfs for pf, _ in self.free), 'VF')} free"

    def _condition(self) -> str:
        return "when empty" if self.empty else "free"
