"""The IOMMU, without which no interface can be given to a program by vfio-pci."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.doctor.finding import Subject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.doctor.finding import Finding

IOMMU = Subject("iommu", "IOMMU")
OK = IOMMU.ok()
IOMMU_OFF = IOMMU.note("off")
UNSAFE = IOMMU.warning("unsafe")
SHARED_GROUP = IOMMU.warning("shared-group")


@dataclass(frozen=True, slots=True, kw_only=True)
class IommuFacts:
    """groups: how many there are. noiommu: vfio's `enable_unsafe_noiommu_mode`.

    command_line: what the kernel's says of it. together: by PF, what is in the group of its first VF as well.
    """

    groups: int
    noiommu: bool
    command_line: str
    together: Mapping[str, tuple[str, ...]]


def check_iommu(facts: IommuFacts) -> Iterator[Finding]:
    """Report whether VFs can be handed out one by one."""
    if facts.noiommu:
        yield UNSAFE(
            "vfio works without an IOMMU: a program with a VF can read and write all of the node's memory; "
            "pods get one only with hardware.unsafeNoiommu",
            source="/sys/module/vfio/parameters/enable_unsafe_noiommu_mode",
            expected="N",
            fix="echo N > /sys/module/vfio/parameters/enable_unsafe_noiommu_mode, and the IOMMU on",
        )
    elif not facts.groups:
        yield IOMMU_OFF(
            "there is none, or it is off: interfaces with driver vfio-pci are refused; others do not need it",
            source=f"/sys/kernel/iommu_groups is empty; /proc/cmdline: {facts.command_line or 'nothing'}",
            expected="on, where pods ask for vfio-pci",
            fix="VT-d or AMD-Vi on in the BIOS; intel_iommu=on iommu=pt on the kernel's command line; reboot",
        )
    for pf, functions in facts.together.items():
        if functions:
            yield SHARED_GROUP(
                f"its first VF is in one IOMMU group with {', '.join(functions)}: none of them is given to "
                "a program, which could open the others",
                about=pf,
                source="/sys/bus/pci/devices/*/iommu_group",
                expected="a group for each VF",
                fix="ACS on in the BIOS, or the card in another slot",
            )
    if facts.groups and not facts.noiommu and not any(facts.together.values()):
        yield OK(f"{facts.groups} groups", source="/sys/kernel/iommu_groups")
