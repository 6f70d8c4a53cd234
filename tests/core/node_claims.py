"""Claims on the PFs of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from factories import PF0, PF1, pod
from k8s_rdma.core.claims import AllocatedClaim, ClaimedInterface, with_uses
from k8s_rdma.core.ledger import ClaimUid, Ledger
from k8s_rdma.core.pf_selection import PfRule
from k8s_rdma.core.request import InterfaceRequest
from k8s_rdma.core.types import NodeName, PfUse

if TYPE_CHECKING:
    from k8s_rdma.core.kernel import Hardware

W1 = NodeName("w1")
RULES = (PfRule(use=PfUse.CLAIMS),)
DEVICES = {PF0: "enp3s0f0", PF1: "enp3s0f1"}


def for_claims(found: Hardware, ledger: Ledger = Ledger()) -> Hardware:  # noqa: B008 - immutable
    return with_uses(found, RULES, ledger)


def allocated(uid: str, *interfaces: tuple[str, int], name: str = "p") -> AllocatedClaim:
    return AllocatedClaim(
        uid=ClaimUid(uid),
        namespace="default",
        name=uid,
        pod=pod(name),
        pod_claim=uid,
        interfaces=tuple(
            ClaimedInterface(
                request=f"r{index}",
                device=DEVICES[pf],
                share_id=str(index),
                interface=InterfaceRequest(min_tx_rate_mbps=mbps),
            )
            for index, (pf, mbps) in enumerate(interfaces)
        ),
    )
