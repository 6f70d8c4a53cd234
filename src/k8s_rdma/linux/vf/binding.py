"""Drivers of VFs: a function is taken from one driver and given to another, for programs and back.

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
from k8s_rdma.linux.pci import USERSPACE_DRIVERS, PciFunction
from k8s_rdma.linux.vf.locator import describe
from k8s_rdma.linux.vf.netdev import restore_netdev
from k8s_rdma.linux.vfio import VFIO_PCI, objection_to_vfio

if TYPE_CHECKING:
    from collections.abc import Callable

    from k8s_rdma.core.ids import PciAddress
    from k8s_rdma.core.step import BindVf, UnbindVf, VfHome, VfRef
    from k8s_rdma.linux.netlink.rtnl import Link, Rtnl
    from k8s_rdma.linux.sysfs import Sysfs
    from k8s_rdma.linux.vf.locator import VfLocator
    from k8s_rdma.linux.vf.rdma import VfRdma

_DEVICES, _DRIVERS = "bus/pci/devices", "bus/pci/drivers"
_NO_OVERRIDE = "(null)"


class PciDriver:
    """The driver of one function. Every failure is an OSError with the kernel's errno.

    All but `name` wait in the kernel for as long as another change of its driver is under way.
    """

    def __init__(self, sysfs: Sysfs, pci: PciAddress) -> None:
        """Of the function at this address."""
        self._sysfs = sysfs
        self._pci = pci

    def name(self) -> str | None:
        """None while it has none."""
        return PciFunction(self._sysfs, self._pci).driver()

    def override(self) -> str:
        """The driver that alone may have it (`driver_override`); empty for any that fits."""
        override = self._sysfs.value_if_any(self._path("driver_override")) or _NO_OVERRIDE
        return "" if override == _NO_OVERRIDE else override

    def let(self, driver: str) -> None:
        """Let this driver alone have it from now on, and empty, any that fits; who has it keeps it."""
        if self.override() != driver:
            self._sysfs.write(self._path("driver_override"), f"{driver}\n")

    def hand_to(self, driver: str) -> None:
        """Have this driver have it, and no other: taken from who has it, from wherever a crash left it.

        It is let to it by name, as `sriov_drivers_autoprobe` may be off, and so that nobody else takes it.
        """
        self.let(driver)
        if self.name() != driver:
            self.unbind()
        self.bind(driver)

    def unbind(self) -> None:
        """Take it from its driver, what that made of it away with it; holds when it has none.

        Returns when the driver let go: vfio-pci only when no program has it any more.
        """
        if self.name() is not None:
            self._sysfs.write(self._path("driver/unbind"), self._pci)

    def bind(self, driver: str) -> None:
        """Have this driver take it, which it must be let to; ENODEV when it does not want it."""
        if self.name() != driver:
            self._sysfs.write(f"{_DRIVERS}/{driver}/bind", self._pci)
        if self.name() != driver:
            raise OSError(errno.ENODEV, f"driver {driver} did not take it", self._pci)

    def bind_anew(self) -> None:
        """Take it from its driver, and offer it to all; returns when one has it, or none wants it.

        While the PF's `sriov_drivers_autoprobe` is off none may, without an error, unless it is let.
        """
        self.unbind()
        self._sysfs.write("bus/pci/drivers_probe", self._pci)

    def _path(self, name: str) -> str:
        return f"{_DEVICES}/{self._pci}/{name}"


RETURN_TIMEOUT_S = 10.0
"""For a driver to let go of a VF, and for the kernel's one to make netdev and RDMA device of it."""

_POLL_S = 0.02


class VfBinding:
    """Carries out BindVf and UnbindVf, from whatever state a crash has left."""

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

        timeout_s: see `RETURN_TIMEOUT_S`. unsafe_noiommu: see `core.inventory.Selection`.
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
        """Have a program's driver have the VF; KernelError, and nothing is changed, where the host cannot."""
        function, operation = self._function(step), f"{describe(step.vf)}: give to {step.driver}"
        driver = PciDriver(self._sysfs, function.pci)
        if driver.name() != step.driver:
            self._require_free(function, step, operation)
            if self._rdma.names(function.pci):
                self._had_rdma.add(step.vf)
        self._change(function.pci, operation, partial(driver.hand_to, step.driver))

    def unbind(self, step: UnbindVf) -> None:
        """Have the kernel's driver have it as at home, unless that has it and it serves another namespace."""
        function, operation = self._function(step), f"{describe(step.vf)}: give back to {step.kernel_driver}"
        driver = PciDriver(self._sysfs, function.pci)
        bound_driver = driver.name()
        if bound_driver not in (None, step.driver, step.kernel_driver):
            msg = f"{operation}: {bound_driver} has it, which was not given it"
            raise KernelError(msg)

        def give_back() -> None:
            if driver.name() != step.kernel_driver:
                driver.hand_to(step.kernel_driver)
            driver.let("")

        self._change(function.pci, operation, give_back)
        if function.netdevs() != []:
            self._settle(function, step.vf, step.home, operation, mac=step.mac)

    def take_guid(self, vf: VfRef, guid: str, home: VfHome) -> None:
        """Have the driver of a VF at home take the GUID that the PF has for the VF's port.

        It asks for that when it is bound, so it is bound anew: the netdev is then another one, as at home.
        """
        function = self._places.function(vf)
        if function.driver() in USERSPACE_DRIVERS or function.netdevs() == []:
            return
        link, operation = self._places.at_home(vf), f"{describe(vf)}: bind anew for GUID {guid}"
        if link is not None and link.mac.endswith(guid):
            return
        if self._rdma.names(function.pci):
            self._had_rdma.add(vf)
        self._change(function.pci, operation, PciDriver(self._sysfs, function.pci).bind_anew)
        self._settle(function, vf, home, operation, mac=None)

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
            why = f"{driver} has it"
        elif function.netdevs() == []:
            why = "its netdev is in another namespace"
        if why:
            msg = f"{operation}: {why}"
            raise KernelError(msg)

    def _change(self, pci: PciAddress, operation: str, change: Callable[[], None]) -> None:
        """In a thread of its own: in the kernel it takes for as long as a program has the VF open.

        Who tries again is told at once that it still has: else every try would hold up all other pods.
        """
        previous = self._changing.pop(pci, None)
        if previous is not None:
            self._await_change(previous, pci, operation, _POLL_S)
        now = _Change(pci, change)
        now.start()
        self._await_change(now, pci, operation, self._timeout_s)
        if now.failure is not None:
            advice = "see the kernel's log for why"
            if now.failure.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
                advice = "the agent needs /sys writable, and root"
            raise KernelError(f"{operation}: {now.failure}", details=advice) from now.failure

    def _await_change(self, change: _Change, pci: PciAddress, operation: str, timeout_s: float) -> None:
        change.join(timeout_s)
        if change.is_alive():
            self._changing[pci] = change
            msg = f"{operation}: the driver that had it did not let go of it within {self._timeout_s:g} s"
            raise KernelError(msg, details="a program has it open still; it is let go when that ends")

    def _settle(
        self, function: PciFunction, vf: VfRef, home: VfHome, operation: str, *, mac: str | None
    ) -> None:
        """Wait for its netdev and RDMA device, and make them what they were."""
        link = self._await(function, vf, operation)
        let = None if mac is None else partial(self._places.let_have_mac, vf)
        restore_netdev(link.index, vf, home, self._rtnl, let)
        self._had_rdma.discard(vf)

    def _await(self, function: PciFunction, vf: VfRef, operation: str) -> Link:
        """Its netdev; KernelError when that does not come, or an RDMA device that is known to have been."""
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
        """Report whether another VF of the PF has one by the same driver: then this one had, too."""
        driver = function.driver()
        functions = (PciFunction(self._sysfs, pci) for pci in PciFunction(self._sysfs, vf.pf).vfs().values())
        return any(
            self._rdma.names(sibling.pci)
            for sibling in functions
            if sibling.pci != function.pci and sibling.driver() == driver
        )


class _Change(threading.Thread):
    """A change of a function's driver. failure: why it was refused."""

    failure: OSError | None = None

    def __init__(self, pci: PciAddress, change: Callable[[], None]) -> None:
        super().__init__(name=f"driver of {pci}", daemon=True)
        self._change = change

    def run(self) -> None:
        try:
            self._change()
        except OSError as error:
            self.failure = error
