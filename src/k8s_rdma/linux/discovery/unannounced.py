"""Files in sysfs that tell what the kernel sends no message of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.options import LinkType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.core.kernel import Hardware, PfState
    from k8s_rdma.linux.sysfs import Sysfs


def files_without_events(sysfs: Sysfs, hardware: Hardware) -> frozenset[str]:
    """By their path below sysfs: the port state of InfiniBand PFs, what MLNX_OFED has of each VF."""
    return frozenset(path for pf in hardware.pfs for path in _files(sysfs, pf))


def _files(sysfs: Sysfs, pf: PfState) -> Iterator[str]:
    if pf.rdma_device and pf.link_type is LinkType.INFINIBAND:
        ports = f"class/infiniband/{pf.rdma_device}/ports"
        for port in sysfs.names_if_any(ports) or ():
            yield f"{ports}/{port}/state"
    settings = f"bus/pci/devices/{pf.pci}/sriov"
    for vf in sysfs.names_if_any(settings) or ():
        if vf.isdecimal():
            yield f"{settings}/{vf}/config"
