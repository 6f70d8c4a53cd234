"""Neighbours of a namespace's links: who is asked for, and how long an answer is waited for.

Source: Linux `include/uapi/linux/neighbour.h`, `neigh_add` and `neightbl_set` of net/core/neighbour.c.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from k8s_rdma.linux.netlink.socket import CREATE, attribute, nested, text, u32

if TYPE_CHECKING:
    from ipaddress import IPv4Address

    from k8s_rdma.linux.netlink.socket import NetlinkSocket

_NEWNEIGH, _DELNEIGH, _SETNEIGHTBL = 28, 29, 67
_NDMSG = struct.Struct("=BxxxiHBB")
_NDA_DST, _NTF_USE = 1, 1
_NDTA_NAME, _NDTA_PARMS, _NDTPA_IFINDEX, _NDTPA_RETRANS_TIME = 1, 6, 1, 5
_AF_INET, _AF_INET6 = 2, 10


def solicit(asking: NetlinkSocket, index: int, address: IPv4Address, what: str) -> None:
    """Ask on a link who has an address, if nobody is known to; the answer is not waited for."""
    asking.do(_NEWNEIGH, _neighbour(index, address, _NTF_USE), what, CREATE)


def forget(asking: NetlinkSocket, index: int, address: IPv4Address, what: str) -> None:
    """Take what is known of an address on a link from the neighbour table."""
    asking.do(_DELNEIGH, _neighbour(index, address, 0), what)


def set_ipv6_retransmission(asking: NetlinkSocket, index: int, milliseconds: int, what: str) -> None:
    """How long a link waits for an answer of its IPv6 neighbours (RetransTimer, RFC 4861).

    For that long, too, for somebody to object to an address (`addrconf_dad_work`, net/ipv6/addrconf.c).
    """
    time = attribute(_NDTPA_RETRANS_TIME, struct.pack("=Q", milliseconds))
    body = struct.pack("=Bxxx", _AF_INET6) + text(_NDTA_NAME, "ndisc_cache")
    asking.do(_SETNEIGHTBL, body + nested(_NDTA_PARMS, u32(_NDTPA_IFINDEX, index), time), what)


def _neighbour(index: int, address: IPv4Address, flags: int) -> bytes:
    return _NDMSG.pack(_AF_INET, index, 0, flags, 0) + attribute(_NDA_DST, address.packed)
