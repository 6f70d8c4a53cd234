"""Passing PCI functions to programs by vfio-pci: the conditions and the device nodes.

Source: Linux `drivers/vfio/vfio_main.c`, `Documentation/driver-api/vfio.rst`, 6.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.errors import KernelError
from k8s_rdma.linux.sysfs import PciFunction, Sysfs

if TYPE_CHECKING:
    from k8s_rdma.core.types import PciAddress

VFIO_PCI = "vfio-pci"

_NOIOMMU_MODE = "module/vfio/parameters/enable_unsafe_noiommu_mode"
_NOIOMMU_NAME = "vfio-noiommu"
_BRIDGE_DRIVER = "pcieport"
_BRIDGE_CLASSES = ("0x0600", "0x0604")
"""PCI classes of host and PCI bridges (`include/linux/pci_ids.h`), which do no DMA of their own.

Other bridges do: class 0x0680 is that of non-transparent bridges and NVSwitches."""


def can_have_vfio(sysfs: Sysfs, pci: PciAddress, *, unsafe_noiommu: bool = False) -> bool:
    """Report whether a function can be bound to vfio-pci now; the answer is the same for all VFs of a PF."""
    return not objection_to_vfio(sysfs, pci, unsafe_noiommu=unsafe_noiommu)


def objection_to_vfio(sysfs: Sysfs, pci: PciAddress, *, unsafe_noiommu: bool = False) -> str:
    """Explain to an operator why a function cannot be passed to a program; empty when it can.

    The function must be alone in its IOMMU group, except for bridges: the group's device node gives access to
    every function of the group, now or once it is bound to vfio-pci, and DMA between them passes no IOMMU.
    unsafe_noiommu: whether the operator allows a function without an IOMMU.
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
    """Return the other functions of its IOMMU group that prevent its use, all but bridges that do no DMA."""
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
    """Return the device node of a function's group; KernelError unless the function is bound to vfio-pci.

    `/dev/vfio/<group>`, or `/dev/vfio/noiommu-<group>` without an IOMMU (vfio_create_group).
    """
    sysfs = sysfs or Sysfs()
    group, driver = _group(sysfs, pci), PciFunction(sysfs, pci).driver()
    if group is None or driver != VFIO_PCI:
        msg = f"{pci}: no VFIO group: bound to {driver or 'no driver'}, in IOMMU group {group or 'none'}"
        raise KernelError(msg)
    return f"/dev/vfio/{'noiommu-' if _is_noiommu(sysfs, pci) else ''}{group}"


def _group(sysfs: Sysfs, pci: PciAddress) -> str | None:
    return sysfs.target_if_any(f"bus/pci/devices/{pci}/iommu_group")


def _is_noiommu(sysfs: Sysfs, pci: PciAddress) -> bool:
    """Report whether its group is one that vfio creates when it binds a function without an IOMMU."""
    return sysfs.value_if_any(f"bus/pci/devices/{pci}/iommu_group/name") == _NOIOMMU_NAME


def _is_harmless(sysfs: Sysfs, pci: str) -> bool:
    """Report whether it is a bridge without a driver that would keep vfio from taking the group."""
    driver = sysfs.target_if_any(f"bus/pci/devices/{pci}/driver")
    pci_class = sysfs.value_if_any(f"bus/pci/devices/{pci}/class") or ""
    return driver in (None, _BRIDGE_DRIVER) and pci_class.startswith(_BRIDGE_CLASSES)
