"""Whether a PCI function can be handed to a program by vfio-pci, and by which device node.

Source: Linux `drivers/vfio/vfio_main.c`, `Documentation/driver-api/vfio.rst`, 6.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.errors import KernelError
from k8s_rdma.linux.discovery.pci import PciFunction
from k8s_rdma.linux.sysfs import Sysfs

if TYPE_CHECKING:
    from k8s_rdma.core.ids import PciAddress

VFIO_PCI = "vfio-pci"

_NOIOMMU_MODE = "module/vfio/parameters/enable_unsafe_noiommu_mode"
_NOIOMMU_NAME = "vfio-noiommu"
_HARMLESS = frozenset({VFIO_PCI, "mlx5_vfio_pci", "pci-stub", "pcieport"})
"""Drivers beside which a group is viable: they let no device do DMA for the host (`driver_managed_dma`)."""


def can_have_vfio(sysfs: Sysfs, pci: PciAddress) -> bool:
    """Whether a function could be bound to vfio-pci now. VFs of a PF are alike in that: one look tells."""
    return not objection_to_vfio(sysfs, pci)


def objection_to_vfio(sysfs: Sysfs, pci: PciAddress) -> str:
    """Why a program cannot be handed a function, a sentence for an operator; empty when it can."""
    if sysfs.names_if_any(f"bus/pci/drivers/{VFIO_PCI}") is None:
        return f"the driver {VFIO_PCI} is not there; load it on the host: modprobe {VFIO_PCI}"
    group = _group(sysfs, pci)
    if group is None:
        if sysfs.value_if_any(_NOIOMMU_MODE) in ("Y", "1"):
            return ""
        return (
            f"{pci} is in no IOMMU group: turn the IOMMU on (in the BIOS, and intel_iommu=on or amd_iommu=on "
            f"for the kernel), or vfio's enable_unsafe_noiommu_mode"
        )
    for other in sorted(sysfs.names_if_any(f"bus/pci/devices/{pci}/iommu_group/devices") or ()):
        driver = sysfs.target_if_any(f"bus/pci/devices/{other}/driver")
        if other != pci and driver is not None and driver not in _HARMLESS:
            why = f"which {driver} drives; its slot or bridge lacks ACS"
            return f"{pci} shares IOMMU group {group} with {other}, {why}"
    return ""


def vfio_group(pci: PciAddress, sysfs: Sysfs | None = None) -> str:
    """The device node of the group of a function that vfio-pci has; KernelError while it has not.

    `/dev/vfio/<group>`, or `/dev/vfio/noiommu-<group>` where there is no IOMMU (vfio_create_group).
    """
    sysfs = sysfs or Sysfs()
    group, driver = _group(sysfs, pci), PciFunction(sysfs, pci).driver()
    if group is None or driver != VFIO_PCI:
        msg = f"{pci}: no VFIO group, as {driver or 'no driver'} has it, in IOMMU group {group or 'none'}"
        raise KernelError(msg)
    name = sysfs.value_if_any(f"bus/pci/devices/{pci}/iommu_group/name")
    return f"/dev/vfio/{'noiommu-' if name == _NOIOMMU_NAME else ''}{group}"


def _group(sysfs: Sysfs, pci: PciAddress) -> str | None:
    return sysfs.target_if_any(f"bus/pci/devices/{pci}/iommu_group")
