"""Caps on interfaces in a pod's namespace, kept by the kernel and no card."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.rtnl import Rtnl
from k8s_rdma.linux.netlink.token_bucket import limit

if TYPE_CHECKING:
    from k8s_rdma.core.step import CapInterface
    from k8s_rdma.linux.netns import Namespaces


def cap_interface(step: CapInterface, namespaces: Namespaces) -> None:
    """Make it hold in the step's namespace; without a limit, it does where interface or namespace is gone."""
    with namespaces.opened(step.netns) as namespace:
        if namespace is not None:
            _cap(step, namespace)
        elif step.max_tx_rate_mbps:
            msg = f"namespace {step.netns.path} (inode {step.netns.inode}): gone"
            raise KernelError(msg)


def _cap(step: CapInterface, namespace: int) -> None:
    with Rtnl(namespace) as rtnl:
        link = rtnl.link(step.ifname)
        if link is not None:
            what = f"interface {step.ifname} in {step.netns.path}: {step.max_tx_rate_mbps} Mb/s"
            limit(rtnl.socket, link.index, step.max_tx_rate_mbps, what)
        elif step.max_tx_rate_mbps:
            msg = f"interface {step.ifname}: not in namespace {step.netns.path}"
            raise KernelError(msg)
