"""Strategies: the PFs and nodes that score higher, by the shares of a PF that they compare."""

from __future__ import annotations

from enum import StrEnum, unique
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from k8s_rdma.core.inventory import Pf
    from k8s_rdma.core.rooms import Room


@unique
class Strategy(StrEnum):
    """The preference among nodes that fit, and among a node's PFs.

    BINPACK: the fuller, so that large holes stay for large pods. SPREAD: the emptier. BALANCED: those on
    which VFs and bandwidth run out together.
    """

    BINPACK = "binpack"
    SPREAD = "spread"
    BALANCED = "balanced"


WHOLE = 1000
"""Shares are counted in thousandths."""


def fullness(vfs: int, capacity_vfs: int, mbps: int, link_mbps: int) -> int:
    """The larger share taken, in thousandths; no VF at all is full, and no bandwidth does not count."""
    share = _share(vfs, capacity_vfs)
    return max(share, _share(mbps, link_mbps)) if link_mbps else share


def gap(vfs: int, capacity_vfs: int, mbps: int, link_mbps: int) -> int:
    """The distance of the two used shares, in thousandths; 0 where there is no bandwidth."""
    return abs(_share(vfs, capacity_vfs) - _share(mbps, link_mbps)) if link_mbps else 0


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
        """A PF's; one whose link is unknown has no bandwidth."""
        return cls(room.mbps, room.vfs, pf.link_mbps or 0, pf.capacity_vfs)

    @classmethod
    def total(cls, standings: Iterable[Standing]) -> Standing:
        """The sum over several PFs."""
        return cls(*map(sum, zip(*standings, strict=True)))

    @property
    def shares(self) -> tuple[int, int, int, int]:
        """VFs taken and there, Mb/s taken and there."""
        return self.capacity_vfs - self.vfs, self.capacity_vfs, self.link_mbps - self.mbps, self.link_mbps

    def minus(self, mbps: int, vfs: int) -> Standing:
        """The standing after so much was taken."""
        return self._replace(mbps=self.mbps - mbps, vfs=self.vfs - vfs)


def preference(strategy: Strategy, standing: Standing, mbps: int, vfs: int = 1) -> tuple[int, ...]:
    """A key for interfaces that take this much: the least is what the strategy would rather have.

    BINPACK: where least bandwidth is left. SPREAD: what is the least full afterwards. BALANCED: where the
    shares of VFs and of bandwidth come closest; between such as BINPACK does.
    """
    if strategy is Strategy.BINPACK:
        return standing.mbps, standing.vfs
    after = standing.minus(mbps, vfs)
    if strategy is Strategy.SPREAD:
        return fullness(*after.shares), -standing.mbps, -standing.vfs
    return gap(*after.shares) - gap(*standing.shares), standing.mbps, standing.vfs
