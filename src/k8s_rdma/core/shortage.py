"""The simplest lack for which free capacity does not take a request, by sums over PFs.

Sums are found once for each state of a node, so that thousands of nodes are compared with a request by three
comparisons each.
"""

from __future__ import annotations

from enum import IntEnum, auto, unique
from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.packing import Room

if TYPE_CHECKING:
    from collections.abc import Iterable

_NO_ROOM = Room(0, 0)


@unique
class Lack(IntEnum):
    """A lack of free capacity; a number, because it is looked up for each of thousands of nodes.

    VFS: fewer VFs than interfaces.
    LARGEST: no PF with a free VF has the bandwidth of the largest interface.
    BANDWIDTH: less bandwidth than all interfaces reserve.
    PLACES: the sums are enough, but no arrangement of the interfaces on PFs.
    """

    VFS = auto()
    LARGEST = auto()
    BANDWIDTH = auto()
    PLACES = auto()


class NodeTotals(NamedTuple):
    """The free capacity of a node: Mb/s and VFs of all PFs, and the best PF that has a free VF."""

    mbps: int
    vfs: int
    best: Room

    @classmethod
    def of_rooms(cls, rooms: Iterable[Room]) -> NodeTotals:
        """Return the sums over these PFs."""
        rooms = tuple(rooms)
        return cls(
            sum([room.mbps for room in rooms]),
            sum([room.vfs for room in rooms]),
            max([room for room in rooms if room.vfs], default=_NO_ROOM),
        )

    def lack(self, number: int, largest_mbps: int, total_mbps: int) -> Lack:
        """Return the simplest lack for so many interfaces; PLACES only if they do not fit.

        largest_mbps: the largest reservation; 0 if no interface has one.
        total_mbps: all reservations.
        """
        if number > self.vfs:
            return Lack.VFS
        if largest_mbps > self.best.mbps:
            return Lack.LARGEST
        return Lack.BANDWIDTH if total_mbps > self.mbps else Lack.PLACES
