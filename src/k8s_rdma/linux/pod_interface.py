"""An interface inside a pod's namespace: addresses, routes, up; and bare again."""

from __future__ import annotations

import errno
import ipaddress
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from k8s_rdma.core.step import ConfigureInterface
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.announcing import send_announcements
from k8s_rdma.linux.netlink.neighbours import set_ipv6_retransmission
from k8s_rdma.linux.netlink.rtnl import Rtnl, answering_for_itself
from k8s_rdma.linux.netlink.socket import NetlinkError
from k8s_rdma.linux.netns import entered

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from k8s_rdma.core.step import CapInterface, ClearInterface
    from k8s_rdma.linux.netlink.rtnl import Address, Link
    from k8s_rdma.linux.netns import Namespaces

_SETTINGS = Path("/proc/sys/net/ipv6/conf")
_WITHOUT_IPV6 = (errno.EACCES, errno.EAFNOSUPPORT, errno.EOPNOTSUPP)
_IPV6_MIN_MTU = 1280
"""RFC 8200, section 5."""
ANSWER_MS = 100
"""Stations of one network answer within a millisecond, busy ones within some."""
USUAL_ANSWER_MS = 1000
"""RETRANS_TIMER of RFC 4861, section 10."""


def change_interface(step: ConfigureInterface | ClearInterface, namespaces: Namespaces) -> None:
    """Make it hold in the step's namespace; one that is gone has nothing to clear."""
    if isinstance(step, ConfigureInterface):
        with namespaces.existing(step.netns) as namespace:
            configure(step, namespace)
        return
    with namespaces.opened(step.netns) as found:
        if found is not None:
            clear(step, found)


def configure(step: ConfigureInterface, namespace: int) -> None:
    """Bring it up with these addresses and routes; KernelError when it is not there.

    Others are asked whether they have its IPv6 addresses (duplicate address detection, RFC 4862), but are
    given 0.1 s to answer and not 1 s; `announce` ends that. Meanwhile addresses can be used already
    (optimistic, RFC 4429); where this kernel does not let us, it also begins up to 1 s later.
    """
    with Rtnl(namespace) as rtnl:
        link = link_of(step, rtnl)
        where = f"interface {step.ifname} in {step.netns.path}"
        addresses = [ipaddress.ip_interface(address) for address in step.addresses]
        if any(address.version == 6 for address in addresses):
            _let_be_optimistic(step.ifname, namespace)
            _wait_for_answers(ANSWER_MS, link, rtnl)
        rtnl.change(link.index, f"{where}: up", answering_for_itself(), up=True)
        for address in addresses:
            _add(address, link, rtnl, f"{where}: address {address}")
        for route in step.routes:
            rtnl.add_route(link.index, route, f"{where}: route to {route.dst}")


def link_of(step: ConfigureInterface | CapInterface, rtnl: Rtnl) -> Link:
    """The step's interface, in whose namespace `rtnl` is; KernelError when it is not there."""
    link = rtnl.link(step.ifname)
    if link is None:
        msg = f"interface {step.ifname}: not in namespace {step.netns.path}"
        raise KernelError(msg)
    return link


def _add(address: Address, link: Link, rtnl: Rtnl, what: str) -> None:
    try:
        rtnl.add_address(link.index, address, what)
    except NetlinkError as error:
        if address.version == 6 and error.errno in _WITHOUT_IPV6:
            msg = f"{what}: IPv6 is disabled there (net.ipv6.conf.{link.name}.disable_ipv6)"
            raise KernelError(msg, details=str(error)) from error
        if address.version == 6 and link.mtu < _IPV6_MIN_MTU:
            msg = f"{what}: IPv6 needs an MTU of {_IPV6_MIN_MTU} bytes, it has {link.mtu}"
            raise KernelError(msg, details=str(error)) from error
        raise


def _let_be_optimistic(ifname: str, namespace: int) -> None:
    """Have the kernel take IFA_F_OPTIMISTIC; some are built without it, and /proc/sys may be read-only.

    Which namespace's settings are seen there depends on who looks (`net/sysctl_net.c`).
    """
    with entered(namespace), suppress(OSError):
        for setting in ("optimistic_dad", "use_optimistic"):
            (_SETTINGS / ifname / setting).write_text("1")


def _wait_for_answers(milliseconds: int, link: Link, rtnl: Rtnl) -> None:
    """How long neighbours have; without IPv6 there is no such setting."""
    with suppress(NetlinkError):
        set_ipv6_retransmission(rtnl.socket, link.index, milliseconds, link.name)


def announce(addresses: Mapping[str, Collection[str]], namespace: int) -> None:
    """Tell an interface's network which addresses (CIDR form) are on it; what is not there is passed over."""
    with Rtnl(namespace) as rtnl:
        links = [link for link in rtnl.links() if link.name in addresses]
        for link in links:
            if any(":" in address for address in addresses[link.name]):
                _wait_for_answers(USUAL_ANSWER_MS, link, rtnl)
        send_announcements({link: addresses[link.name] for link in links}, rtnl, namespace)


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
