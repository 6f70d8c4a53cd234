"""The shape of a machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A node with two SR-IOV PFs, eth0 and eth1, of which each may have 7 VFs.

    vfs: on each PF when it has booted, made by the lab; 0: no VFs, as a node before `k8s-rdma init`.
    numa: two nodes of memory, a processor and a PF on each.
    iommu: an IOMMU that is on, which vfio-pci needs; the machine is slower with it.
    disk_mb: of a disk mounted on /disk, which survives `crash` and `reboot`; unset: no disk.
    """

    vfs: int = 0
    numa: bool = False
    iommu: bool = False
    disk_mb: int | None = None
    memory_mb: int = 2048
