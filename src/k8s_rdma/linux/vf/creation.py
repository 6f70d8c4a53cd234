"""The VFs of one PF by sysfs: made, removed, given to their driver and taken from it.

Source: Linux `Documentation/ABI/testing/sysfs-bus-pci`, `drivers/pci/iov.c` and `pci-driver.c`, 6.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.core.ids import PciAddress
from k8s_rdma.linux.discovery.pci import PciFunction

if TYPE_CHECKING:
    from k8s_rdma.linux.sysfs import Sysfs

_DEVICES = "bus/pci/devices"


@dataclass(frozen=True, slots=True, kw_only=True)
class VfFunction:
    """A VF's PCI function.

    driver: None while it has none. netdevs: as `PciFunction.netdevs`; empty when they are elsewhere.
    """

    index: int
    pci: PciAddress
    driver: str | None
    netdevs: tuple[str, ...] | None


class SriovPf:
    """A PF and its VFs. Every failure is an OSError with the kernel's errno."""

    def __init__(self, sysfs: Sysfs, pci: PciAddress) -> None:
        """The PF at this address."""
        self._sysfs = sysfs
        self._function = PciFunction(sysfs, pci)
        self._autoprobe = f"{_DEVICES}/{pci}/sriov_drivers_autoprobe"
        self._numvfs = f"{_DEVICES}/{pci}/sriov_numvfs"

    def total(self) -> int:
        """The most VFs that it can have."""
        return self._function.total_vfs()

    def count(self) -> int:
        """The VFs that it is set to have."""
        return self._function.num_vfs()

    def make(self, count: int) -> None:
        """Have so many VFs, or none; from one number to another the way is through none.

        The driver may make fewer and say so in the kernel's log alone.
        """
        self._sysfs.write(self._numvfs, str(count))

    def probes_vfs(self) -> bool:
        """Whether VFs get a driver: at once when they are made, and later when they are probed."""
        return bool(self._sysfs.number(self._autoprobe))

    def let_probe_vfs(self, probe: bool) -> None:
        """See `probes_vfs`; VFs that have a driver keep it."""
        self._sysfs.write(self._autoprobe, str(int(probe)))

    def vfs(self) -> tuple[VfFunction, ...]:
        """Those that there are, ordered by index."""
        return tuple(self._vf(index, pci) for index, pci in self._function.vfs().items())

    def again(self, vf: VfFunction) -> VfFunction:
        """A VF as it is now."""
        return self._vf(vf.index, vf.pci)

    def modalias(self, vf: VfFunction) -> str:
        """What modprobe(8) finds a VF's driver by."""
        return self._sysfs.value_if_any(f"{_DEVICES}/{vf.pci}/modalias") or ""

    def _vf(self, index: int, pci: PciAddress) -> VfFunction:
        function = PciFunction(self._sysfs, pci)
        netdevs = function.netdevs()
        return VfFunction(
            index=index,
            pci=pci,
            driver=function.driver(),
            netdevs=None if netdevs is None else tuple(sorted(netdevs)),
        )
