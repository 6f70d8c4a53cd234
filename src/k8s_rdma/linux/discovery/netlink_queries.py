"""`linux.netlink.queries.Queries` answered by the running kernel, with CAP_NET_ADMIN and without it."""

from __future__ import annotations

import errno
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from k8s_rdma.linux.discovery.netdevs import is_representor
from k8s_rdma.linux.netlink.dcb import Dcb, DcbState
from k8s_rdma.linux.netlink.devlink import Devlink, devlink_flags, devlink_rates
from k8s_rdma.linux.netlink.ethtool import Ethtool
from k8s_rdma.linux.netlink.rdma import RdmaNetlink
from k8s_rdma.linux.netlink.routes import addressed_links, default_route_links
from k8s_rdma.linux.netlink.rtnl import Link, Rtnl
from k8s_rdma.linux.netlink.socket import NetlinkError
from k8s_rdma.linux.netlink.sriov import VfStats, vf_infos, vf_stats
from k8s_rdma.linux.sysfs import Sysfs, pfs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from k8s_rdma.core.devices.rdma_devices import NetnsMode
    from k8s_rdma.core.kernel import PauseFrames
    from k8s_rdma.linux.netlink.queries import DevlinkRate, RdmaNetlinkDevice, VfInfo


class NetlinkQueries:
    """Queries the network namespace where it was made over sockets that it keeps open. Used by one thread."""

    def __init__(self) -> None:
        """Open the sockets; the one of RDMA once the kernel has RDMA."""
        with ExitStack() as undo:
            self.rtnl = undo.enter_context(Rtnl())
            self._devlink = undo.enter_context(Devlink())
            self._ethtool = undo.enter_context(Ethtool())
            self._rdma: RdmaNetlink | None = None
            self._open = undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the sockets; a second call has no effect."""
        self._open.close()

    def links(self) -> Sequence[Link]:
        """Return all netdevs, without VF information."""
        return self.rtnl.links()

    def vf_infos(self, index: int) -> Sequence[VfInfo]:
        """Return the VFs of a PF's netdev; see `linux.netlink.sriov.vf_infos`."""
        return vf_infos(self.rtnl, index)

    def vf_stats(self, index: int) -> Sequence[VfStats]:
        """Return the counters of the VFs of a PF's netdev; see `linux.netlink.sriov.vf_stats`."""
        return vf_stats(self.rtnl, index)

    def default_route_links(self) -> frozenset[int]:
        """Return the links of the default routes; see `linux.netlink.routes`."""
        return default_route_links(self.rtnl, self.rtnl.links())

    def addressed_links(self) -> frozenset[int]:
        """Return the links with an address; see `linux.netlink.routes`."""
        return addressed_links(self.rtnl)

    def rdma(self) -> RdmaNetlink | None:
        """Return the RDMA netlink of this namespace, if the kernel has RDMA."""
        if self._rdma is None:
            try:
                self._rdma = self._open.enter_context(RdmaNetlink())
            except NetlinkError as error:
                if error.errno != errno.EPROTONOSUPPORT:
                    raise
        return self._rdma

    def rdma_devices(self) -> Sequence[RdmaNetlinkDevice]:
        """Return all RDMA devices that this namespace sees; empty while the kernel has no RDMA."""
        rdma = self.rdma()
        return rdma.devices() if rdma else ()

    def netns_mode(self) -> NetnsMode | None:
        """Return the mode of RDMA devices in namespaces, shared or exclusive, if the kernel has RDMA."""
        rdma = self.rdma()
        return rdma.netns_mode() if rdma else None

    def eswitch_modes(self) -> Mapping[str, str]:
        """Return `legacy` or `switchdev` by PCI address; NetlinkError EPERM without CAP_NET_ADMIN."""
        return self._devlink.eswitch_modes("pci")

    def devlink_rates(self) -> Mapping[str, Mapping[int, DevlinkRate]]:
        """Return the devlink rates of VFs; see `linux.netlink.devlink`."""
        return devlink_rates(self._devlink, "pci")

    def firmware(self, name: str) -> str:
        """Return the firmware version that a netdev's driver reports, if it reports one."""
        found = self._ethtool.driver_info(name)
        return found.firmware if found else ""

    def dcb(self, name: str) -> DcbState | None:
        """Return the DCB settings that a netdev's driver reports, if it has any."""
        with Dcb() as dcb:
            return dcb.state(name)

    def pauses(self, name: str) -> bool | None:
        """Report whether a netdev uses global pause frames, if its driver reports it."""
        return self._ethtool.pauses(name)

    def pause_frames(self, name: str) -> Mapping[int, PauseFrames]:
        """Return pause frames by priority, as a netdev's driver counts them; empty when it does not."""
        return self._ethtool.pause_frames(name)

    def devlink_flags(self, name: str) -> Mapping[str, bool]:
        """Return a parameter of devlink devices by PCI address; see `linux.netlink.devlink`."""
        return devlink_flags(self._devlink, "pci", name)


class UnprivilegedQueries(NetlinkQueries):
    """`NetlinkQueries` without privileges: representors reveal switchdev mode."""

    def __init__(self, sysfs: Sysfs) -> None:
        super().__init__()
        self._sysfs = sysfs

    def eswitch_modes(self) -> Mapping[str, str]:
        """Return `switchdev` for PFs that have representors.

        In that mode every VF has one; without VFs the mode makes no difference. A driver that does not link
        its representors to their device seems to be in legacy mode.
        """
        try:
            return super().eswitch_modes()
        except NetlinkError as error:
            if error.errno != errno.EPERM:
                raise
        return traces_of_switchdev(self._sysfs)


def traces_of_switchdev(sysfs: Sysfs) -> Mapping[str, str]:
    """Return `switchdev` by PCI address for PFs with representors. OSError when sysfs cannot be read."""
    return {
        pf.pci: "switchdev"
        for pf in pfs(sysfs)
        if any(is_representor(sysfs, netdev) for netdev in pf.netdevs() or ())
    }
