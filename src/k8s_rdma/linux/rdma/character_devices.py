"""Character devices of RDMA devices and their nodes in `/dev`, for the machine and for pods.

Source: Linux `drivers/infiniband/core/uverbs_main.c` and `user_mad.c` (classes `infiniband_verbs` and
`infiniband_mad`: `ibdev`, `dev`; uverbs_devnode, umad_devnode), `ucma.c` (misc device `rdma_cm`), 6.1.
These classes show the devices of all network namespaces. A device that is moved to another one gets new
character devices, often of other numbers.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from k8s_rdma.core.devices.rdma_devices import INFINIBAND, RDMA_CM, CharacterDevice, NodeKind
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.sysfs import Sysfs
from k8s_rdma.linux.vfio import vfio_group

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from k8s_rdma.core.types import PciAddress

DEV = Path("/dev")

_VERBS, _MAD, _RDMA_CM = "infiniband_verbs", "infiniband_mad", "class/misc/rdma_cm"
_NODE = re.compile(r"(uverbs|umad|issm)\d+")
_NUMBERS = re.compile(r"(\d+):(\d+)")


def character_devices(sysfs: Sysfs, pci: str = "") -> Mapping[str, tuple[CharacterDevice, ...]]:
    """Return every RDMA device's character devices (`uverbs`, `umad`, `issm`, by number) in any namespace.

    By the device's name.
    pci: only those of this function; soft devices have none. A device that vanishes meanwhile is left out.
    OSError when they cannot be read.
    """
    found: dict[str, list[CharacterDevice]] = {}
    for name, device in _entries(sysfs, f"bus/pci/devices/{pci}" if pci else "class"):
        found.setdefault(name, []).append(device)
    return {name: tuple(devices) for name, devices in found.items()}


def function_of(sysfs: Sysfs, device: CharacterDevice) -> str:
    """Return the address of a character device's PCI function; empty for a soft device.

    OSError on failure.
    """
    directory = _VERBS if device.kind is NodeKind.UVERBS else _MAD
    parent = sysfs.target_if_any(f"class/{directory}/{Path(device.path).name}/device")
    return parent if parent and sysfs.names_if_any(f"bus/pci/devices/{parent}") is not None else ""


def rdma_cm_numbers(sysfs: Sysfs) -> tuple[int, int] | None:
    """Return major and minor number of the connection manager, if it exists."""
    return _numbers(sysfs, _RDMA_CM)


def _entries(sysfs: Sysfs, below: str) -> Iterator[tuple[str, CharacterDevice]]:
    for directory in (f"{below}/{_VERBS}", f"{below}/{_MAD}"):
        names = [name for name in sysfs.names_if_any(directory) or () if _NODE.fullmatch(name)]
        for name in sorted(names, key=_order):
            rdma_device = sysfs.value_if_any(f"{directory}/{name}/ibdev")
            numbers = _numbers(sysfs, f"{directory}/{name}")
            if rdma_device and numbers:
                kind = NodeKind(name.rstrip("0123456789"))
                major, minor = numbers
                path = f"{INFINIBAND}/{name}"
                yield rdma_device, CharacterDevice(kind=kind, path=path, major=major, minor=minor)


def _order(name: str) -> tuple[int, int]:
    kind = name.rstrip("0123456789")
    return list(NodeKind).index(NodeKind(kind)), int(name[len(kind) :])


def _numbers(sysfs: Sysfs, directory: str) -> tuple[int, int] | None:
    found = _NUMBERS.fullmatch(sysfs.value_if_any(f"{directory}/dev") or "")
    return (int(found[1]), int(found[2])) if found else None


class DeviceNodes:
    """The nodes in `/dev`. They are never opened, because that may change the device's state."""

    def __init__(self, dev: Path = DEV) -> None:
        """Look below `dev`, where the host's `/dev` is mounted."""
        self._dev = dev

    def locate(self, path: str) -> Path:
        """Return the path, in this process, of a path that begins with `/dev`."""
        return self._dev / Path(path).relative_to(DEV)

    def fault(self, device: CharacterDevice) -> str:
        """Describe the fault of a character device's node in one sentence; empty without a fault."""
        return self._fault(device.path, (device.major, device.minor))

    def has_rdma_cm(self, sysfs: Sysfs) -> bool:
        """Report whether the connection manager and its node exist."""
        numbers = rdma_cm_numbers(sysfs)
        return numbers is not None and not self._fault(RDMA_CM, numbers)

    def has_directory(self) -> bool:
        """Report whether `/dev/infiniband` exists."""
        return self.locate(INFINIBAND).is_dir()

    def _fault(self, path: str, expected: tuple[int, int]) -> str:
        try:
            found = os.stat(self.locate(path))  # noqa: PTH116
        except OSError as error:
            missing = isinstance(error, FileNotFoundError | NotADirectoryError)
            return f"{path} {'is missing' if missing else f'cannot be accessed: {error.strerror}'}"
        if not stat.S_ISCHR(found.st_mode):
            return f"{path} is no character device"
        numbers = os.major(found.st_rdev), os.minor(found.st_rdev)
        if numbers != expected:
            return f"{path} is device {numbers[0]}:{numbers[1]}, not {expected[0]}:{expected[1]}"
        return ""


class PodNodes:
    """Character devices for pods, from sysfs, which shows those of all namespaces.

    Every failure is a KernelError.
    """

    def __init__(self, sysfs: Sysfs | None = None) -> None:
        """Read the node's sysfs."""
        self._sysfs = sysfs or Sysfs()

    def vfio_group(self, pci: PciAddress) -> str:
        """Return the device node of a function's VFIO group; see `linux.vfio.vfio_group`."""
        with _as_kernel_error(f"VF {pci}"):
            return vfio_group(pci, self._sysfs)

    def of_vf(self, pci: PciAddress, rdma_device: str) -> tuple[CharacterDevice, ...]:
        """Return the character devices of a VF: those of its function, or of a soft device by name.

        The name alone is not enough: the kernel reuses names when drivers are bound again.
        """
        with _as_kernel_error(f"VF {pci}"):
            found = character_devices(self._sysfs, pci)
            if found or not rdma_device:
                return tuple(node for name in sorted(found) for node in found[name])
            named = character_devices(self._sysfs).get(rdma_device, ())
            return tuple(node for node in named if function_of(self._sysfs, node) in ("", pci))

    def of_devices(self, rdma_devices: Collection[str]) -> tuple[CharacterDevice, ...]:
        """Return the character devices of RDMA devices by name."""
        with _as_kernel_error(f"RDMA devices {', '.join(rdma_devices)}"):
            found = character_devices(self._sysfs)
        return tuple(node for name in rdma_devices for node in found.get(name, ()))

    def rdma_device(self, pci: PciAddress) -> str:
        """Return the name of a function's RDMA device in any namespace, if it has one."""
        with _as_kernel_error(f"VF {pci}"):
            return next(iter(sorted(character_devices(self._sysfs, pci))), "")

    def rdma_cm(self) -> tuple[int, int] | None:
        """Return major and minor number of the connection manager's node, if it exists."""
        with _as_kernel_error("rdma_cm"):
            return rdma_cm_numbers(self._sysfs)


@contextmanager
def _as_kernel_error(operation: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        msg = f"{operation}: its character devices cannot be read: {error.strerror}"
        raise KernelError(msg) from error
