"""Whether a PCI function can be handed to a program by vfio-pci, and by which device node.

Source: Linux `drivers/vfio/vfio_main.c`, `Documentation/driver-api/vfio.rst`, 6.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.errors import KernelError
from k8s_rdma.linux.pci import PciFunction
from k8s_rdma.linux.sysfs import Sysfs

if TYPE_CHECKING:
    from k8s_rdma.core.ids import PciAddress

VFIO_PCI = "vfio-pci"

_NOIOMMU_MODE = "module/vfio/parameters/enable_unsafe_noiommu_mode"
_NOIOMMU_NAME = "vfio-noiommu"
_BRIDGE_DRIVER = "pcieport"
_BRIDGE_CLASSES = ("0x0600", "0x0604")
"""Of host and PCI bridges (`include/linux/pci_ids.h`), which do no DMA of their own.

Others do: class 0x0680 is that of non-transparent bridges and NVSwitches."""


def can_have_vfio(sysfs: Sysfs, pci: PciAddress, *, unsafe_noiommu: bool = False) -> bool:
    """Whether a function could be bound to vfio-pci now. VFs of a PF are alike in that: one look tells."""
    return not objection_to_vfio(sysfs, pci, unsafe_noiommu=unsafe_noiommu)


def objection_to_vfio(sysfs: Sysfs, pci: PciAddress, *, unsafe_noiommu: bool = False) -> str:
    """Why a program cannot be handed a function, a sentence for an operator; empty when it can.

    It must be alone in its IOMMU group, but for bridges: who has the group's device node may open every
    function of the group, now or when vfio-pci gets it later, and DMA between them passes no IOMMU.
    unsafe_noiommu: whether the operator allows a function without one.
    """
    if sysfs.names_if_any(f"bus/pci/drivers/{VFIO_PCI}") is None:
        return f"the driver {VFIO_PCI} is not there; load it on the host: modprobe {VFIO_PCI}"
    group = _group(sysfs, pci)
    if group is None or _is_noiommu(sysfs, pci):
        return _objection_without_iommu(sysfs, pci, allowed=unsafe_noiommu)
    others_of_group = others_in_group(sysfs, pci)
    if not others_of_group:
        return ""
    driver = sysfs.target_if_any(f"bus/pci/devices/{others_of_group[0]}/driver")
    why = f"which {driver or 'no driver'} drives; its slot or bridge lacks ACS"
    return f"{pci} shares IOMMU group {group} with {others_of_group[0]}, {why}"


def others_in_group(sysfs: Sysfs, pci: PciAddress) -> tuple[str, ...]:
    """The other functions of its IOMMU group that keep it from programs: all but bridges that do no DMA."""
    names = sysfs.names_if_any(f"bus/pci/devices/{pci}/iommu_group/devices") or ()
    return tuple(name for name in sorted(names) if name != pci and not _is_harmless(sysfs, name))


def _objection_without_iommu(sysfs: Sysfs, pci: PciAddress, *, allowed: bool) -> str:
    if sysfs.value_if_any(_NOIOMMU_MODE) not in ("Y", "1"):
        return (
            f"{pci} is in no IOMMU group: turn the IOMMU on (in the BIOS, and intel_iommu=on or amd_iommu=on "
            "for the kernel)"
        )
    if allowed:
        return ""
    return (
        f"{pci} is in no IOMMU group, and without one (enable_unsafe_noiommu_mode) its program can read and "
        "write all of the machine's memory: turn the IOMMU on, or allow that by hardware.unsafeNoiommu"
    )


def vfio_group(pci: PciAddress, sysfs: Sysfs | None = None) -> str:
    """The device node of the group of a function that vfio-pci has; KernelError while it has not.

    `/dev/vfio/<group>`, or `/dev/vfio/noiommu-<group>` where there is no IOMMU (vfio_create_group).
    """
    sysfs = sysfs or Sysfs()
    group, driver = _group(sysfs, pci), PciFunction(sysfs, pci).driver()
    if group is None or driver != VFIO_PCI:
        msg = f"{pci}: no VFIO group, as {driver or 'no driver'} has it, in IOMMU group {group or 'none'}"
        raise KernelError(msg)
    return f"/dev/vfio/{'noiommu-' if _is_noiommu(sysfs, pci) else ''}{group}"


def _group(sysfs: Sysfs, pci: PciAddress) -> str | None:
    return sysfs.target_if_any(f"bus/pci/devices/{pci}/iommu_group")


def _is_noiommu(sysfs: Sysfs, pci: PciAddress) -> bool:
    """Whether its group is one that vfio made up, which it does as it is bound where there is no IOMMU."""
    return sysfs.value_if_any(f"bus/pci/devices/{pci}/iommu_group/name") == _NOIOMMU_NAME


def _is_harmless(sysfs: Sysfs, pci: str) -> bool:
    """Whether it is a bridge, and no driver has it that would keep the kernel from giving its group away."""
    driver = sysfs.target_if_any(f"bus/pci/devices/{pci}/driver")
    pci_class = sysfs.value_if_any(f"bus/pci/devices/{pci}/class") or ""
    return driver in (None, _BRIDGE_DRIVER) and pci_class.startswith(_BRIDGE_CLASSES)
