"""The PFs that are offered for ResourceClaims, and the prepared claims, as `claims.sock` has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.agent.claim_states import prepared_claims
from k8s_rdma.agent.report import StatePublisher
from k8s_rdma.core.claims import ClaimsOffer, offers
from k8s_rdma.core.types import Enforce, Enforcer, PciAddress, enforcer_of
from k8s_rdma.wire.claims import MAX_ERROR, MAX_PROBLEMS, Offers, PfOffer, encode_line

if TYPE_CHECKING:
    from k8s_rdma.agent.node import Node


class ClaimOffers:
    """Renders the PFs that are offered for claims, and the prepared claims.

    Remembers the speed of links that are down.
    """

    def __init__(self, node: Node) -> None:
        """Wait for the first publication."""
        self._node = node
        self._links: dict[PciAddress, int] = {}
        self.publisher = StatePublisher(self._render)

    def _render(self) -> bytes:
        node = self._node
        self._links |= {pf.pci: pf.link_mbps for pf in node.hardware.pfs if pf.link_mbps is not None}
        found = offers(node.hardware, node.ledger, self._links, node.rules)
        return encode_line(
            Offers(
                node=node.name,
                pfs=tuple(map(_offer, found)),
                claims=prepared_claims(node),
            )
        )


def _offer(offer: ClaimsOffer) -> PfOffer:
    pf = offer.pf
    by_driver: Enforcer = enforcer_of(pf.driver)
    by_software: Enforcer = "software" if pf.software_caps else "accounted"
    takes_caps = pf.rates.max is not None and pf.enforce is not Enforce.SOFTWARE
    return PfOffer(
        name=offer.name,
        pf=pf.name,
        pci=pf.pci,
        driver=pf.driver,
        vendor=pf.vendor,
        link_type=pf.link_type,
        mtu=pf.mtu,
        min_rate=by_driver if pf.rates.min is not None else "accounted",
        max_rate=by_driver if takes_caps else by_software,
        rdma=pf.rdma_device is not None or any(vf.rdma_device for vf in pf.vfs),
        bandwidth_mbps=offer.mbps,
        least_mbps=offer.least_mbps,
        vfs=offer.vfs,
        numa_node=pf.numa_node,
        pcie_root=pf.pcie_root,
        link_up=offer.link_up,
        problems=tuple(problem[:MAX_ERROR] for problem in pf.problems[:MAX_PROBLEMS]),
    )
