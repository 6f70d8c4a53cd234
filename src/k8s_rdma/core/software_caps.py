"""Caps in software: whether the kernel can keep them, and which were altered inside a pod."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from k8s_rdma.core.ledger import AllocatedInterface, Receipt
from k8s_rdma.core.step import CapInterface
from k8s_rdma.core.types import Enforce, PciAddress
from k8s_rdma.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from k8s_rdma.core.kernel import Hardware, LocatedVf, PfState


@dataclass(frozen=True, slots=True, kw_only=True)
class AlteredCap:
    """An interface whose cap is not what it was given.

    found: what there is instead, in a clause. step: what puts it back, by the name that the interface has
        now; None where it is not in the pod.
    """

    interface: AllocatedInterface
    found: str
    step: CapInterface | None


NOT_KEPT = "caps are not kept by software: the kernel has no token bucket filter; load its module sch_tbf"


def without_software_caps(hardware: Hardware) -> Hardware:
    """The same where the kernel has no token bucket filter: a problem of PFs that leave caps to software."""
    return replace(hardware, pfs=tuple(map(_without_software_caps, hardware.pfs)))


def _without_software_caps(pf: PfState) -> PfState:
    by_software = pf.enforce is Enforce.SOFTWARE or (pf.enforce is Enforce.AUTO and pf.rates.max is None)
    problems = (*pf.problems, NOT_KEPT) if by_software else pf.problems
    return replace(pf, software_caps=False, problems=problems)


def software_capped(receipt: Receipt) -> tuple[AllocatedInterface, ...]:
    """The interfaces whose caps software keeps."""
    return tuple(interface for interface in receipt.interfaces if interface.software_max_tx_rate_mbps)


def altered_caps(receipt: Receipt, found: Mapping[PciAddress, LocatedVf]) -> Iterator[AlteredCap]:
    """Find the caps that do not hold. found: the VFs in the pod's namespace."""
    for interface in software_capped(receipt):
        observed, expected = found.get(PciAddress(interface.pci)), interface.software_max_tx_rate_mbps
        if observed is None:
            found_instead = f"interface {interface.ifname} is not in the pod's namespace"
            yield AlteredCap(interface=interface, found=found_instead, step=None)
        elif observed.max_tx_rate_mbps != expected:
            step = CapInterface(netns=receipt.netns, ifname=observed.ifname, max_tx_rate_mbps=expected)
            yield AlteredCap(interface=interface, found=_describe(observed), step=step)


def _describe(vf: LocatedVf) -> str:
    interface = f"interface {printable(vf.ifname)}"  # whoever is in there may call it anything
    if vf.max_tx_rate_mbps:
        return f"{interface} is limited to {vf.max_tx_rate_mbps} Mb/s"
    return f"{interface} has {vf.qdisc or 'no queueing discipline'} instead of its limit"
