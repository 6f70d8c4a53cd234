"""The agent's knowledge as a `NodeReport`, and how it gets out."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from msgspec.structs import replace

from k8s_rdma.agent.state_socket import StatePublisher
from k8s_rdma.core.allocation import foreign_vfs, used_here
from k8s_rdma.core.inventory import NOTHING_USED, Generation
from k8s_rdma.core.step import VfRef
from k8s_rdma.wire.rest import (
    Allocation,
    Enforced,
    ForeignVf,
    Interface,
    NodeReport,
    PfReport,
    Pod,
    VfReport,
    encode_report,
    rates_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.agent.node import Node
    from k8s_rdma.core.ids import NodeName
    from k8s_rdma.core.inventory import Used
    from k8s_rdma.core.kernel import Hardware, PfState, Vf
    from k8s_rdma.core.ledger import AllocatedInterface, Ledger, Receipt


class Reporter:
    """Tells the node's state; a generation is one content, of which nothing but the generation is new."""

    def __init__(self, node: Node) -> None:
        """Begin a new epoch."""
        self._node = node
        self._epoch = uuid.uuid4().hex[:12]
        self._counter = 0
        self._told: NodeReport | None = None
        self._encoded = b""
        self.publisher = StatePublisher(self._report)

    async def publish(self) -> None:
        """Send the state to all readers that have another one."""
        await self.publisher.publish()

    def _report(self) -> bytes:
        now = node_report(
            node=self._node.name,
            generation=Generation(self._epoch, self._counter),
            hardware=self._node.hardware,
            ledger=self._node.ledger,
        )
        if now != self._told:
            self._counter += 1
            self._told = replace(now, generation=str(Generation(self._epoch, self._counter)))
            self._encoded = encode_report(self._told)
        return self._encoded


def node_report(*, node: NodeName, generation: Generation, hardware: Hardware, ledger: Ledger) -> NodeReport:
    """What the node has and who holds it."""
    foreign: dict[str, list[ForeignVf]] = {}
    for each in foreign_vfs(hardware, ledger):
        told = ForeignVf(
            vf=each.vf.index,
            why=each.why,
            min_tx_rate=each.min_tx_rate_mbps,
            max_tx_rate=each.max_tx_rate_mbps,
        )
        foreign.setdefault(each.vf.pf, []).append(told)
    held = {interface.vf: interface for each in ledger.receipts.values() for interface in each.interfaces}
    used = used_here(hardware, ledger)
    return NodeReport(
        node=node,
        generation=str(generation),
        ledger="ok",
        pfs=tuple(
            _pf(pf, tuple(foreign.get(pf.pci, ())), held, used.get(pf.pci, NOTHING_USED))
            for pf in hardware.pfs
        ),
        allocations=tuple(_allocation(receipt) for receipt in ledger.receipts.values()),
        unreadable=tuple(f"{item.what}: {item.why}" for item in hardware.unreadable),
        problems=hardware.problems,
    )


def _pf(
    pf: PfState, foreign: tuple[ForeignVf, ...], held: Mapping[VfRef, AllocatedInterface], used: Used
) -> PfReport:
    return PfReport(
        name=pf.name,
        pci=pf.pci,
        driver=pf.driver,
        capacity_vfs=len(pf.vfs),
        link_mbps=pf.link_mbps,
        mtu=pf.mtu,
        link_type=pf.link_type,
        rdma_device=pf.rdma_device,
        vendor=pf.vendor,
        firmware=pf.firmware,
        numa_node=pf.numa_node,
        pcie_path=tuple(pf.pcie_path),
        switchdev=pf.switchdev,
        rates=rates_of(pf.rates),
        enforce=pf.enforce,
        problems=(*pf.problems, *_broken_promises(pf, used)),
        foreign=foreign,
        vfs=tuple(_vf(vf, held.get(VfRef(pf.pci, vf.index))) for vf in pf.vfs),
    )


def _broken_promises(pf: PfState, used: Used) -> tuple[str, ...]:
    """That the link has less than what is reserved on it: nothing is taken from whoever has it."""
    if pf.link_mbps is None and used.mbps:
        return (f"PF {pf.name}: {used.mbps} Mb/s are reserved, and its link speed is unknown now",)
    if pf.link_mbps is not None and used.mbps > pf.link_mbps:
        return (f"PF {pf.name}: {used.mbps} Mb/s are reserved, and its link has {pf.link_mbps} Mb/s now",)
    return ()


def _vf(vf: Vf, held: AllocatedInterface | None) -> VfReport:
    """A VF; of one that is given away MAC and rates are those of the ledger, whatever its pod made of it."""
    return VfReport(
        vf=vf.index,
        mac=held.home.mac if held else vf.mac,
        vlan=vf.vlan,
        qos=vf.qos,
        vlan_proto=vf.vlan_proto,
        spoof_check=vf.spoof_check,
        trust=vf.trust,
        link_state=vf.link_state,
        min_tx_rate=held.min_tx_rate_mbps if held else vf.min_tx_rate_mbps,
        max_tx_rate=held.max_tx_rate_mbps if held else vf.max_tx_rate_mbps,
        vgt_plus=vf.vgt_plus,
        rate_group=vf.rate_group,
        allocated=held is not None or vf.netdev is None,
    )


def _allocation(receipt: Receipt) -> Allocation:
    return Allocation(
        pod=Pod(namespace=receipt.pod.namespace, name=receipt.pod.name, uid=receipt.pod.uid),
        container_id=receipt.attachment.container,
        phase=receipt.phase,
        interfaces=tuple(map(_interface, receipt.interfaces)),
    )


def _interface(interface: AllocatedInterface) -> Interface:
    reserved, cap = interface.min_tx_rate_mbps, interface.max_tx_rate_mbps
    return Interface(
        pf=interface.vf.pf,
        vf=interface.vf.index,
        ifname=interface.ifname,
        mac=interface.home.mac,
        min_tx_rate=reserved,
        max_tx_rate=cap,
        set_min_tx_rate=reserved,
        set_max_tx_rate=cap,
        enforced=Enforced(min="hardware" if reserved else None, max="hardware" if cap else None),
    )
