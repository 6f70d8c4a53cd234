"""`linux.discovery.queries.Queries` for a process without CAP_NET_ADMIN."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from k8s_rdma.linux.discovery.netlink_queries import NetlinkQueries
from k8s_rdma.linux.discovery.pci import pfs
from k8s_rdma.linux.discovery.pfs import is_representor
from k8s_rdma.linux.netlink.socket import NetlinkError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.linux.sysfs import Sysfs


class UnprivilegedQueries(NetlinkQueries):
    """As `NetlinkQueries`, but that switchdev mode is told by its traces where devlink does not tell it."""

    def __init__(self, sysfs: Sysfs) -> None:
        super().__init__()
        self._sysfs = sysfs

    def eswitch_modes(self) -> Mapping[str, str]:
        """`switchdev` of PFs that have representors.

        In that mode every VF has one; without VFs, the mode makes no difference. Where a driver does not say
        of which device its representors are, it seems to be in legacy mode.
        """
        try:
            return super().eswitch_modes()
        except NetlinkError as error:
            if error.errno != errno.EPERM:
                raise
        return traces_of_switchdev(self._sysfs)


def traces_of_switchdev(sysfs: Sysfs) -> Mapping[str, str]:
    """`switchdev` by PCI address of PFs that have representors. OSError when sysfs cannot be read."""
    return {
        pf.pci: "switchdev"
        for pf in pfs(sysfs)
        if any(is_representor(sysfs, netdev) for netdev in pf.netdevs() or ())
    }
