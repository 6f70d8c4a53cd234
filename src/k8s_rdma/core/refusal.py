"""Why a request does not fit, in one line with the node's numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.bounds import places
from k8s_rdma.core.options import NO_NEEDS
from k8s_rdma.core.rooms import Demand, Room
from k8s_rdma.core.said import Said
from k8s_rdma.errors import Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from k8s_rdma.core.inventory import Pf
    from k8s_rdma.core.needs import Kind
    from k8s_rdma.core.request import InterfaceRequest


class Free(NamedTuple):
    """A PF and what is free of it."""

    pf: Pf
    room: Room


def explain(
    wanted: Sequence[Kind], free: Sequence[Free], reason: Reason, objections: Sequence[Said] = ()
) -> Said:
    """The sentence: what is needed, found against it, and what to do where something can be done.

    free: of the node as it is, or of the empty node for what not even that takes (`is_empty`); where
        interfaces need something of a PF, of those PFs alone that are what any of them needs.
    objections: what PFs and drivers have against it, in clauses.
    """
    scene = Scene(wanted, free, empty=is_empty(reason))
    if not free:
        return Said.joined([scene.only_needs(), *(objections or [_NO_PF])])
    if reason is Reason.UNDECIDED:
        said = [scene.undecided()]
    elif reason is not Reason.DRIVER_REFUSES or any(each.needs is not NO_NEEDS for each in wanted):
        said = [scene.impossible(), *scene.unknown_links()]
    else:
        said = [scene.only_needs()]
    return Said.joined([*said, *objections])


def is_empty(reason: Reason) -> bool:
    """Whether a refusal for the reason tells of the empty node."""
    return reason in _EMPTY


def needed(wanted: Sequence[InterfaceRequest | Kind]) -> str:
    """`2 interfaces of 100000 Mb/s`, or what else is needed."""
    return _needed(len(wanted), Demand.of([interface.min_tx_rate_mbps for interface in wanted]))


def count(number: int, noun: str) -> str:
    """`1 PF`, `2 PFs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


_EMPTY = (Reason.EXCEEDS_CAPACITY, Reason.NO_SUCH_PF, Reason.DRIVER_REFUSES)
_NO_PF = Said.nameless(*["the node has no SR-IOV PF"] * 2)


_NO_ROOM = Room(0, 0)


def _needed(number: int, demand: Demand) -> str:
    interfaces = count(number, "interface")
    if not demand.sizes:
        return interfaces
    rates = f"{demand.sizes[0]} Mb/s"
    if len(demand.sizes) > 1:
        rates = f"{demand.sizes[-1]} to {rates}"
    reserving = len(demand.descending)
    return (
        f"{interfaces} of {rates}" if reserving == number else f"{interfaces}, {reserving} of them of {rates}"
    )


class Scene:
    """A request before PFs. empty: these are told of as they are when nobody uses them."""

    def __init__(self, wanted: Sequence[Kind], free: Sequence[Free], *, empty: bool) -> None:
        self.number = len(wanted)
        self.demand = Demand.of([interface.min_tx_rate_mbps for interface in wanted])
        self.free = free
        self.empty = empty
        self.rooms = [room for _, room in free]
        self.mbps = sum([room.mbps for room in self.rooms])
        self.vfs = sum([room.vfs for room in self.rooms])
        self.needs = f"needs {_needed(self.number, self.demand)}"

    @property
    def pfs(self) -> str:
        """What has that."""
        return f"{count(len(self.free), 'PF')} {'has' if len(self.free) == 1 else 'have'}"

    @property
    def condition(self) -> str:
        """Of what there is."""
        return "when empty" if self.empty else "free"

    def only_needs(self) -> Said:
        """What is needed, where it is drivers that keep it from fitting."""
        return Said.nameless(self.needs, self.needs)

    def impossible(self) -> Said:
        """The simplest of the causes that apply."""
        even = "even when empty" if self.empty else "free"
        if self.number > self.vfs or not self.demand.sizes:
            return self._said(f"{self.needs}; {self.pfs} {self._free_vfs()}", f"too few VFs {even}")
        best = max([room for room in self.rooms if room.vfs], default=_NO_ROOM)
        if self.demand.sizes[0] > best.mbps:
            return self._said(self._none_large_enough(best), f"no PF has {self.demand.sizes[0]} Mb/s {even}")
        if self.demand.total > self.mbps:
            numbers = (
                f"needs {self.demand.total} Mb/s for {count(self.number, 'interface')}; "
                f"{self.pfs} {self._free_mbps()} and {self._free_vfs()}"
            )
            return self._said(numbers, f"too little bandwidth {even}")
        return self._said(
            self._too_few_places() or f"{self._together()}, but no arrangement of the interfaces fits",
            f"no arrangement of the interfaces on its PFs fits{', even when empty' if self.empty else ''}",
        )

    def undecided(self) -> Said:
        """What is known, and how to make the request decidable."""
        why = (
            f"the search for an arrangement of {len(self.demand.sizes)} distinct rates "
            "ended at its work budget: fewer distinct rates (such as multiples of 1000 Mb/s), "
            "fewer interfaces or less bandwidth make it decidable"
        )
        return self._said(f"{self._together()}; {why}", why)

    def unknown_links(self) -> list[Said]:
        """A clause on PFs whose link speed is unknown; none without any, or when VFs are what is missing."""
        if not self.demand.sizes or self.number > self.vfs:
            return []
        names = [pf.name for pf, room in self.free if pf.link_mbps is None and room.vfs]
        if not names:
            return []
        only = "is unknown (link down?), only interfaces without a reservation fit there"
        return [
            Said(
                f"link speed of {', '.join(names)} {only}",
                f"link speed of {count(len(names), 'PF')} {only}",
                f"link speed of a PF {only}",
            )
        ]

    def _said(self, numbers: str, cause: str) -> Said:
        return Said.nameless(numbers, f"{self.needs}; {cause}")

    def _none_large_enough(self, best: Room) -> str:
        """For an interface larger than what any PF has free."""
        needs = self.needs
        if len(self.demand.sizes) > 1:
            needs = f"needs an interface of {self.demand.sizes[0]} Mb/s"
        return f"{needs}; best PF has {best.mbps} Mb/s and {count(best.vfs, 'VF')} {self.condition}"

    def _too_few_places(self) -> str:
        """For more interfaces of some rate, or larger, than there is room for; empty when it is not that."""
        needed = 0
        for size, number in zip(self.demand.sizes, self.demand.counts, strict=True):
            needed += number
            room_for = places(size, self.rooms)
            if needed > room_for:
                least = " or more" if size < self.demand.sizes[0] else ""
                return (
                    f"needs {count(needed, 'interface')} of {size} Mb/s{least}; "
                    f"{self.pfs} {self._free_mbps()} and {self._free_vfs()}, "
                    f"room for {room_for} such {'interface' if room_for == 1 else 'interfaces'}"
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
            return f"{count(self.vfs, 'VF')} {self.condition}"
        return f"{self.vfs} of {count(sum(pf.capacity_vfs for pf, _ in self.free), 'VF')} free"
