"""How well a placement fits a node, as the strategy has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.inventory import NOTHING_USED, total
from k8s_rdma.core.strategy import WHOLE, Strategy, fullness, gap

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.core.ids import PciAddress
    from k8s_rdma.core.inventory import Inventory, Pf, Used
    from k8s_rdma.core.placement import Placement


MAX_SCORE = 10
"""The largest score of a scheduler extender (kube-scheduler/extender/v1, `MaxExtenderPriority`)."""


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
    return MAX_SCORE * (placed + node) // (2 * WHOLE)


def _worth(pf: Pf, used: Used, strategy: Strategy) -> int:
    """In thousandths."""
    amounts = used.vfs, pf.capacity_vfs, used.mbps, pf.link_mbps or 0
    if strategy is Strategy.BINPACK:
        return fullness(*amounts)
    return WHOLE - (fullness(*amounts) if strategy is Strategy.SPREAD else gap(*amounts))
