"""Verdicts on a request and a node's snapshot.

A refusal for lack of free capacity is one object for all nodes of equal hardware, because there may be
thousands and kube-scheduler shows few of their sentences: each is worded when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from k8s_rdma.core.inventory import Pf
from k8s_rdma.core.packing import places
from k8s_rdma.core.refusal import Detail, Need, explain_room, explain_rooms
from k8s_rdma.core.shortage import Lack
from k8s_rdma.errors import Reason
from k8s_rdma.extender.node_cache import NodeSnapshot
from k8s_rdma.wire.extender import NOT_ENOUGH_FREE

if TYPE_CHECKING:
    from k8s_rdma.core.shortage import NodeTotals

UNRESOLVABLE = frozenset(
    {
        *(Reason.EXCEEDS_CAPACITY, Reason.NO_SUCH_PF, Reason.DRIVER_REFUSES),
        *(Reason.NO_RDMA, Reason.DEVICES_DIFFER),
    }
)
"""Refusals that no eviction could turn into a fit: by the empty node, with its links as they are."""

Figures: TypeAlias = tuple[int, ...]
"""The figures of a node in its sentence; nodes are compared by the first one."""

_FIGURES: Mapping[Lack, Callable[[NodeSnapshot], Figures]] = {
    Lack.VFS: lambda node: (node.totals.vfs,),
    Lack.LARGEST: attrgetter("totals.best"),
    Lack.BANDWIDTH: attrgetter("totals.mbps", "totals.vfs"),
}


@dataclass(frozen=True, slots=True)
class Feasible:
    """The request fits, and how well, in thousandths; None until that is asked for.

    Where, `place` says anew: keeping it would take most memory.
    """

    score: int | None


COUNTED = Feasible(None)
"""The verdict of `FitCache.count`, until a score is asked for."""


@dataclass(frozen=True, slots=True)
class Infeasible:
    """A verdict that the request does not fit; `text` is the reason that the scheduler gets.

    may_pass: whether it may fit later, without other hardware.
    cause: the text without the node's figures; empty if the text has none.
    """

    reason: Reason
    text: str
    may_pass: bool = True
    cause: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Shortage:
    """The verdict of nodes with these PFs that lack free capacity and nothing else.

    figures: returns those of a node. Nodes of equal figures have equal sentences.
    """

    need: Need
    pfs: Sequence[Pf]
    lack: Lack
    detail: Detail
    figures: Callable[[NodeSnapshot], Figures]

    reason: ClassVar[Reason] = Reason.INSUFFICIENT
    may_pass: ClassVar[bool] = True

    def on(self, snapshot: NodeSnapshot) -> Infeasible:
        """Return the verdict on one node, in words."""
        found = explain_room(self.need, self.pfs, snapshot.rooms)
        return Infeasible(self.reason, _sentence(found.text(self.detail)), cause=_sentence(found.cause))

    def together(self, largest_figure: int) -> str:
        """Return the sentence for nodes of different figures. largest_figure: of the first ones."""
        figure = largest_figure if self.detail is Detail.NUMBERS else None
        return _sentence(explain_rooms(self.need, self.pfs, self.lack, figure))


class Shortages:
    """The verdicts of nodes with these PFs, if lack of free capacity is all for which they refuse a need."""

    __slots__ = ("_by_lack", "_detail", "_largest_mbps", "_need", "_pfs", "_total_mbps")

    def __init__(self, need: Need, pfs: Sequence[Pf], detail: Detail) -> None:
        self._need, self._pfs, self._detail = need, pfs, detail
        self._largest_mbps, self._total_mbps = max(need.demand.sizes, default=0), need.demand.total
        self._by_lack: dict[Lack, Shortage] = {}

    def by_sums(self, totals: NodeTotals) -> Shortage | None:
        """Return the verdict if sums over the PFs exclude the need."""
        lack = totals.lack(self._need.number, self._largest_mbps, self._total_mbps)
        return None if lack is Lack.PLACES else self._by_lack.get(lack) or self._verdict_of(lack)

    def of_places(self) -> Shortage:
        """Return the verdict if the sums are enough, and yet the need does not fit."""
        return self._verdict_of(Lack.PLACES)

    def _verdict_of(self, lack: Lack) -> Shortage:
        found = self._by_lack.get(lack)
        if found is None:
            figures = _figures_of(self._need, self._pfs, lack, self._detail)
            found = self._by_lack[lack] = Shortage(self._need, self._pfs, lack, self._detail, figures)
        return found


def _figures_of(
    need: Need, pfs: Sequence[Pf], lack: Lack, detail: Detail
) -> Callable[[NodeSnapshot], Figures]:
    figures = _FIGURES.get(lack) or partial(_places, need.demand.sizes[0])
    if detail is Detail.CAUSE:
        figures = _no_figure
    if all(pf.link_mbps is not None for pf in pfs):
        return figures
    return lambda node: (*figures(node), _without_link(pfs, node))


def _no_figure(_: NodeSnapshot) -> Figures:
    return (0,)


def _places(size_mbps: int, node: NodeSnapshot) -> Figures:
    return places(size_mbps, node.rooms), node.totals.mbps, node.totals.vfs


def _without_link(pfs: Sequence[Pf], node: NodeSnapshot) -> int:
    """Count the PFs with a free VF whose link speed is unknown, which the sentence has as well."""
    return sum([pf.link_mbps is None and room.vfs > 0 for pf, room in zip(pfs, node.rooms, strict=True)])


def _sentence(details: str) -> str:
    return f"{NOT_ENOUGH_FREE} ({details})"


Refusal: TypeAlias = Infeasible | Shortage
Verdict: TypeAlias = Feasible | Refusal
