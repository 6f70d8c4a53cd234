"""The IOMMU of a node, which isolates its VFs from each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.doctor.subject import Subject

if TYPE_CHECKING:
    from k8s_rdma.doctor.finding import Finding

IOMMU = Subject(
    "iommu",
    "IOMMU",
    'Only interfaces with `"driver": "vfio-pci"` need it.',
)
IOMMU_OK = IOMMU.ok()
IOMMU_OFF = IOMMU.note("off")
UNSAFE = IOMMU.warning("unsafe")
SHARED_GROUP = IOMMU.warning("shared-group")


@dataclass(frozen=True, slots=True, kw_only=True)
class IommuFacts:
    """The IOMMU.

    groups: the number of groups.
    noiommu: vfio's `enable_unsafe_noiommu_mode`.
    command_line: the kernel's options for the IOMMU.
    together: by PF, other devices in the group of its first VF.
    """

    groups: int
    noiommu: bool
    command_line: str
    together: Mapping[str, tuple[str, ...]]


@IOMMU.check(IommuFacts)
def check_iommu(facts: IommuFacts) -> Iterator[Finding]:
    """Check that the IOMMU isolates VFs from each other."""
    if facts.noiommu:
        yield UNSAFE(
            "vfio without an IOMMU: a pod with a VF (hardware.unsafeNoiommu) can access all memory",
            source="/sys/module/vfio/parameters/enable_unsafe_noiommu_mode",
            expected="N",
            fix="echo N > /sys/module/vfio/parameters/enable_unsafe_noiommu_mode; enable the IOMMU",
        )
    elif not facts.groups:
        yield IOMMU_OFF(
            "absent or off: interfaces with driver vfio-pci are refused",
            source=f"/sys/kernel/iommu_groups is empty; /proc/cmdline: {facts.command_line or 'nothing'}",
            expected="on, where pods ask for vfio-pci",
            fix="enable VT-d or AMD-Vi in the BIOS; boot with intel_iommu=on iommu=pt",
        )
    for pf, functions in facts.together.items():
        if functions:
            yield SHARED_GROUP(
                f"its first VF shares an IOMMU group with {', '.join(functions)}: vfio-pci is refused",
                about=pf,
                source="/sys/bus/pci/devices/*/iommu_group",
                expected="a group for each VF",
                fix="enable ACS in the BIOS, or use another slot",
            )
    if facts.groups and not facts.noiommu and not any(facts.together.values()):
        yield IOMMU_OK(f"{facts.groups} groups", source="/sys/kernel/iommu_groups")
