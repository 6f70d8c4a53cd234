"""VFs of a PF during node setup: creation and removal by sysfs, and drivers."""

from __future__ import annotations

from dataclasses import dataclass

from k8s_rdma.core.types import PciAddress
from k8s_rdma.linux.sysfs import PciFunction, Sysfs

_DEVICES = "bus/pci/devices"


@dataclass(frozen=True, slots=True, kw_only=True)
class VfFunction:
    """A VF's PCI function.

    driver: its driver, if any.
    driver_override: as `PciFunction.driver_override`.
    netdevs: as `PciFunction.netdevs`; empty when they are elsewhere.
    """

    index: int
    pci: PciAddress
    driver: str | None
    netdevs: tuple[str, ...] | None
    driver_override: str = ""


class SriovPf:
    """A PF and its VFs. Every failure is an OSError with the kernel's errno."""

    def __init__(self, sysfs: Sysfs, pci: PciAddress) -> None:
        """Use the PF at this address."""
        self._sysfs = sysfs
        self._function = PciFunction(sysfs, pci)
        self._autoprobe = f"{_DEVICES}/{pci}/sriov_drivers_autoprobe"
        self._numvfs = f"{_DEVICES}/{pci}/sriov_numvfs"

    def total(self) -> int:
        """Return the most VFs that it supports."""
        return self._function.total_vfs()

    def count(self) -> int:
        """Return the number of VFs that it is set to have."""
        return self._function.num_vfs()

    def create_vfs(self, count: int) -> None:
        """Set the number of VFs; between two numbers above 0, set 0 first.

        The driver may create fewer and report that only in the kernel's log.
        """
        self._sysfs.write(self._numvfs, str(count))

    def probes_vfs(self) -> bool:
        """Report whether VFs are bound to a driver when they are created and whenever they are probed."""
        return bool(self._sysfs.number(self._autoprobe))

    def let_probe_vfs(self, probe: bool) -> None:
        """Turn probing on or off, see `probes_vfs`; bound VFs stay bound."""
        self._sysfs.write(self._autoprobe, str(int(probe)))

    def vfs(self) -> tuple[VfFunction, ...]:
        """Return the existing VFs, ordered by index."""
        return tuple(self._vf(index, pci) for index, pci in self._function.vfs().items())

    def again(self, vf: VfFunction) -> VfFunction:
        """Return the present state of a VF."""
        return self._vf(vf.index, vf.pci)

    def modalias(self, vf: VfFunction) -> str:
        """Return the modalias by which modprobe(8) finds a VF's driver."""
        return self._sysfs.value_if_any(f"{_DEVICES}/{vf.pci}/modalias") or ""

    def _vf(self, index: int, pci: PciAddress) -> VfFunction:
        function = PciFunction(self._sysfs, pci)
        netdevs = function.netdevs()
        return VfFunction(
            index=index,
            pci=pci,
            driver=function.driver(),
            netdevs=None if netdevs is None else tuple(sorted(netdevs)),
            driver_override=function.driver_override(),
        )
