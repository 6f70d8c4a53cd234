"""PCI functions of network cards in sysfs. Source: Linux `Documentation/ABI/testing/sysfs-bus-pci`, 6.1."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.core.ids import PciAddress, pci_address
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.sysfs import Sysfs

if TYPE_CHECKING:
    from collections.abc import Mapping


USERSPACE_DRIVERS = frozenset({"vfio-pci", "mlx5_vfio_pci", "uio_pci_generic", "igb_uio", "pci-stub"})
"""Drivers that pass a function to a program or a guest and create no netdev."""

_DEVICES = "bus/pci/devices"
_NETWORK_CLASS = 0x02
_VIRTFN = re.compile(r"virtfn(\d+)")
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@dataclass(frozen=True, slots=True)
class PciFunction:
    """A PCI function. Every failure to read it is an OSError with the kernel's errno."""

    sysfs: Sysfs
    pci: PciAddress

    def _path(self, name: str) -> str:
        return f"{_DEVICES}/{self.pci}/{name}"

    def is_network(self) -> bool:
        """Report whether it is a network controller: Ethernet, InfiniBand or another."""
        return (self.sysfs.number(self._path("class")) or 0) >> 16 == _NETWORK_CLASS

    def vendor(self) -> str:
        """Return vendor and device, `15b3:1017`."""
        numbers = (self.sysfs.number(self._path(name)) or 0 for name in ("vendor", "device"))
        return ":".join(f"{number:04x}" for number in numbers)

    def driver(self) -> str | None:
        """Return the driver that it is bound to."""
        return self.sysfs.target_if_any(self._path("driver"))

    def numa_node(self) -> int | None:
        """Return its NUMA node; None where the firmware does not report one."""
        node = self.sysfs.number_if_any(self._path("numa_node"))
        return None if node is None or node < 0 else node

    def pcie_path(self) -> tuple[PciAddress, ...]:
        """Return the bridges and switches above it, from the root port down."""
        path = self.sysfs.resolved(f"{_DEVICES}/{self.pci}").split("/")
        return tuple(pci_address(part) for part in path[:-1] if _ADDRESS.fullmatch(part))

    def exists(self) -> bool:
        """Report whether the function exists."""
        return self.sysfs.names_if_any(f"{_DEVICES}/{self.pci}") is not None

    def pf(self) -> PciAddress | None:
        """Return the PF of a VF; None for a function that is not a VF."""
        pf = self.sysfs.target_if_any(self._path("physfn"))
        return None if pf is None else pci_address(pf)

    def total_vfs(self) -> int:
        """Return the most VFs that it supports; 0 for a function that is not a PF."""
        return self.sysfs.number_if_any(self._path("sriov_totalvfs")) or 0

    def num_vfs(self) -> int:
        """Return the number of VFs that it is set to have."""
        return self.sysfs.number(self._path("sriov_numvfs")) or 0

    def vfs(self) -> Mapping[int, PciAddress]:
        """Return the existing VFs by index, in ascending order."""
        found = (_VIRTFN.fullmatch(name) for name in self.sysfs.names(f"{_DEVICES}/{self.pci}"))
        indexes = sorted(int(match[1]) for match in found if match)
        return {index: pci_address(self.sysfs.target(self._path(f"virtfn{index}"))) for index in indexes}

    def netdevs(self) -> list[str] | None:
        """Return its netdevs in this network namespace.

        Empty when they are in another one; None while its driver has created none: the kernel keeps the
        directory while there is a netdev in any namespace (`drivers/base/core.c`, get_device_parent).
        """
        return self.sysfs.names_if_any(self._path("net"))

    def rdma_devices(self) -> list[str]:
        """Return its RDMA devices in this namespace, without soft ones."""
        return sorted(self.sysfs.names_if_any(self._path("infiniband")) or ())


def pfs(sysfs: Sysfs) -> tuple[PciFunction, ...]:
    """Return all network functions that support VFs, by address. KernelError when there is no sysfs."""
    addresses = sysfs.names_if_any(_DEVICES)
    if addresses is None:
        if sysfs.names_if_any("bus") is None:
            msg = "sysfs: there is no directory bus; is it mounted where the configuration says?"
            raise KernelError(msg)
        return ()
    functions = (PciFunction(sysfs, pci_address(name)) for name in sorted(addresses))
    return tuple(function for function in functions if function.total_vfs() > 0 and function.is_network())
