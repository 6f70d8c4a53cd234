"""An interface inside a pod's namespace: addresses, routes, up; and bare again."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.rtnl import Rtnl, answering_for_itself

if TYPE_CHECKING:
    from k8s_rdma.core.step import ClearInterface, ConfigureInterface
    from k8s_rdma.linux.netlink.rtnl import Link


def configure(step: ConfigureInterface, namespace: int) -> None:
    """Bring it up with these addresses and routes; KernelError when it is not there."""
    with Rtnl(namespace) as rtnl:
        link = rtnl.link(step.ifname)
        if link is None:
            msg = f"interface {step.ifname}: not in namespace {step.netns.path}"
            raise KernelError(msg)
        where = f"interface {step.ifname} in {step.netns.path}"
        rtnl.change(link.index, f"{where}: up", answering_for_itself(), up=True)
        for address in step.addresses:
            rtnl.add_address(link.index, ipaddress.ip_interface(address), f"{where}: address {address}")
        for route in step.routes:
            rtnl.add_route(link.index, route, f"{where}: route to {route.dst}")


def clear(step: ClearInterface, namespace: int) -> None:
    """Take it down and flush all its addresses; holds when it is not there."""
    with Rtnl(namespace) as rtnl:
        link = rtnl.link(step.ifname)
        if link is None:
            return
        make_bare(link, rtnl, f"interface {step.ifname} in {step.netns.path}")


def make_bare(link: Link, rtnl: Rtnl, what: str) -> None:
    """Take a link down, and all addresses from it; routes go with them. `what` begins an error.

    Nor is it promiscuous for the next pod because the one before made it so.
    """
    rtnl.calm(link.index, f"{what}: down")
    for address in rtnl.addresses(link.index):
        rtnl.delete_address(link.index, address, f"{what}: address {address}")
