"""Taking an attachment's VFs back: everything is tried, and what is gone needs nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.core.kernel import NameTakenError
from k8s_rdma.core.plan import claims, undo
from k8s_rdma.core.step import BringHome, SetRates, UnbindVf, VfRef
from k8s_rdma.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from k8s_rdma.core.kernel import Hardware, Kernel
    from k8s_rdma.core.ledger import AllocatedInterface, Receipt
    from k8s_rdma.core.step import Step

_log = structlog.get_logger()


class RatesLeftError(KernelError):
    """All VFs of an attachment are home, and some still have its rates.

    Many drivers take no rates while the link is down, not even 0. Until they do, the receipt stays.
    """


def release(receipt: Receipt, kernel: Kernel, look: Callable[[], Hardware]) -> tuple[AllocatedInterface, ...]:
    """Bring every VF of a receipt home, wherever its ADD stopped; as what they came home.

    look: at the hardware, for what is there still; KernelError when that cannot be told.
    Raises one KernelError that names all that failed; RatesLeftError when that is only rates.
    """
    undoing = _Undoing(kernel)
    failed = undoing.undo(receipt)
    if failed:
        there = _still_there(receipt.interfaces, look)
        if there != receipt.interfaces:
            failed = undoing.undo(replace(receipt, interfaces=there))  # their rates are set together
    if failed:
        msg = f"container {receipt.attachment.container}: {len(failed)} of its VFs' changes not undone"
        rates_only = all(isinstance(step, SetRates) for step, _ in failed)
        kind = RatesLeftError if rates_only else KernelError
        raise kind(msg, details="; ".join(why for _, why in failed))
    names = undoing.names
    return tuple(
        replace(each, home=replace(each.home, name=names.get(each.vf, each.home.name)))
        for each in receipt.interfaces
    )


class _Undoing:
    """Applies inverses. names: of VFs whose own name at home was not to be had."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.names: dict[VfRef, str] = {}

    def undo(self, receipt: Receipt) -> list[tuple[Step, str]]:
        """Apply all inverses; what failed, and why."""
        spare = {each.vf: spare_name(each.pci) for each in receipt.interfaces}
        failed = []
        for step in undo(claims(receipt)):
            try:
                self._apply(step, spare)
            except KernelError as error:
                failed.append((step, str(error)))
        return failed

    def _apply(self, step: Step, spare: dict[VfRef, str]) -> None:
        try:
            self._kernel.apply(step)
        except NameTakenError as error:
            if not isinstance(step, BringHome | UnbindVf):
                raise
            name = spare[step.vf]
            self._kernel.apply(replace(step, home=replace(step.home, name=name)))
            self.names[step.vf] = name
            _log.warning("vf_home_name_taken", pf=step.vf.pf, vf=step.vf.index, named=name, error=str(error))


def spare_name(pci: str) -> str:
    """What a VF is called whose name another netdev took while it was away: `vf0000030010` of 0000:03:01.0.

    At most 15 characters, as `IFNAMSIZ` has it, also where the PCI domain has eight digits.
    """
    return "vf" + pci.replace(":", "").replace(".", "")


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
