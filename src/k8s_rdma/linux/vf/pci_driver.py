"""Which driver has a PCI function: taken from one, given to another.

Source: Linux `Documentation/ABI/testing/sysfs-bus-pci`, `drivers/base/bus.c` (bind_store, unbind_store),
`drivers/pci/pci-driver.c` (pci_match_device, pci_device_can_probe), 6.1.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from k8s_rdma.linux.discovery.pci import PciFunction

if TYPE_CHECKING:
    from k8s_rdma.core.ids import PciAddress
    from k8s_rdma.linux.sysfs import Sysfs

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
        told = self._sysfs.value_if_any(self._at("driver_override")) or _NO_OVERRIDE
        return "" if told == _NO_OVERRIDE else told

    def let(self, driver: str) -> None:
        """Let this driver alone have it from now on, and empty, any that fits; who has it keeps it."""
        if self.override() != driver:
            self._sysfs.write(self._at("driver_override"), f"{driver}\n")

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
            self._sysfs.write(self._at("driver/unbind"), self._pci)

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

    def _at(self, name: str) -> str:
        return f"{_DEVICES}/{self._pci}/{name}"
