"""Cards with PFs of NUMA nodes, and requests under a policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.inventory import Inventory, Pf
from k8s_rdma.core.placement import Placement, place
from k8s_rdma.core.request import InterfaceRequest, PfPolicy, Request
from packing_oracle import NODE, pci

if TYPE_CHECKING:
    from k8s_rdma.core.pf_use import Used
    from k8s_rdma.core.types import Strategy


def card(*pfs: tuple[int | None, int, int | None]) -> Inventory:
    """PFs given as (Mb/s, VFs, NUMA node)."""
    return Inventory(
        node=NODE,
        pfs=tuple(
            Pf(name=f"enp{at}s0", pci=pci(at), link_mbps=mbps, capacity_vfs=vfs, numa_node=numa)
            for at, (mbps, vfs, numa) in enumerate(pfs)
        ),
    )


def asks(policy: PfPolicy, *rates: int) -> Request:
    return Request(tuple(InterfaceRequest(min_tx_rate_mbps=rate) for rate in rates), policy)


FOUR = card((100, 8, 0), (100, 8, 0), (100, 8, 1), (100, 8, None))


def homes(request: Request, node: Inventory, used: dict[int, Used], strategy: Strategy) -> list[int]:
    found = place(request, node, {pci(at): there for at, there in used.items()}, strategy=strategy)
    assert isinstance(found, Placement), found
    index = {pf.pci: at for at, pf in enumerate(node.pfs)}
    return [index[placed.pf] for placed in found.interfaces]
