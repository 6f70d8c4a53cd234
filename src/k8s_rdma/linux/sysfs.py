"""Sysfs under a root of choice, and the PCI functions of network cards in it.

Source: sysfs(5), Linux `fs/sysfs/file.c`, `fs/kernfs`, `Documentation/ABI/testing/sysfs-bus-pci`, 6.1. Five
methods access files: `read`, `names`, `target`, `resolved` and `write`; all others use these. A subclass that
replaces the five is another machine, or one that records every access.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.core.types import PciAddress, pci_address
from k8s_rdma.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_WITHOUT_VALUE = frozenset({errno.EINVAL, errno.EIO, errno.EOPNOTSUPP, errno.EISDIR})
_ABSENT = frozenset({errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.ENOTDIR})

USERSPACE_DRIVERS = frozenset({"vfio-pci", "mlx5_vfio_pci", "uio_pci_generic", "igb_uio", "pci-stub"})
"""Drivers that pass a function to a program or a guest and create no netdev."""
_DEVICES = "bus/pci/devices"
_NETWORK_CLASS = 0x02
_NO_OVERRIDE = "(null)"
_VIRTFN = re.compile(r"virtfn(\d+)")
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class Sysfs:
    """Access to files by their path below `/sys`, such as `class/net/eth0/speed`.

    Every failure is an OSError with the kernel's errno; `is_absent` distinguishes a missing file from a
    forbidden one. A file that refuses to be read because it has no value (EINVAL, EIO, EOPNOTSUPP; EISDIR,
    which is how a copied tree shows such a file) is not an error: `value` is then None.
    """

    def __init__(self, root: Path | str = "/sys") -> None:
        """Read below `root`, where sysfs or a copy of it is mounted."""
        self._root = os.path.realpath(root)

    def read(self, path: str) -> str:
        """Return a file's text, whole; invalid UTF-8, possible in devices' names, as surrogate escapes."""
        # Unbuffered and unchecked by pathlib: an observation reads thousands of these.
        with open(f"{self._root}/{path}", "rb", buffering=0) as file:  # noqa: PTH123
            return file.read().decode(errors="surrogateescape")

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, in no order."""
        return os.listdir(f"{self._root}/{path}")  # noqa: PTH208

    def target(self, path: str) -> str:
        """Return the last part of a symbolic link's target, by which sysfs names devices and drivers."""
        return os.readlink(f"{self._root}/{path}").rpartition("/")[2]  # noqa: PTH115

    def resolved(self, path: str) -> str:
        """Return the path without symbolic links, relative to the root."""
        return os.path.realpath(f"{self._root}/{path}", strict=True).removeprefix(f"{self._root}/")

    def write(self, path: str, text: str) -> None:
        """Write to an existing file in one call, as the kernel requires."""
        descriptor = os.open(f"{self._root}/{path}", os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    def value(self, path: str) -> str | None:
        """Return a file's text without surrounding white space, if it has a value."""
        try:
            return self.read(path).strip()
        except OSError as error:
            if error.errno in _WITHOUT_VALUE:
                return None
            raise

    def value_if_any(self, path: str) -> str | None:
        """Return `value`, if there is such a file."""
        try:
            return self.value(path)
        except OSError as error:
            if is_absent(error):
                return None
            raise

    def number(self, path: str) -> int | None:
        """Return a file's number, decimal or `0x`, if it has a value.

        OSError (EBADMSG) for other text.
        """
        return _number(path, self.value(path))

    def number_if_any(self, path: str) -> int | None:
        """Return `number`, if there is such a file."""
        return _number(path, self.value_if_any(path))

    def names_if_any(self, path: str) -> list[str] | None:
        """Return `names`, or None, not an empty list, when there is no such directory."""
        try:
            return self.names(path)
        except OSError as error:
            if is_absent(error):
                return None
            raise

    def target_if_any(self, path: str) -> str | None:
        """Return `target`, if there is such a link."""
        try:
            return self.target(path)
        except OSError as error:
            if is_absent(error):
                return None
            raise


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

    def driver_override(self) -> str:
        """Return the only driver that may be bound to it; empty if any that matches may."""
        override = self.sysfs.value_if_any(self._path("driver_override")) or _NO_OVERRIDE
        return "" if override == _NO_OVERRIDE else override

    def numa_node(self) -> int | None:
        """Return its NUMA node, if the firmware reports one."""
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
        """Return the PF of a function, if it is a VF."""
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


def is_absent(error: OSError) -> bool:
    """Report whether the error means that a file, or its device, does not exist (any more)."""
    return error.errno in _ABSENT


def error_name(number: int) -> str:
    """Return an error's name as in errno(3), or the number; EOPNOTSUPP, as in the kernel, not ENOTSUP."""
    return "EOPNOTSUPP" if number == errno.EOPNOTSUPP else errno.errorcode.get(number, str(number))


def _number(path: str, text: str | None) -> int | None:
    try:
        return None if text is None else int(text, 0)
    except ValueError:
        raise OSError(errno.EBADMSG, f"not a number: {text!r}", path) from None
