"""MAC and MTU that a VF's netdev is to have in a pod."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.rtnl import INFINIBAND, with_mtu
from k8s_rdma.linux.netlink.socket import NetlinkError
from k8s_rdma.linux.vf.macs import REFUSED, take_mac
from k8s_rdma.linux.vf.places import words

if TYPE_CHECKING:
    from k8s_rdma.core.step import GiveVf
    from k8s_rdma.linux.netlink.rtnl import Link, Rtnl


def require_mtu_of_pf(step: GiveVf, pf: Link) -> None:
    """KernelError for an MTU above the PF's: frames of that size do not leave it, whatever the VF takes."""
    if step.mtu is not None and step.mtu > pf.mtu:
        msg = f"{words(step.vf)}: MTU {step.mtu} is above that of its PF {pf.name}, {pf.mtu}"
        raise KernelError(msg)


def with_mac_of_home(step: GiveVf, link: Link) -> GiveVf:
    """The step, with the MAC of home asked for where a netdev that is still there has another."""
    differs = step.mac is None and step.home.mac not in ("", link.mac) and link.type != INFINIBAND
    return replace(step, mac=step.home.mac) if differs else step


def dress(link: Link, step: GiveVf, rtnl: Rtnl) -> None:
    """Set what of them differs; to take another MAC the netdev goes down.

    The MTU first: igbvf resets the VF for it, and only then knows of another MAC that the PF has for it.
    """
    if step.mtu is not None and link.mtu != step.mtu:
        rtnl.change(link.index, f"{words(step.vf)}: MTU {step.mtu}", with_mtu(step.mtu))
    if step.mac is not None and link.mac != step.mac:
        what = f"{words(step.vf)}: MAC {step.mac}"
        rtnl.change(link.index, f"{what}: down", up=False)
        try:
            take_mac(link, step.mac, rtnl, what)
        except NetlinkError as error:
            why = "the PF has given the VF another MAC, and does not trust it to choose its own"
            raise KernelError(str(error), details=why if error.errno in REFUSED else "") from error


def require_dressed(link: Link, step: GiveVf) -> None:
    """KernelError when the netdev in the pod has not what was set."""
    for name, wanted, found in (("MAC", step.mac, link.mac), ("MTU", step.mtu, link.mtu)):
        if wanted is not None and found != wanted:
            msg = f"{words(step.vf)}: {name} {wanted} was set, {step.ifname} in {step.netns.path} has {found}"
            raise KernelError(msg)
