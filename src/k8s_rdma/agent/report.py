"""The agent's knowledge as a `NodeReport`, and how it gets out."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from k8s_rdma.agent.state_socket import StatePublisher
from k8s_rdma.core.allocation import foreign_usage
from k8s_rdma.core.inventory import NOTHING_USED, Generation
from k8s_rdma.core.step import VfRef
from k8s_rdma.wire.rest import Allocation, Interface, NodeReport, PfReport, Pod, VfReport, encode_report

if TYPE_CHECKING:
    from collections.abc import Collection

    from k8s_rdma.agent.node import Node
    from k8s_rdma.core.ids import NodeName
    from k8s_rdma.core.inventory import Used
    from k8s_rdma.core.kernel import Hardware, PfState, Vf
    from k8s_rdma.core.ledger import Ledger, Receipt


class Reporter:
    """Tells what the node's state is, each time at a new generation."""

    def __init__(self, node: Node) -> None:
        """Begin a new epoch."""
        self._node = node
        self._epoch = uuid.uuid4().hex[:12]
        self._counter = 0
        self.publisher = StatePublisher(self._report)

    async def publish(self) -> None:
        """Send the state to all readers."""
        await self.publisher.publish()

    def _report(self) -> bytes:
        self._counter += 1
        return encode_report(
            node_report(
                node=self._node.name,
                generation=Generation(self._epoch, self._counter),
                hardware=self._node.hardware,
                ledger=self._node.ledger,
            )
        )


def node_report(*, node: NodeName, generation: Generation, hardware: Hardware, ledger: Ledger) -> NodeReport:
    """What the node has and who holds it."""
    foreign = foreign_usage(hardware, ledger)
    held = ledger.holders().keys()
    return NodeReport(
        node=node,
        generation=str(generation),
        ledger="ok",
        pfs=tuple(_pf(pf, foreign.get(pf.pci, NOTHING_USED), held) for pf in hardware.pfs),
        allocations=tuple(_allocation(receipt) for receipt in ledger.receipts.values()),
        unreadable=tuple(f"{item.what}: {item.why}" for item in hardware.unreadable),
    )


def _pf(pf: PfState, foreign: Used, held: Collection[VfRef]) -> PfReport:
    return PfReport(
        name=pf.name,
        pci=pf.pci,
        driver=pf.driver,
        capacity_vfs=len(pf.vfs),
        link_mbps=pf.link_mbps,
        foreign_vfs=foreign.vfs,
        foreign_mbps=foreign.mbps,
        vfs=tuple(_vf(vf, allocated=VfRef(pf.pci, vf.index) in held or vf.netdev is None) for vf in pf.vfs),
    )


def _vf(vf: Vf, *, allocated: bool) -> VfReport:
    return VfReport(
        vf=vf.index,
        mac=vf.mac,
        vlan=vf.vlan,
        qos=vf.qos,
        vlan_proto=vf.vlan_proto,
        spoof_check=vf.spoof_check,
        trust=vf.trust,
        link_state=vf.link_state,
        min_tx_rate=vf.min_tx_rate_mbps,
        max_tx_rate=vf.max_tx_rate_mbps,
        vgt_plus=vf.vgt_plus,
        rate_group=vf.rate_group,
        allocated=allocated,
    )


def _allocation(receipt: Receipt) -> Allocation:
    return Allocation(
        pod=Pod(namespace=receipt.pod.namespace, name=receipt.pod.name, uid=receipt.pod.uid),
        container_id=receipt.attachment.container,
        phase=receipt.phase,
        interfaces=tuple(
            Interface(
                pf=interface.vf.pf,
                vf=interface.vf.index,
                ifname=interface.ifname,
                mac=interface.home.mac,
                min_tx_rate=interface.min_tx_rate_mbps,
                max_tx_rate=interface.max_tx_rate_mbps,
            )
            for interface in receipt.interfaces
        ),
    )
