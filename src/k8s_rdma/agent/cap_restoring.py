"""Caps that software keeps, put back where they do not hold: a pod with CAP_NET_ADMIN may take them away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from k8s_rdma.core.software_caps import altered_caps, software_capped
from k8s_rdma.core.step import VfRef
from k8s_rdma.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from k8s_rdma.core.ids import PciAddress
    from k8s_rdma.core.kernel import Kernel, LocatedVf
    from k8s_rdma.core.ledger import AllocatedInterface, Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class CapFinding:
    """A cap that did not hold, Mb/s. found: a clause. failure: why it still does not; empty when it does."""

    vf: VfRef
    ifname: str
    mbps: int
    found: str
    failure: str = ""


@dataclass(slots=True)
class CapsSeen:
    """What is known of the node's caps. lost: which do not hold and why, a clause each. restored: how many.

    Changed on the worker's thread, by a new mapping each time, and read from others.
    """

    lost: Mapping[VfRef, str] = field(default_factory=dict)
    restored: int = 0

    def note(self, receipt: Receipt, findings: Iterable[CapFinding]) -> None:
        """What was found of a receipt's caps just now."""
        self.forget(receipt)
        for each in findings:
            if each.failure:
                self.lost = {**self.lost, each.vf: each.failure}
            else:
                self.restored += 1

    def forget(self, receipt: Receipt) -> None:
        """Nothing is known any more of a receipt's."""
        of_receipt = {each.vf for each in receipt.interfaces}
        if not of_receipt.isdisjoint(self.lost):
            self.lost = {vf: why for vf, why in self.lost.items() if vf not in of_receipt}


def restore_caps(receipt: Receipt, kernel: Kernel) -> tuple[CapFinding, ...]:
    """Have all caps of a receipt hold that software keeps; what of them did not."""
    try:
        found = kernel.located(receipt.netns)
    except KernelError as error:
        why = f"its namespace cannot be looked at: {error}"
        return tuple(_finding(each, why, why) for each in software_capped(receipt))
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
