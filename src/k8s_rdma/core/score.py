"""How well a placement fits a node, as the strategy has it."""

from __future__ import annotations

from enum import StrEnum, unique
from typing import TYPE_CHECKING

from k8s_rdma.core.inventory import NOTHING_USED, total

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.core.ids import PciAddress
    from k8s_rdma.core.inventory import Inventory, Pf, Used
    from k8s_rdma.core.placement import Placement


@unique
class Strategy(StrEnum):
    """Which of the nodes that fit are the better ones, and which of a node's PFs.

    BINPACK: the fuller, so that large holes stay for large pods. SPREAD: the emptier. BALANCED: those on
    which VFs and bandwidth run out together.
    """

    BINPACK = "binpack"
    SPREAD = "spread"
    BALANCED = "balanced"


MAX_SCORE = 10
"""The largest score of a scheduler extender (kube-scheduler/extender/v1, `MaxExtenderPriority`)."""

_WHOLE = 1000
"""Shares are counted in thousandths."""


def score(
    placement: Placement,
    inventory: Inventory,
    used: Mapping[PciAddress, Used],
    strategy: Strategy = Strategy.BINPACK,
) -> int:
    """The node's score for the placement, 0..10.

    Every PF is worth something once the placement is made: to BINPACK its fullness (the larger share of its
    VFs and of its bandwidth that is taken), to SPREAD what is missing to fullness, to BALANCED how close the
    two shares are. The score is the mean of two means of that, rounded down to tenths: over the interfaces
    placed (each counts the PF it is on), and over all PFs of the node. So among equal nodes BINPACK has the
    fuller win, and on it the placement that finishes off PFs rather than breaking into empty ones.
    Nothing placed scores 0.
    """
    if not placement.interfaces:
        return 0
    after = total(used, placement.usage(inventory))
    worth = {pf.pci: _worth(pf, after.get(pf.pci, NOTHING_USED), strategy) for pf in inventory.pfs}
    placed = sum(worth[interface.pf] for interface in placement.interfaces) // len(placement.interfaces)
    node = sum(worth.values()) // len(worth)
    return MAX_SCORE * (placed + node) // (2 * _WHOLE)


def _worth(pf: Pf, used: Used, strategy: Strategy) -> int:
    """In thousandths."""
    taken = used.vfs, pf.capacity_vfs, used.mbps, pf.link_mbps or 0
    if strategy is Strategy.BINPACK:
        return fullness(*taken)
    return _WHOLE - (fullness(*taken) if strategy is Strategy.SPREAD else gap(*taken))


def fullness(vfs: int, capacity_vfs: int, mbps: int, link_mbps: int) -> int:
    """The larger share taken, in thousandths; no VF at all is full, and no bandwidth does not count."""
    taken = _share(vfs, capacity_vfs)
    return max(taken, _share(mbps, link_mbps)) if link_mbps else taken


def gap(vfs: int, capacity_vfs: int, mbps: int, link_mbps: int) -> int:
    """How far apart the shares taken are, in thousandths; where there is no bandwidth none is left behind."""
    return abs(_share(vfs, capacity_vfs) - _share(mbps, link_mbps)) if link_mbps else 0


def _share(taken: int, capacity: int) -> int:
    return min(_WHOLE, _WHOLE * taken // capacity) if capacity > 0 else _WHOLE
