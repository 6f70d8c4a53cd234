"""How well a placement fits a node: fuller is better, so that large requests keep finding empty nodes."""

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
    """Which of the nodes that fit are the better ones.

    BINPACK: the fuller, so that large holes stay for large pods. SPREAD: the emptier. BALANCED: those on
    which VFs and bandwidth run out together.
    """

    BINPACK = "binpack"
    SPREAD = "spread"
    BALANCED = "balanced"


MAX_SCORE = 10
"""The largest score of a scheduler extender (kube-scheduler/extender/v1, `MaxExtenderPriority`)."""

_FULL = 1000
"""Fullness is counted in thousandths."""


def score(placement: Placement, inventory: Inventory, used: Mapping[PciAddress, Used]) -> int:
    """The node's score for the placement, 0..10.

    A PF's fullness is the larger share of its VFs and of its bandwidth that is taken once the placement
    is made. The score is the mean of two means of fullness, rounded down to tenths: over the interfaces
    placed (each counts the PF it is on), and over all PFs of the node. So among equal nodes the fuller
    wins, and on it the placement that finishes off PFs rather than breaking into empty ones.
    Nothing placed scores 0.
    """
    if not placement.interfaces:
        return 0
    after = total(used, placement.usage(inventory))
    fullness = {pf.pci: _fullness(pf, after.get(pf.pci, NOTHING_USED)) for pf in inventory.pfs}
    placed = sum(fullness[interface.pf] for interface in placement.interfaces) // len(placement.interfaces)
    node = sum(fullness.values()) // len(fullness)
    return MAX_SCORE * (placed + node) // (2 * _FULL)


def _fullness(pf: Pf, used: Used) -> int:
    """The larger of the two shares taken, in thousandths; nothing to take is full."""
    vfs = _share(used.vfs, pf.capacity_vfs)
    return vfs if pf.link_mbps is None else max(vfs, _share(used.mbps, pf.link_mbps))


def _share(taken: int, capacity: int) -> int:
    return min(_FULL, _FULL * taken // capacity) if capacity > 0 else _FULL
