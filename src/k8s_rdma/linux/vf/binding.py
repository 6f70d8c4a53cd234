"""Drivers of VFs: unbinds a function from one driver and binds it to another, for programs and back.

Source: Linux `Documentation/ABI/testing/sysfs-bus-pci`, `drivers/base/bus.c` (bind_store, unbind_store),
`drivers/pci/pci-driver.c` (pci_match_device, pci_device_can_probe), 6.1.
"""

from __future__ import annotations

import errno
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from k8s_rdma.errors import KernelError
from k8s_rdma.linux.sysfs import USERSPACE_DRIVERS, PciFunction, Sysfs
from k8s_rdma.linux.vf.netdev import describe, restore_netdev
from k8s_rdma.linux.vfio import VFIO_PCI, objection_to_vfio

if TYPE_CHECKING:
    from collections.abc import Callable

    from k8s_rdma.core.step import BindVf, UnbindVf, VfHome, VfRef
    from k8s_rdma.core.types import PciAddress
    from k8s_rdma.linux.netlink.rtnl import Link, Rtnl
    from k8s_rdma.linux.vf.moves import VfLocator, VfRdma

_DEVICES, _DRIVERS = "bus/pci/devices", "bus/pci/drivers"

RETURN_TIMEOUT_S = 10.0
"""Time for a driver to release a VF, and for the kernel's driver to create its netdev and RDMA device."""

_POLL_S = 0.02


class PciDriver:
    """The driver of one function. Every failure is an OSError with the kernel's errno.

    All methods except `name` block in the kernel while another change of its driver is in progress.
    """

    def __init__(self, sysfs: Sysfs, pci: PciAddress) -> None:
        """Use the function at this address."""
        self._sysfs = sysfs
        self._pci = pci

    def name(self) -> str | None:
        """Return the driver that the function is bound to, if any."""
        return PciFunction(self._sysfs, self._pci).driver()

    def override(self) -> str:
        """Return the only driver that may bind it (`driver_override`); empty for any that matches."""
        return PciFunction(self._sysfs, self._pci).driver_override()

    def let(self, driver: str) -> None:
        """Permit only this driver to bind it, or with an empty name any match; a bound driver stays."""
        if self.override() != driver:
            self._sysfs.write(self._path("driver_override"), f"{driver}\n")

    def hand_to(self, driver: str) -> None:
        """Bind the function to this driver only, from whatever state a crash has left.

        The override names the driver, because `sriov_drivers_autoprobe` may be off and no other driver may
        bind it.
        """
        self.let(driver)
        if self.name() != driver:
            self.unbind()
        self.bind(driver)

    def unbind(self) -> None:
        """Unbind it from its driver, which removes the driver's devices; no change without one.

        Returns when the driver has released it: vfio-pci only when no program has it open.
        """
        if self.name() is not None:
            self._sysfs.write(self._path("driver/unbind"), self._pci)

    def bind(self, driver: str) -> None:
        """Bind it to this driver, which the override must permit; ENODEV when the driver refuses."""
        if self.name() != driver:
            self._sysfs.write(f"{_DRIVERS}/{driver}/bind", self._pci)
        if self.name() != driver:
            raise OSError(errno.ENODEV, f"driver {driver} did not take it", self._pci)

    def bind_anew(self) -> None:
        """Unbind it and bind it to the same driver again; without one, probe all drivers.

        The probe returns when a driver has bound it, or none matches. While the PF's
        `sriov_drivers_autoprobe` is off, no driver binds it without an override, and no error is reported.
        """
        driver, override = self.name(), self.override()
        if driver is None:
            self._sysfs.write("bus/pci/drivers_probe", self._pci)
            return
        self.let(driver)
        self.unbind()
        self.bind(driver)
        self.let(override)

    def end_bind_anew(self) -> None:
        """Complete a `bind_anew` that a crash interrupted: the override names a driver of the kernel."""
        override = self.override()
        if override and override not in USERSPACE_DRIVERS and self.name() is None:
            self.bind(override)
            self.let("")

    def _path(self, name: str) -> str:
        return f"{_DEVICES}/{self._pci}/{name}"


class VfBinding:
    """Carries out BindVf and UnbindVf, from any state that a crash has left."""

    def __init__(  # noqa: PLR0913 - what it works with, and what the operator allows
        self,
        *,
        rtnl: Rtnl,
        sysfs: Sysfs,
        places: VfLocator,
        rdma: VfRdma,
        timeout_s: float = RETURN_TIMEOUT_S,
        unsafe_noiommu: bool = False,
    ) -> None:
        """Work with these, all of the host's namespace.

        timeout_s: see `RETURN_TIMEOUT_S`.
        unsafe_noiommu: see `core.pf_selection.Selection`.
        """
        self._rtnl = rtnl
        self._sysfs = sysfs
        self._places = places
        self._rdma = rdma
        self._timeout_s = timeout_s
        self._unsafe_noiommu = unsafe_noiommu
        self._had_rdma: set[VfRef] = set()
        self._changing: dict[PciAddress, _Change] = {}

    def bind(self, step: BindVf) -> None:
        """Bind the VF to a program's driver; KernelError, without a change, if the host cannot."""
        function, operation = self._function(step), f"{describe(step.vf)}: bind to {step.driver}"
        driver = PciDriver(self._sysfs, function.pci)
        if driver.name() != step.driver:
            self._require_free(function, step, operation)
            if self._rdma.names(function.pci):
                self._had_rdma.add(step.vf)
        self._change(function.pci, operation, partial(driver.hand_to, step.driver))

    def unbind(self, step: UnbindVf) -> None:
        """Bind the VF to the kernel's driver and restore its netdev, unless it serves another namespace."""
        function, operation = self._function(step), f"{describe(step.vf)}: bind back to {step.kernel_driver}"
        driver = PciDriver(self._sysfs, function.pci)
        bound_driver = driver.name()
        if bound_driver not in (None, step.driver, step.kernel_driver):
            msg = f"{operation}: it is bound to {bound_driver}, which is neither driver of the step"
            raise KernelError(msg)

        def give_back() -> None:
            if driver.name() != step.kernel_driver:
                driver.hand_to(step.kernel_driver)
            driver.let("")

        self._change(function.pci, operation, give_back)
        if function.netdevs() != []:
            self._settle(function, step.vf, step.home, operation, mac=step.mac)

    def take_guid(self, vf: VfRef, guid: str, home: VfHome) -> None:
        """Have the driver of a VF in the host's namespace use the GUID that the PF has for the VF's port.

        The driver reads it when it is bound, so it is bound again; the new netdev is then restored.
        """
        function = self._places.function(vf)
        if function.driver() in USERSPACE_DRIVERS or function.netdevs() == []:
            return
        link, operation = self._places.at_home(vf), f"{describe(vf)}: bind again for GUID {guid}"
        if link is not None and link.mac.endswith(guid):
            return
        self._bind_anew(function, vf, home, operation, mac=None)

    def renew(self, vf: VfRef, home: VfHome, why: str, *, mac: str | None = None) -> None:
        """Bind a VF in the host's namespace to its driver again, which makes a new netdev, and restore that.

        why: a clause for errors.
        mac: as in `core.step.BringHome`.
        """
        function = self._places.function(vf)
        self._bind_anew(function, vf, home, f"{describe(vf)}: bind anew, because {why}", mac=mac)

    def end_renewal(self, vf: VfRef) -> None:
        """Complete a `renew` that a crash interrupted."""
        function = self._places.function(vf)
        if function.driver() is None:
            change = PciDriver(self._sysfs, function.pci).end_bind_anew
            self._change(function.pci, f"{describe(vf)}: bind to its driver again", change)

    def _bind_anew(
        self, function: PciFunction, vf: VfRef, home: VfHome, operation: str, *, mac: str | None
    ) -> None:
        if self._rdma.names(function.pci):
            self._had_rdma.add(vf)
        self._change(function.pci, operation, PciDriver(self._sysfs, function.pci).bind_anew)
        self._settle(function, vf, home, operation, mac=mac)

    def _function(self, step: BindVf | UnbindVf) -> PciFunction:
        function = self._places.function(step.vf)
        if function.pci != step.pci:
            msg = f"{describe(step.vf)}: it is {function.pci}, not {step.pci}"
            raise KernelError(msg)
        return function

    def _require_free(self, function: PciFunction, step: BindVf, operation: str) -> None:
        driver = function.driver()
        why = ""
        if step.driver == VFIO_PCI:
            why = objection_to_vfio(self._sysfs, function.pci, unsafe_noiommu=self._unsafe_noiommu)
        if driver not in (None, step.kernel_driver):
            why = f"it is bound to {driver}"
        elif function.netdevs() == []:
            why = "its netdev is in another namespace"
        if why:
            msg = f"{operation}: {why}"
            raise KernelError(msg)

    def _change(self, pci: PciAddress, operation: str, change: Callable[[], None]) -> None:
        """Run a change of driver in its own thread, because it blocks while a program has the VF open.

        A retry fails at once while the change blocks; otherwise every retry would delay all other pods.
        """
        previous = self._changing.pop(pci, None)
        if previous is not None:
            self._await_change(previous, pci, _POLL_S, f"{operation}: its driver still has not released it")
        now = _Change(pci, change)
        now.start()
        late = f"{operation}: its driver did not release it within {self._timeout_s:g} s"
        self._await_change(now, pci, self._timeout_s, late)
        if now.failure is not None:
            advice = "see the kernel's log for why"
            if now.failure.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
                advice = "the agent needs /sys writable, and root"
            raise KernelError(f"{operation}: {now.failure}", details=advice) from now.failure

    def _await_change(self, change: _Change, pci: PciAddress, timeout_s: float, late: str) -> None:
        change.join(timeout_s)
        if change.is_alive():
            self._changing[pci] = change
            raise KernelError(late, details="a program still has it open; it is released when that ends")

    def _settle(
        self, function: PciFunction, vf: VfRef, home: VfHome, operation: str, *, mac: str | None
    ) -> None:
        """Wait for its netdev and RDMA device, and restore them."""
        link = self._await(function, vf, operation)
        let = None if mac is None else partial(self._places.let_have_mac, vf)
        restore_netdev(link.index, vf, home, self._rtnl, let)
        self._had_rdma.discard(vf)

    def _await(self, function: PciFunction, vf: VfRef, operation: str) -> Link:
        """Wait for its netdev; KernelError when that, or the RDMA device that it had, does not appear."""
        deadline = time.monotonic() + self._timeout_s
        wants_rdma = vf in self._had_rdma or self._others_have_rdma(function, vf)
        while True:
            link = self._places.at_home(vf)
            if link is not None and (not wants_rdma or self._rdma.names(function.pci)):
                return link
            if time.monotonic() > deadline:
                if link is not None and vf not in self._had_rdma:
                    return link
                missing = "RDMA device" if link else "netdev"
                msg = (
                    f"{operation}: its driver {function.driver()} made no {missing} in {self._timeout_s:g} s"
                )
                raise KernelError(msg, details="see its driver's lines in dmesg")
            time.sleep(_POLL_S)

    def _others_have_rdma(self, function: PciFunction, vf: VfRef) -> bool:
        """Report whether another VF of the PF with this driver has an RDMA device, as this one then had."""
        driver = function.driver()
        functions = (PciFunction(self._sysfs, pci) for pci in PciFunction(self._sysfs, vf.pf).vfs().values())
        return any(
            self._rdma.names(sibling.pci)
            for sibling in functions
            if sibling.pci != function.pci and sibling.driver() == driver
        )


class _Change(threading.Thread):
    """A change of a function's driver. failure: the error that refused it."""

    failure: OSError | None = None

    def __init__(self, pci: PciAddress, change: Callable[[], None]) -> None:
        super().__init__(name=f"driver of {pci}", daemon=True)
        self._change = change

    def run(self) -> None:
        try:
            self._change()
        except OSError as error:
            self.failure = error
