"""Caps on interfaces in a pod's namespace, enforced by the kernel, and the check for support."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.software_caps import without_software_caps
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.rtnl import Link, Rtnl
from k8s_rdma.linux.netlink.traffic_control import is_supported, limit
from k8s_rdma.linux.pod_interface import link_of

if TYPE_CHECKING:
    from k8s_rdma.core.kernel import Hardware
    from k8s_rdma.core.step import CapInterface
    from k8s_rdma.linux.netlink.socket import NetlinkSocket
    from k8s_rdma.linux.netns import Namespaces


class CapAbility:
    """Support for caps in this kernel, checked until found: its module may be loaded later."""

    def __init__(self, socket: NetlinkSocket) -> None:
        """Use this socket."""
        self._socket = socket
        self._can = False

    def shown_in(self, hardware: Hardware) -> Hardware:
        """Return the hardware with software caps removed when the kernel does not support them."""
        if not self._can:
            self._can = _can(self._socket)
        return hardware if self._can else without_software_caps(hardware)


def _can(socket: NetlinkSocket) -> bool:
    """Report support for caps; True when unknown, because an ADD with a cap then fails with the reason."""
    try:
        return is_supported(socket)
    except KernelError:
        return True


def cap_interface(step: CapInterface, namespaces: Namespaces) -> None:
    """Apply the step in its namespace; without a limit, a missing interface or namespace needs no change."""
    if step.max_tx_rate_mbps:
        with namespaces.existing(step.netns) as namespace, Rtnl(namespace) as rtnl:
            _limit(link_of(step, rtnl), step, rtnl)
        return
    with namespaces.opened(step.netns) as found:
        if found is not None:
            _free(step, found)


def _free(step: CapInterface, namespace: int) -> None:
    with Rtnl(namespace) as rtnl:
        link = rtnl.link(step.ifname)
        if link is not None:
            _limit(link, step, rtnl)


def _limit(link: Link, step: CapInterface, rtnl: Rtnl) -> None:
    operation = f"interface {step.ifname} in {step.netns.path}: {step.max_tx_rate_mbps} Mb/s"
    limit(rtnl.socket, link.index, step.max_tx_rate_mbps, operation)
