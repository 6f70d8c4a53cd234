"""A VF's netdev in the host's namespace, made what it was before it was given away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.kernel import NameTakenError, OtherMacError
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.rtnl import INFINIBAND, named, with_mtu
from k8s_rdma.linux.netlink.socket import NetlinkError
from k8s_rdma.linux.pod_interface import make_bare
from k8s_rdma.linux.vf.macs import REFUSED, take_mac
from k8s_rdma.linux.vf.places import words

if TYPE_CHECKING:
    from collections.abc import Callable

    from k8s_rdma.core.step import VfHome, VfRef
    from k8s_rdma.linux.netlink.rtnl import Link, Rtnl


def make_as_at_home(
    index: int, vf: VfRef, home: VfHome, rtnl: Rtnl, let: Callable[[str], None] | None = None
) -> None:
    """Give the netdev of this index name, MAC and MTU of `home`, down, without addresses and altnames.

    let: has the PF let the VF have a MAC; None where the MAC that the PF gave it is not ours to replace.
    KernelError when that does not hold afterwards; NameTakenError when the name is taken, OtherMacError when
    the PF lets the VF not have the MAC.
    """
    link = _link(index, vf, rtnl)
    what = f"{words(vf)}: {home.name} as it was"
    make_bare(link, rtnl, what)
    rtnl.delete_altnames(link, what)
    if link.name != home.name:
        if rtnl.link(home.name) is not None:
            msg = f"{words(vf)}: came home as {link.name}; its name {home.name} is taken there"
            raise NameTakenError(msg)
        rtnl.change(index, f"{what}: name", named(home.name))
    if link.mtu != home.mtu:
        rtnl.change(index, f"{what}: MTU {home.mtu}", with_mtu(home.mtu))
    if link.mac != home.mac and link.type != INFINIBAND:
        _restore_mac(link, vf, home, rtnl, let)
    found = _link(index, vf, rtnl)
    mac = found.mac if found.type == INFINIBAND else home.mac
    if (found.name, found.mac, found.mtu) != (home.name, mac, home.mtu):
        msg = f"{what}: wanted {home}, found {found.name}, {found.mac}, MTU {found.mtu}"
        raise KernelError(msg)


def _restore_mac(link: Link, vf: VfRef, home: VfHome, rtnl: Rtnl, let: Callable[[str], None] | None) -> None:
    what = f"{words(vf)}: MAC {home.mac}, which is {link.mac} now"
    try:
        if let is not None:
            let(home.mac)  # not only once it was refused, for which iavf takes 2.5 s
        take_mac(link, home.mac, rtnl, what)
    except NetlinkError as error:
        if error.errno not in REFUSED:
            raise KernelError(str(error)) from error
        why = (
            f"the PF has set the VF's MAC, and lets it have no other: "
            f"`ip link set dev <PF> vf {vf.index} mac {home.mac}` makes both agree"
        )
        raise OtherMacError(str(error), mac=_link(link.index, vf, rtnl).mac, details=why) from error
    finally:
        make_bare(_link(link.index, vf, rtnl), rtnl, what)


def _link(index: int, vf: VfRef, rtnl: Rtnl) -> Link:
    link = rtnl.link_at(index)
    if link is None:
        msg = f"{words(vf)}: its netdev (#{index}) has just gone away again"
        raise KernelError(msg)
    return link
