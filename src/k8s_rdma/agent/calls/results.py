"""What an attachment gave, as its CNI result has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.wire.cni_result import ResultInterface
from k8s_rdma.wire.ipam_result import IpamResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.core.ledger import Receipt


def result_interfaces(receipt: Receipt, addresses: Mapping[str, IpamResult]) -> list[ResultInterface]:
    """The attachment's interfaces as its result has them; a PCI function is not in the sandbox."""
    return [
        ResultInterface(
            name=interface.ifname,
            mac=interface.mac,
            sandbox=receipt.netns.path if interface.is_netdev else "",
            mtu=(interface.options.mtu or interface.home.mtu) if interface.is_netdev else 0,
            pci=interface.pci,
            ipam=addresses.get(interface.ifname, IpamResult()),
        )
        for interface in receipt.interfaces
    ]
