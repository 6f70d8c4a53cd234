"""The prepared claims of a node, as they are reported and described to their containers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from k8s_rdma.core.ledger import AllocatedInterface, Attachment, ClaimPromise, Phase, PromisedInterface
from k8s_rdma.wire.claims import MAX_IPS, ClaimedInterface, ClaimName, PreparedClaim
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
    attached = _attached(node.ledger.receipts.values())
    return tuple(_prepared_claim(node, promise, attached) for promise in node.ledger.promises.values())


def prepared_claim(node: Node, promise: ClaimPromise) -> PreparedClaim:
    """Describe one prepared claim of a node."""
    return _prepared_claim(node, promise, _attached(node.ledger.of_pod(promise.pod.uid)))


def described_requests(node: Node, promise: ClaimPromise) -> Iterator[DescribedRequest]:
    """Describe the requests of a prepared claim to the containers that request them."""
    claim = prepared_claim(node, promise)
    vfs: dict[str, list[DescribedVf]] = {}
    for promised, interface in zip(promise.interfaces, claim.interfaces, strict=True):
        vfs.setdefault(promised.request, []).append(_described_vf(node, promised, interface))
    pod_claim = promise.pod_claim if promise.from_template else ""
    for name, described in vfs.items():
        yield DescribedRequest(claim=claim.claim, name=name, pod_claim=pod_claim, vfs=described)


def _described_vf(node: Node, promised: PromisedInterface, interface: ClaimedInterface) -> DescribedVf:
    pf = node.hardware.pf(promised.vf.pf)
    return DescribedVf(
        pool=node.name,
        interface=interface,
        pf=pf.name if pf is not None else "",
        vf=promised.vf.index,
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


def _prepared_claim(node: Node, promise: ClaimPromise, attached: Mapping[VfRef, _Attached]) -> PreparedClaim:
    return PreparedClaim(
        claim=ClaimName(namespace=promise.namespace, name=promise.name, uid=promise.uid),
        pod=promise.pod.name,
        pod_uid=promise.pod.uid,
        interfaces=tuple(
            _claimed_interface(node, interface, attached.get(interface.vf))
            for interface in promise.interfaces
        ),
    )


def _claimed_interface(
    node: Node, promised: PromisedInterface, attached: _Attached | None
) -> ClaimedInterface:
    found = ClaimedInterface(
        device=promised.device,
        share_id=promised.share_id,
        pci=promised.pci,
        rdma_device=promised.rdma_device,
        min_tx_rate=promised.placed.min_tx_rate_mbps,
        max_tx_rate=promised.placed.max_tx_rate_mbps,
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
