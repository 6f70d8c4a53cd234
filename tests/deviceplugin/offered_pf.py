"""A PF that is offered to claims."""

from __future__ import annotations

import msgspec

from k8s_rdma.core.types import LinkType
from k8s_rdma.wire.claims import PfOffer


def offer(name: str = "f0", **changes: object) -> PfOffer:
    made = PfOffer(
        name=name,
        pf=name,
        pci="0000:03:00.0",
        driver="mlx5_core",
        vendor="15b3:1017",
        link_type=LinkType.ETHERNET,
        mtu=1500,
        min_rate="hardware",
        max_rate="hardware",
        rdma=True,
        bandwidth_mbps=95_000,
        vfs=8,
        numa_node=1,
        pcie_root="pci0000:00",
    )
    return msgspec.structs.replace(made, **changes)
