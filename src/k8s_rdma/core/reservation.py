"""What is used on a node: one rule, the same before and after a restart of anyone.

Used is what the node's agent reports allocated, and what every bound, unfinished pod was promised
that the report does not hold, and the binds made here that the pod watch has not shown yet. A pod that is
attached to several networks, one after the other, is reported in part for a while.
A promise ends only when the pod is finished or gone *and* the node does not report it; so a sandbox
that dies and is made again never finds its bandwidth sold.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from k8s_rdma.core.inventory import Used, total
from k8s_rdma.core.placement import usage_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from k8s_rdma.core.ids import PciAddress, PodUid
    from k8s_rdma.core.inventory import Inventory
    from k8s_rdma.core.placement import PlacedInterface


def used_on_node(  # noqa: PLR0913 - all that anyone says of the node
    *,
    reported: Mapping[PodUid, tuple[PlacedInterface, ...]],
    foreign: Mapping[PciAddress, Used],
    promised: Mapping[PodUid, tuple[PlacedInterface, ...]],
    inventory: Inventory,
    entries: Mapping[PodUid, Collection[int]] = MappingProxyType({}),
    excluding: Collection[PodUid] = (),
) -> dict[PciAddress, Used]:
    """The rule above.

    reported: allocations by pod in the agent's last report.
    foreign: VFs that someone else holds or rated, from the same report.
    promised: placements of bound, unfinished pods and of binds in flight on this node.
    entries: which of a reported pod's interfaces the report holds, by their place in what was promised; a pod
        that is not in it is reported as a whole.
    inventory: the PFs, which say what a reservation takes of them.
    excluding: pods whose claims do not count.
    """
    claims = claims_on_node(reported=reported, promised=promised, entries=entries)
    for uid in excluding:
        claims.pop(uid, None)
    return total(foreign, *(usage_of(interfaces, inventory) for interfaces in claims.values()))


def claims_on_node(
    *,
    reported: Mapping[PodUid, tuple[PlacedInterface, ...]],
    promised: Mapping[PodUid, tuple[PlacedInterface, ...]],
    entries: Mapping[PodUid, Collection[int]] = MappingProxyType({}),
) -> dict[PodUid, tuple[PlacedInterface, ...]]:
    """What each pod takes by that rule; arguments as there."""
    claims = dict(reported)
    for uid, interfaces in promised.items():
        if uid not in reported:
            claims[uid] = interfaces
        elif uid in entries:
            there = entries[uid]
            claims[uid] += tuple(each for at, each in enumerate(interfaces) if each.entry_at(at) not in there)
    return claims
