"""Words for many nodes of equal hardware that lack free capacity for one request.

A cluster of 5,000 nodes that are all different refuses a request with 5,000 sentences. All that differs
between them are figures, so the words around these are made once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.packing import Room, places
from k8s_rdma.core.refusal import Detail, Need, Scene, count, explain_room

if TYPE_CHECKING:
    from collections.abc import Sequence

    from k8s_rdma.core.inventory import Pf

_NO_ROOM = Room(0, 0)


class Shortage:
    """The words of `explain_room` for one need, on nodes with these PFs."""

    __slots__ = ("_clauses", "_detail", "_largest_mbps", "_need", "_pfs")

    def __init__(self, need: Need, pfs: Sequence[Pf], detail: Detail) -> None:
        self._need, self._pfs, self._detail = need, pfs, detail
        self._largest_mbps = need.demand.sizes[0] if need.demand.sizes else 0
        self._clauses: tuple[str, str, str, str, str, str] | None = None
        if detail is Detail.NUMBERS and all(pf.link_mbps is not None for pf in pfs):
            self._clauses = self._around_figures()

    def _around_figures(self) -> tuple[str, str, str, str, str, str]:
        need, pfs = self._need, self._pfs
        demand, pfs_have = need.demand, Scene(need, pfs, []).pfs_have
        largest = need.text if len(demand.sizes) <= 1 else f"an interface of {self._largest_mbps} Mb/s"
        equal = f"{count(demand.counts[0], 'interface')} of {self._largest_mbps} Mb/s" if demand.sizes else ""
        return (
            f"needs {need.text}; {pfs_have} ",
            f"needs {largest}; best PF has ",
            f"needs {demand.total} Mb/s for {count(need.number, 'interface')}; {pfs_have} ",
            f"needs {equal}; {pfs_have} ",
            f" of {sum(pf.link_mbps or 0 for pf in pfs)} Mb/s unreserved and ",
            f" of {count(sum(pf.capacity_vfs for pf in pfs), 'VF')} free",
        )

    def text(self, rooms: Sequence[Room]) -> str:
        """Return the text of `explain_room`. rooms: the free capacity of each PF."""
        if self._clauses is not None:
            need, largest_mbps = self._need, self._largest_mbps
            too_few_vfs, too_small, too_little, too_few_places, of_mbps, of_vfs = self._clauses
            mbps, vfs = sum([room.mbps for room in rooms]), sum([room.vfs for room in rooms])
            if need.number > vfs or not largest_mbps:
                return f"{too_few_vfs}{vfs}{of_vfs}"
            best = max([room for room in rooms if room.vfs], default=_NO_ROOM)
            if largest_mbps > best.mbps:
                return f"{too_small}{best.mbps} Mb/s and {count(best.vfs, 'VF')} free"
            if need.demand.total > mbps:
                return f"{too_little}{mbps}{of_mbps}{vfs}{of_vfs}"
            if need.demand.counts[0] > (number := places(largest_mbps, rooms)):
                such = "interface" if number == 1 else "interfaces"
                return f"{too_few_places}{mbps}{of_mbps}{vfs}{of_vfs}, room for {number} such {such}"
        return explain_room(self._need, self._pfs, rooms).text(self._detail)
