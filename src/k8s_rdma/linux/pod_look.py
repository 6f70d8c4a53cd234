"""What is in a pod's namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.kernel import PodInterface
from k8s_rdma.linux.netlink.rtnl import Rtnl

if TYPE_CHECKING:
    from k8s_rdma.core.step import NetnsRef
    from k8s_rdma.linux.netns import Namespaces


def interfaces_in(netns: NetnsRef, namespaces: Namespaces) -> dict[str, PodInterface]:
    """Its interfaces by name. KernelError when it is gone, or cannot be looked at."""
    with namespaces.existing(netns) as namespace, Rtnl(namespace) as there:
        return {
            link.name: PodInterface(
                mac=link.mac,
                mtu=link.mtu,
                up=link.up,
                addresses=frozenset(map(str, there.addresses(link.index))),
            )
            for link in there.links()
        }
