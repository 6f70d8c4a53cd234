"""Strategies: which PFs and nodes are the better ones, and the shares of a PF by which they tell."""

from __future__ import annotations

from enum import StrEnum, unique


@unique
class Strategy(StrEnum):
    """Which of the nodes that fit are the better ones, and which of a node's PFs.

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
    taken = _share(vfs, capacity_vfs)
    return max(taken, _share(mbps, link_mbps)) if link_mbps else taken


def gap(vfs: int, capacity_vfs: int, mbps: int, link_mbps: int) -> int:
    """How far apart the shares taken are, in thousandths; where there is no bandwidth none is left behind."""
    return abs(_share(vfs, capacity_vfs) - _share(mbps, link_mbps)) if link_mbps else 0


def _share(taken: int, capacity: int) -> int:
    return min(WHOLE, WHOLE * taken // capacity) if capacity > 0 else WHOLE
