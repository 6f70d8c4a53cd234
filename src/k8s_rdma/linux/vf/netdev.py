"""Link settings of a VF's netdev: MAC and MTU for a pod, and the original ones after its return.

The driver of a VF requests another MAC from the PF, which may refuse, or be busy.
"""

from __future__ import annotations

import errno
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from k8s_rdma.core.kernel import NameTakenError, OtherMacError
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.rtnl import INFINIBAND, Link, Rtnl, named, with_mac, with_mtu
from k8s_rdma.linux.netlink.socket import NetlinkError
from k8s_rdma.linux.pod_interface import make_bare

if TYPE_CHECKING:
    from collections.abc import Callable

    from k8s_rdma.core.step import GiveVf, VfHome, VfRef

REFUSED = frozenset({errno.EPERM, errno.EACCES, errno.EADDRNOTAVAIL})
"""Errors of drivers for a MAC that the PF refuses."""

BUSY_S = 5.0
"""Time for a VF to reset because its PF gave it another MAC or VLAN: iavf takes a second or two."""

_BUSY = frozenset({errno.EAGAIN, errno.EBUSY})
_POLL_S = 0.1


def set_mac(link: Link, mac: str, rtnl: Rtnl, operation: str) -> None:
    """Set the MAC of a netdev that is down, and leave it down. NetlinkError when the PF refuses.

    A refused MAC is set again while the netdev is up, because after a reset of the PF igbvf's requests are
    accepted only once it was up; and again afterwards, because only when it goes down igbvf reads the MAC
    that the PF has for it meanwhile, the one that it may then use (igbvf_down, e1000_reset_hw_vf,
    drivers/net/ethernet/intel/igbvf).
    """
    if _has_mac(link, mac, rtnl, operation):
        return
    try:
        rtnl.change(link.index, f"{operation}: up", up=True)
        if _has_mac(link, mac, rtnl, operation):
            return
    finally:
        rtnl.change(link.index, f"{operation}: down", up=False)
    now = rtnl.link_at(link.index)
    if now is None or now.mac != mac:
        rtnl.change(link.index, operation, with_mac(mac))


def _has_mac(link: Link, mac: str, rtnl: Rtnl, operation: str) -> bool:
    """Set the MAC, and report whether the PF accepted it."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            rtnl.change(link.index, operation, with_mac(mac))
        except NetlinkError as error:
            if error.errno in REFUSED:
                return False
            if error.errno not in _BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_POLL_S)
        else:
            return True


def require_mtu_of_pf(step: GiveVf, pf: Link) -> None:
    """Raise KernelError for an MTU above the PF's, which sends no larger frames even if the VF accepts it."""
    if step.mtu is not None and step.mtu > pf.mtu:
        msg = f"{describe(step.vf)}: MTU {step.mtu} is above that of its PF {pf.name}, {pf.mtu}"
        raise KernelError(msg)


def with_mac_of_home(step: GiveVf, link: Link) -> GiveVf:
    """Return the step, with the original MAC requested when the netdev to be moved has another."""
    differs = step.mac is None and step.home.mac not in ("", link.mac) and link.type != INFINIBAND
    return replace(step, mac=step.home.mac) if differs else step


def apply_link_settings(link: Link, step: GiveVf, rtnl: Rtnl) -> None:
    """Set MAC and MTU if they differ; the netdev is taken down for another MAC.

    The MTU comes first: igbvf resets the VF for it and only then reads another MAC that the PF has for it.
    """
    if step.mtu is not None and link.mtu != step.mtu:
        rtnl.change(link.index, f"{describe(step.vf)}: MTU {step.mtu}", with_mtu(step.mtu))
    if step.mac is not None and link.mac != step.mac:
        operation = f"{describe(step.vf)}: MAC {step.mac}"
        rtnl.change(link.index, f"{operation}: down", up=False)
        try:
            set_mac(link, step.mac, rtnl, operation)
        except NetlinkError as error:
            why = "the PF has given the VF another MAC, and does not trust it to set its own"
            raise KernelError(str(error), details=why if error.errno in REFUSED else "") from error


def require_link_settings(link: Link, step: GiveVf) -> None:
    """Raise KernelError if the netdev in the pod lacks a setting."""
    for name, desired, found in (("MAC", step.mac, link.mac), ("MTU", step.mtu, link.mtu)):
        if desired is not None and found != desired:
            place = f"{step.ifname} in {step.netns.path}"
            msg = f"{describe(step.vf)}: {name} {desired} was set, {place} has {found}"
            raise KernelError(msg)


def restore_netdev(
    index: int, vf: VfRef, home: VfHome, rtnl: Rtnl, let: Callable[[str], None] | None = None
) -> None:
    """Restore name, MAC and MTU of a netdev from `home`; leave it down, without addresses and altnames.

    let: sets the PF's administrative MAC; None if we must not replace that.
    KernelError when the settings are not in effect afterwards; NameTakenError when the name is taken,
    OtherMacError when the PF refuses the MAC.
    """
    link = _link(index, vf, rtnl)
    operation = f"{describe(vf)}: {home.name} as it was"
    make_bare(link, rtnl, operation)
    rtnl.delete_altnames(link, operation)
    if link.name != home.name:
        if rtnl.link(home.name) is not None:
            msg = f"{describe(vf)}: returned as {link.name}; its name {home.name} is taken there"
            raise NameTakenError(msg)
        rtnl.change(index, f"{operation}: name", named(home.name))
    if link.mtu != home.mtu:
        rtnl.change(index, f"{operation}: MTU {home.mtu}", with_mtu(home.mtu))
    if link.mac != home.mac and link.type != INFINIBAND:
        _restore_mac(link, vf, home, rtnl, let)
    found = _link(index, vf, rtnl)
    mac = found.mac if found.type == INFINIBAND else home.mac
    if (found.name, found.mac, found.mtu) != (home.name, mac, home.mtu):
        msg = f"{operation}: expected {home}, found {found.name}, {found.mac}, MTU {found.mtu}"
        raise KernelError(msg)


def _restore_mac(link: Link, vf: VfRef, home: VfHome, rtnl: Rtnl, let: Callable[[str], None] | None) -> None:
    operation = f"{describe(vf)}: MAC {home.mac}, which is {link.mac} now"
    try:
        if let is not None:
            let(home.mac)  # not only once it was refused, for which iavf takes 2.5 s
        set_mac(link, home.mac, rtnl, operation)
    except NetlinkError as error:
        if error.errno not in REFUSED:
            raise KernelError(str(error)) from error
        why = (
            f"the PF has set the VF's MAC, and accepts no other: "
            f"`ip link set dev <PF> vf {vf.index} mac {home.mac}` makes both agree"
        )
        raise OtherMacError(str(error), mac=_link(link.index, vf, rtnl).mac, details=why) from error
    finally:
        make_bare(_link(link.index, vf, rtnl), rtnl, operation)


def _link(index: int, vf: VfRef, rtnl: Rtnl) -> Link:
    link = rtnl.link_at(index)
    if link is None:
        msg = f"{describe(vf)}: its netdev (#{index}) has just disappeared again"
        raise KernelError(msg)
    return link


def describe(vf: VfRef) -> str:
    """Name a VF at the beginning of a message."""
    return f"VF {vf.index} of PF {vf.pf}"
