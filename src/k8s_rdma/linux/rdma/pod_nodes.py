"""The device nodes of what pods have, looked up whenever they are asked for."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from k8s_rdma.errors import KernelError
from k8s_rdma.linux.rdma.character_devices import character_devices, function_of, rdma_cm_numbers
from k8s_rdma.linux.sysfs import Sysfs
from k8s_rdma.linux.vf.vfio import vfio_group

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from k8s_rdma.core.devices.seen import CharacterDevice
    from k8s_rdma.core.ids import PciAddress


class PodNodes:
    """By sysfs, which shows them whichever namespace the devices are in. Every failure is a KernelError."""

    def __init__(self, sysfs: Sysfs | None = None) -> None:
        """sysfs: the node's."""
        self._sysfs = sysfs or Sysfs()

    def vfio_group(self, pci: PciAddress) -> str:
        """As `linux.vf.vfio.vfio_group`."""
        return vfio_group(pci, self._sysfs)

    def of_vf(self, pci: PciAddress, rdma_device: str) -> tuple[CharacterDevice, ...]:
        """Of a VF's RDMA devices: its function's, or a soft one by name.

        A name alone may be another function's by now: names are given on when drivers are bound anew.
        """
        with _as_kernel_error(f"VF {pci}"):
            found = character_devices(self._sysfs, pci)
            if found or not rdma_device:
                return tuple(each for name in sorted(found) for each in found[name])
            named = character_devices(self._sysfs).get(rdma_device, ())
            return tuple(each for each in named if function_of(self._sysfs, each) in ("", pci))

    def of_devices(self, rdma_devices: Collection[str]) -> tuple[CharacterDevice, ...]:
        """Of RDMA devices by name."""
        with _as_kernel_error(f"RDMA devices {', '.join(rdma_devices)}"):
            found = character_devices(self._sysfs)
        return tuple(each for name in rdma_devices for each in found.get(name, ()))

    def rdma_device(self, pci: PciAddress) -> str:
        """The name of a function's RDMA device, in whichever namespace it is; empty for none."""
        with _as_kernel_error(f"VF {pci}"):
            return next(iter(sorted(character_devices(self._sysfs, pci))), "")

    def rdma_cm(self) -> tuple[int, int] | None:
        """Major and minor number of the connection manager's node; None where there is none."""
        with _as_kernel_error("rdma_cm"):
            return rdma_cm_numbers(self._sysfs)


@contextmanager
def _as_kernel_error(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        msg = f"{what}: its character devices cannot be looked up: {error.strerror}"
        raise KernelError(msg) from error
