"""Scans of a node's hardware, and operations on the VFs of a receipt.

These are release, undoing of steps, caps of software, and refusals of a second ADD. A release tries every
step; a VF that no longer exists does not need any. A pod with CAP_NET_ADMIN may remove caps.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.core.kernel import (
    Hardware,
    Kernel,
    LocatedVf,
    NameTakenError,
    NoSuchVfError,
    OtherMacError,
    Unreadable,
)
from k8s_rdma.core.ledger import AllocatedInterface
from k8s_rdma.core.netdev_attributes import Attributes
from k8s_rdma.core.plan import altered_caps, separate_steps, software_capped, undo
from k8s_rdma.core.step import BringHome, ConfigureVfs, SetRates, Step, UnbindVf, VfHome, VfRef
from k8s_rdma.errors import K8sRdmaError, KernelError, Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from k8s_rdma.core.ledger import Receipt
    from k8s_rdma.core.types import PciAddress

_log = structlog.get_logger()


TOLERATED_FAILURES = 1
"""Scans in a row that may fail entirely before the hardware counts as unreadable: one may have met a driver
while it was loaded, and the next follows within a second."""


@dataclass(frozen=True, slots=True)
class Scans:
    """Statistics of scans. failed: incomplete ones. seconds: the duration of all together."""

    total: int = 0
    failed: int = 0
    seconds: float = 0.0


class Scanner:
    """Scans the node's hardware; used from one thread, read from others.

    error: why the last scan failed entirely; empty when it did not.
    incomplete: whether the last scan failed or could not read everything, so that another one is due.
    last_s: the duration of the last scan.
    """

    def __init__(
        self,
        kernel: Kernel,
        in_pools: Callable[[Hardware], Hardware] = lambda hardware: hardware,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Wait for the first scan. in_pools: puts VFs into their pools."""
        self._kernel = kernel
        self._in_pools = in_pools
        self._now = now
        self._failures = 0
        self.scans = Scans()
        self.error = ""
        self.incomplete = False
        self.last_s = 0.0

    def scan(self) -> Hardware:
        """Observe the hardware. KernelError when the kernel cannot be queried."""
        started = self._now()
        self.incomplete = True
        try:
            hardware = self._in_pools(self._kernel.observe())
            self._failures, self.error = 0, ""
            self.incomplete = bool(hardware.unreadable)
        except KernelError as error:
            self._failures, self.error = self._failures + 1, str(error)
            raise
        finally:
            self.last_s = self._now() - started
            scans_before = self.scans
            self.scans = Scans(
                scans_before.total + 1,
                scans_before.failed + self.incomplete,
                scans_before.seconds + self.last_s,
            )
        return hardware

    def look_again(self, last: Hardware) -> Hardware:
        """Scan; return `last` when the kernel cannot be queried, marked as unreadable if that persists."""
        try:
            return self.scan()
        except KernelError as error:
            if self._failures <= TOLERATED_FAILURES:
                return last
            return replace(last, unreadable=(Unreadable("the hardware", str(error)),))


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
