"""Caps that software enforces, restored if they do not hold: a pod with CAP_NET_ADMIN may remove them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from k8s_rdma.core.plan import altered_caps, software_capped
from k8s_rdma.core.step import VfRef
from k8s_rdma.errors import KernelError

if TYPE_CHECKING:
    from k8s_rdma.core.kernel import Kernel, LocatedVf
    from k8s_rdma.core.ledger import AllocatedInterface, Receipt
    from k8s_rdma.core.types import PciAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class CapFinding:
    """A cap in Mb/s that did not hold. found: a clause. failure: why it still does not, or empty."""

    vf: VfRef
    ifname: str
    mbps: int
    found: str
    failure: str = ""


@dataclass(slots=True)
class ObservedCaps:
    """State of the node's caps in software.

    failures: VFs whose caps do not hold, with a clause that says why. restored: how many caps were restored.
    Changed on the worker's thread, by a new mapping each time, and read from others.
    """

    failures: Mapping[VfRef, str] = field(default_factory=dict)
    restored: int = 0

    def note(self, receipt: Receipt, findings: Iterable[CapFinding]) -> None:
        """Record the findings of a check of a receipt's caps."""
        self.forget(receipt)
        for finding in findings:
            if finding.failure:
                self.failures = {**self.failures, finding.vf: finding.failure}
            else:
                self.restored += 1

    def forget(self, receipt: Receipt) -> None:
        """Drop the state of a receipt's caps."""
        of_receipt = {interface.vf for interface in receipt.interfaces}
        if not of_receipt.isdisjoint(self.failures):
            self.failures = {vf: why for vf, why in self.failures.items() if vf not in of_receipt}


def restore_caps(receipt: Receipt, kernel: Kernel) -> tuple[CapFinding, ...]:
    """Restore all caps of a receipt that software enforces; return those that did not hold."""
    try:
        found = kernel.located(receipt.netns)
    except KernelError as error:
        why = f"its namespace cannot be looked at: {error}"
        return tuple(_finding(interface, why, why) for interface in software_capped(receipt))
    return tuple(_restored(receipt, found, kernel))


def _restored(
    receipt: Receipt, found: Mapping[PciAddress, LocatedVf], kernel: Kernel
) -> Iterator[CapFinding]:
    for altered in altered_caps(receipt, found):
        failure = altered.found if altered.step is None else ""
        if altered.step is not None:
            try:
                kernel.apply(altered.step)
            except KernelError as error:
                failure = f"{altered.found}, and it cannot be put back: {error}"
        yield _finding(altered.interface, altered.found, failure)


def _finding(interface: AllocatedInterface, found: str, failure: str) -> CapFinding:
    return CapFinding(
        vf=interface.vf,
        ifname=interface.ifname,
        mbps=interface.software_max_tx_rate_mbps,
        found=found,
        failure=failure,
    )
