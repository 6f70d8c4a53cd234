"""Reservations on a node: what is used, the same before and after a restart of any process.

Used is what the node's agent reports allocated, what every bound, unfinished pod was promised that the
report does not hold, and the binds made here that the pod watch has not shown yet. A pod with several
attachments is reported in part for a while. A promise ends only when the pod is finished or gone *and* the
node does not report it; so a sandbox that dies and is made again never finds its bandwidth sold.

The extender counts all of it. The agent counts outstanding promises when it places a pod without a promise.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from k8s_rdma.core.inventory import Inventory, Used, total
from k8s_rdma.core.placement import PlacedInterface, Placement, usage_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from k8s_rdma.core.ledger import Ledger, Receipt
    from k8s_rdma.core.request import Request
    from k8s_rdma.core.types import NodeName, PciAddress, PodUid


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
    """The interfaces of each pod by that rule; arguments as there."""
    claims = dict(reported)
    for uid, interfaces in promised.items():
        if uid not in reported:
            claims[uid] = interfaces
        elif uid in entries:
            held_entries = entries[uid]
            claims[uid] += tuple(
                interface
                for index, interface in enumerate(interfaces)
                if interface.entry_at(index) not in held_entries
            )
    return claims


def outstanding(
    claims: Mapping[PodUid, Placement], ledger: Ledger, *, requester: PodUid, entries: Collection[int]
) -> tuple[PlacedInterface, ...]:
    """The promised interfaces that no receipt holds.

    requester, entries: the pod that wants these of its interfaces now; its own promise of them does not
        count.
    """
    allocated = {
        (receipt.pod.uid, interface.entry)
        for receipt in ledger.receipts.values()
        for interface in receipt.interfaces
    }
    allocated |= {(requester, entry) for entry in entries}
    return tuple(
        placed
        for uid, placement in claims.items()
        for index, placed in enumerate(placement.interfaces)
        if (uid, placed.entry_at(index)) not in allocated
    )


def sibling_pfs(ledger: Ledger, *, requester: PodUid, entries: Collection[int]) -> frozenset[PciAddress]:
    """The PFs of what the pod, which wants these of its interfaces now, has already: its policy is of all."""
    return frozenset(
        interface.vf.pf
        for receipt in ledger.of_pod(requester)
        for interface in receipt.interfaces
        if interface.entry not in entries
    )


def inherited_placement(
    node: NodeName, request: Request, entries: Sequence[int], older: Iterable[Receipt]
) -> Placement | None:
    """The placement of these interfaces in the pod's earlier sandboxes; None unless they had all."""
    previous = {
        interface.entry: PlacedInterface(
            pf=interface.vf.pf,
            min_tx_rate_mbps=interface.min_tx_rate_mbps,
            max_tx_rate_mbps=interface.max_tx_rate_mbps,
            enforce=interface.enforce,
            options=interface.options,
            pool=interface.pool,
        )
        for receipt in older
        for interface in receipt.interfaces
    }
    placed = tuple(previous[entry] for entry in entries if entry in previous)
    found = Placement(node=node, interfaces=placed, policy=request.policy)
    return found if placed and found.request() == request else None
