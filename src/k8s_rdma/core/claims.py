"""What pods of a node have been promised there and do not hold yet, and what one takes over from itself.

The extender counts it all (`core.reservation`); the agent must as well when it gives a pod what nobody
promised to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.placement import PlacedInterface, Placement

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from k8s_rdma.core.ids import NodeName, PciAddress, PodUid
    from k8s_rdma.core.ledger import Ledger, Receipt
    from k8s_rdma.core.request import Request


def outstanding(
    claims: Mapping[PodUid, Placement], ledger: Ledger, *, asking: PodUid, entries: Collection[int]
) -> tuple[PlacedInterface, ...]:
    """Of all that was promised, what nobody holds.

    asking, entries: the pod that wants these of its interfaces now; its own promise of them does not count.
    """
    held = {
        (receipt.pod.uid, interface.entry)
        for receipt in ledger.receipts.values()
        for interface in receipt.interfaces
    }
    held |= {(asking, entry) for entry in entries}
    return tuple(
        placed
        for uid, placement in claims.items()
        for at, placed in enumerate(placement.interfaces)
        if (uid, placed.entry_at(at)) not in held
    )


def pfs_beside(ledger: Ledger, *, asking: PodUid, entries: Collection[int]) -> frozenset[PciAddress]:
    """The PFs of what the pod, which wants these of its interfaces now, has already: its policy is of all."""
    return frozenset(
        interface.vf.pf
        for receipt in ledger.of_pod(asking)
        for interface in receipt.interfaces
        if interface.entry not in entries
    )


def inherited_placement(
    node: NodeName, request: Request, entries: Sequence[int], older: Iterable[Receipt]
) -> Placement | None:
    """Where a pod's sandboxes of before had these of its interfaces; None when not all of them, or not so."""
    had = {
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
    placed = tuple(had[entry] for entry in entries if entry in had)
    found = Placement(node=node, interfaces=placed, policy=request.policy)
    return found if placed and found.request() == request else None
