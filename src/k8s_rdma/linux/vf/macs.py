"""A VF's netdev takes another MAC: its driver asks the PF, which may refuse, or be busy."""

from __future__ import annotations

import errno
import time
from typing import TYPE_CHECKING

from k8s_rdma.linux.netlink.rtnl import with_mac
from k8s_rdma.linux.netlink.socket import NetlinkError

if TYPE_CHECKING:
    from k8s_rdma.linux.netlink.rtnl import Link, Rtnl

REFUSED = frozenset({errno.EPERM, errno.EACCES, errno.EADDRNOTAVAIL})
"""What drivers answer for a MAC that the PF does not let the VF have."""

BUSY_S = 5.0
"""For a VF that is reset because its PF gave it another MAC or VLAN: iavf takes a second or two."""

_BUSY = frozenset({errno.EAGAIN, errno.EBUSY})
_POLL_S = 0.1


def take_mac(link: Link, mac: str, rtnl: Rtnl, what: str) -> None:
    """Give a netdev, which is down, this MAC; down it is afterwards. NetlinkError when the PF refuses.

    Again while it is up: after a reset of its PF, igbvf is listened to only when it was up. And when it has
    been: only as it goes down it asks for the MAC that the PF has for it meanwhile, the one that it may then
    have (igbvf_down, e1000_reset_hw_vf, drivers/net/ethernet/intel/igbvf).
    """
    if _took(link, mac, rtnl, what):
        return
    try:
        rtnl.change(link.index, f"{what}: up", up=True)
        if _took(link, mac, rtnl, what):
            return
    finally:
        rtnl.change(link.index, f"{what}: down", up=False)
    now = rtnl.link_at(link.index)
    if now is None or now.mac != mac:
        rtnl.change(link.index, what, with_mac(mac))


def _took(link: Link, mac: str, rtnl: Rtnl, what: str) -> bool:
    """Whether it has it; not when the PF refuses."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            rtnl.change(link.index, what, with_mac(mac))
        except NetlinkError as error:
            if error.errno in REFUSED:
                return False
            if error.errno not in _BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_POLL_S)
        else:
            return True
