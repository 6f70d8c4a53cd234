"""The prepared claims of a node, as they are reported and described to their containers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from k8s_rdma.core.ledger import AllocatedInterface, Attachment, LedgerClaim, Phase, PreparedInterface
from k8s_rdma.wire.claims import MAX_IPS, ClaimName, PreparedClaim, PreparedClaimInterface
from k8s_rdma.wire.device_metadata import DescribedRequest, DescribedVf
from k8s_rdma.wire.report_builder import enforced_rates

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from k8s_rdma.agent.node import Node
    from k8s_rdma.core.ledger import Receipt
    from k8s_rdma.core.step import VfRef

_Attached = tuple[Attachment, AllocatedInterface]


def prepared_claims(node: Node) -> tuple[PreparedClaim, ...]:
    """Describe all prepared claims of a node."""
    claims = node.ledger.claims.values()
    pods = {recorded.pod.uid for recorded in claims}
    attached = _attached(receipt for receipt in node.ledger.receipts.values() if receipt.pod.uid in pods)
    return tuple(_prepared_claim(node, recorded, attached) for recorded in claims)


def prepared_claim(node: Node, recorded: LedgerClaim) -> PreparedClaim:
    """Describe one prepared claim of a node."""
    return _prepared_claim(node, recorded, _attached(node.ledger.of_pod(recorded.pod.uid)))


def described_requests(node: Node, recorded: LedgerClaim) -> Iterator[DescribedRequest]:
    """Describe the requests of a prepared claim to the containers that request them."""
    claim = prepared_claim(node, recorded)
    vfs: dict[str, list[DescribedVf]] = {}
    for prepared, interface in zip(recorded.interfaces, claim.interfaces, strict=True):
        vfs.setdefault(prepared.request, []).append(_described_vf(node, prepared, interface))
    pod_claim = recorded.pod_claim if recorded.from_template else ""
    for name, described in vfs.items():
        yield DescribedRequest(claim=claim.claim, name=name, pod_claim=pod_claim, vfs=described)


def _described_vf(node: Node, prepared: PreparedInterface, interface: PreparedClaimInterface) -> DescribedVf:
    pf = node.hardware.pf(prepared.vf.pf)
    return DescribedVf(
        pool=node.name,
        interface=interface,
        pf=pf.name if pf is not None else "",
        vf=prepared.vf.index,
        numa_node=pf.numa_node if pf is not None else None,
        pcie_root=pf.pcie_root if pf is not None else "",
    )


def _attached(receipts: Iterable[Receipt]) -> Mapping[VfRef, _Attached]:
    return {
        interface.vf: (receipt.attachment, interface)
        for receipt in receipts
        if receipt.phase is Phase.ATTACHED
        for interface in receipt.interfaces
    }


def _prepared_claim(node: Node, recorded: LedgerClaim, attached: Mapping[VfRef, _Attached]) -> PreparedClaim:
    return PreparedClaim(
        claim=ClaimName(namespace=recorded.namespace, name=recorded.name, uid=recorded.uid),
        pod=recorded.pod.name,
        pod_uid=recorded.pod.uid,
        interfaces=tuple(
            _claimed_interface(node, interface, attached.get(interface.vf))
            for interface in recorded.interfaces
        ),
    )


def _claimed_interface(
    node: Node, prepared: PreparedInterface, attached: _Attached | None
) -> PreparedClaimInterface:
    found = PreparedClaimInterface(
        device=prepared.device,
        share_id=prepared.share_id,
        pci=prepared.pci,
        rdma_device=prepared.rdma_device,
        min_tx_rate=prepared.placed.min_tx_rate_mbps,
        max_tx_rate=prepared.placed.max_tx_rate_mbps,
    )
    if attached is None:
        return found
    attachment, interface = attached
    pf = node.hardware.pf(interface.vf.pf)
    enforced = enforced_rates(interface, pf, cap_lost=interface.vf in node.caps.failures)
    addresses = node.addresses.get(attachment)
    return msgspec.structs.replace(
        found,
        ifname=interface.ifname,
        mac=interface.mac,
        max_tx_rate=interface.max_tx_rate_mbps,
        ips=None if addresses is None else addresses.get(interface.ifname, ())[:MAX_IPS],
        min_enforced=enforced.min,
        max_enforced=enforced.max,
    )
