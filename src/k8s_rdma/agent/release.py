"""Taking an attachment's VFs back: everything is tried, and what is gone needs nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from k8s_rdma.core.plan import claims, undo
from k8s_rdma.core.step import SetRates, VfRef
from k8s_rdma.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from k8s_rdma.core.kernel import Hardware, Kernel
    from k8s_rdma.core.ledger import AllocatedInterface, Receipt
    from k8s_rdma.core.step import Step


class RatesLeftError(KernelError):
    """All VFs of an attachment are home, and some still have its rates.

    Many drivers take no rates while the link is down, not even 0. Until they do, the receipt stays.
    """


def release(receipt: Receipt, kernel: Kernel, look: Callable[[], Hardware]) -> None:
    """Bring every VF of a receipt home, wherever its ADD stopped.

    look: at the hardware, for what is there still; KernelError when that cannot be told.
    Raises one KernelError that names all that failed; RatesLeftError when that is only rates.
    """
    failed = _undo(receipt, kernel)
    if not failed:
        return
    there = _still_there(receipt.interfaces, look)
    if there != receipt.interfaces:
        failed = _undo(replace(receipt, interfaces=there), kernel)  # their rates are set together
    if failed:
        msg = f"container {receipt.attachment.container}: {len(failed)} of its VFs' changes not undone"
        rates_only = all(isinstance(step, SetRates) for step, _ in failed)
        kind = RatesLeftError if rates_only else KernelError
        raise kind(msg, details="; ".join(why for _, why in failed))


def _undo(receipt: Receipt, kernel: Kernel) -> list[tuple[Step, str]]:
    """Apply all inverses; what failed, and why."""
    failed = []
    for step in undo(claims(receipt)):
        try:
            kernel.apply(step)
        except KernelError as error:
            failed.append((step, str(error)))
    return failed


def _still_there(
    interfaces: tuple[AllocatedInterface, ...], look: Callable[[], Hardware]
) -> tuple[AllocatedInterface, ...]:
    """Those whose VFs exist; all of them where not everything can be seen."""
    try:
        hardware = look()
    except KernelError:
        return interfaces
    if hardware.unreadable:
        return interfaces
    there = {VfRef(pf.pci, vf.index) for pf in hardware.pfs for vf in pf.vfs}
    return tuple(interface for interface in interfaces if interface.vf in there)
