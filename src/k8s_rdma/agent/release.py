"""Release of a receipt's VFs, and the undoing of steps.

A release tries every step; a VF that no longer exists does not need any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.core.kernel import (
    Hardware,
    Kernel,
    NameTakenError,
    NoSuchVfError,
    OtherMacError,
)
from k8s_rdma.core.ledger import AllocatedInterface
from k8s_rdma.core.netdev_attributes import Attributes
from k8s_rdma.core.plan import separate_steps, undo
from k8s_rdma.core.step import BringHome, ConfigureVfs, SetRates, Step, UnbindVf, VfHome, VfRef
from k8s_rdma.errors import K8sRdmaError, KernelError, Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from k8s_rdma.core.ledger import Receipt

_log = structlog.get_logger()


class RatesLeftError(KernelError):
    """All VFs of an attachment are home, and some still have its rates.

    Many drivers take no rates while the link is down, not even 0. Until they do, the receipt stays.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """The interfaces of a receipt as they came home.

    as_at_home: the attributes of netdevs that had those of home, and whose settings were not changed since.
    """

    interfaces: tuple[AllocatedInterface, ...]
    as_at_home: Mapping[VfRef, Attributes]


def release(receipt: Receipt, kernel: Kernel, scan: Callable[[], Hardware]) -> Released:
    """Bring every VF of a receipt home, wherever its ADD stopped.

    scan: observes the hardware, for VFs that still exist; may raise KernelError.
    Raises one KernelError that names all failures; RatesLeftError when only rates are left.
    """
    undoing = _Rollback(kernel)
    failed = undoing.undo(receipt)
    if failed:
        remaining = _remaining(receipt.interfaces, undoing.absent_vfs, scan)
        if remaining != receipt.interfaces:
            failed = undoing.undo(replace(receipt, interfaces=remaining))  # their rates are set together
    if failed:
        msg = f"container {receipt.attachment.container}: {len(failed)} of its VFs' changes not undone"
        rates_only = all(isinstance(step, SetRates) for step, _ in failed)
        kind = RatesLeftError if rates_only else KernelError
        raise kind(msg, details="; ".join(why for _, why in failed))
    interfaces = tuple(
        replace(interface, home=undoing.homes.get(interface.vf, interface.home))
        for interface in receipt.interfaces
    )
    return Released(interfaces=interfaces, as_at_home=undoing.as_at_home)


def held_elsewhere(receipt: Receipt) -> K8sRdmaError:
    """Make the failure of an ADD whose pod holds its interfaces in another sandbox."""
    msg = (
        f"pod {receipt.pod.full_name} still holds its interfaces, in sandbox "
        f"{receipt.attachment.container} as {receipt.attachment.ifname} of network {receipt.network}; "
        "try again when that sandbox is gone"
    )
    return K8sRdmaError(msg, reason=Reason.HELD_BY_OLDER_SANDBOX)


def attached_already(receipt: Receipt, interface: AllocatedInterface) -> K8sRdmaError:
    """Make the failure of an ADD for an interface that its pod already has."""
    msg = (
        f"pod {receipt.pod.full_name} has interface {interface.entry} of its request "
        f"already, as {interface.ifname} by network {receipt.network}"
    )
    return K8sRdmaError(msg, reason=Reason.ALREADY_ATTACHED)


class _Rollback:
    """Applies the inverse steps of a receipt.

    homes: the changed names and MACs of VFs that could not return to the host as they were. absent_vfs: VFs
        that no longer exist. as_at_home: see `Released`.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.homes: dict[VfRef, VfHome] = {}
        self.absent_vfs: set[VfRef] = set()
        self.as_at_home: dict[VfRef, Attributes] = {}

    def undo(self, receipt: Receipt) -> list[tuple[Step, str]]:
        """Apply all inverse steps. Returns the failed ones with their errors."""
        spare_names = {interface.vf: spare_name(interface.pci) for interface in receipt.interfaces}
        failed = []
        for step in undo(separate_steps(receipt)):
            try:
                self._apply(step, spare_names)
            except KernelError as error:
                failed.append((step, str(error)))
                if isinstance(error, NoSuchVfError) and isinstance(step, BringHome | UnbindVf):
                    self.absent_vfs.add(step.vf)
        return failed

    def _apply(self, step: Step, sparing: dict[VfRef, str]) -> None:
        """Apply a step; with the spare name, or the PF's MAC, if a VF's home name or MAC is taken."""
        try:
            attributes = self._kernel.apply(step)
        except (NameTakenError, OtherMacError) as error:
            if not isinstance(step, BringHome | UnbindVf):
                raise
            home = _other_home(step, error, sparing)
            if home == step.home:
                raise
            self._apply(replace(step, home=home), sparing)
            self.homes.setdefault(step.vf, home)
            return
        if isinstance(step, BringHome) and attributes is not None:
            self.as_at_home[step.vf] = attributes
        elif isinstance(step, ConfigureVfs):  # a driver may reset a VF whose settings change
            for config in step.configs:
                self.as_at_home.pop(VfRef(step.pf, config.index), None)


def _other_home(
    step: BringHome | UnbindVf, error: NameTakenError | OtherMacError, sparing: dict[VfRef, str]
) -> VfHome:
    fields = {"pf": step.vf.pf, "vf": step.vf.index, "error": str(error)}
    if isinstance(error, OtherMacError):
        _log.warning("vf_home_mac_replaced", mac=step.home.mac, by=error.mac, **fields)
        return replace(step.home, mac=error.mac)
    _log.warning("vf_home_name_taken", named=sparing[step.vf], **fields)
    return replace(step.home, name=sparing[step.vf])


def spare_name(pci: str) -> str:
    """Make the name of a VF whose own another netdev has taken: `vf0000030010` for 0000:03:01.0.

    At most 15 characters, as `IFNAMSIZ` has it, also if the PCI domain has eight digits.
    """
    return "vf" + pci.replace(":", "").replace(".", "")


def _remaining(
    interfaces: tuple[AllocatedInterface, ...], absent_vfs: Container[VfRef], scan: Callable[[], Hardware]
) -> tuple[AllocatedInterface, ...]:
    """Select interfaces whose VFs exist; in an incomplete scan, those not known to be absent."""
    remaining = tuple(interface for interface in interfaces if interface.vf not in absent_vfs)
    try:
        hardware = scan()
    except KernelError:
        return remaining
    if hardware.unreadable:
        return remaining
    present = {VfRef(pf.pci, vf.index) for pf in hardware.pfs for vf in pf.vfs}
    return tuple(interface for interface in remaining if interface.vf in present)


def revert(steps: Iterable[Step], kernel: Kernel) -> None:
    """Apply the inverses of all steps, in reverse order. KernelError names those that fail."""
    failures = []
    for step in undo(steps):
        try:
            kernel.apply(step)
        except KernelError as error:
            failures.append(str(error))
    if failures:
        raise KernelError("; ".join(failures))
