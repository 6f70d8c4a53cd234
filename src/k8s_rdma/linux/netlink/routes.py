"""Links that the host itself uses (default routes, addresses), and neighbours of a namespace's links.

Source: rtnetlink(7), Linux `include/uapi/linux/{rtnetlink,nexthop,if_addr,neighbour}.h` (RT_SCOPE_*),
`net/ipv4/fib_semantics.c`, `neigh_add` and `neightbl_set` of net/core/neighbour.c, 6.1.
"""

from __future__ import annotations

import errno
import struct
from typing import TYPE_CHECKING

from k8s_rdma.linux.netlink.socket import (
    CREATE,
    NetlinkError,
    NetlinkSocket,
    attribute,
    attributes,
    nested,
    number,
    text,
    u32,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from ipaddress import IPv4Address

    from k8s_rdma.linux.netlink.rtnl import Link, Rtnl

_NEWNEIGH, _DELNEIGH, _SETNEIGHTBL = 28, 29, 67
_NDMSG = struct.Struct("=BxxxiHBB")
_NDA_DST, _NTF_USE = 1, 1
_NDTA_NAME, _NDTA_PARMS, _NDTPA_IFINDEX, _NDTPA_RETRANS_TIME = 1, 6, 1, 5
_AF_INET, _AF_INET6 = 2, 10

_GETADDR = 22
_IFADDR = struct.Struct("=BBBBI")
_INTERNET_FAMILIES = frozenset({2, 10})
_SCOPE_LINK = 253

_GETROUTE, _GETNEXTHOP = 26, 106
_RTMSG = struct.Struct("=BBBBBBBBI")
_NEXTHOP = struct.Struct("=HBBi")
_NHMSG_BYTES, _GROUP_ENTRY_BYTES = 8, 8
_RTA_OIF, _RTA_MULTIPATH, _RTA_TABLE, _RTA_NH_ID = 4, 9, 15, 30
_NHA_ID, _NHA_GROUP, _NHA_OIF = 1, 2, 5
_FAMILIES = (2, 10)
_TABLE_MAIN, _UNICAST = 254, 1
_OPEN_VSWITCH = "openvswitch"


def solicit(socket: NetlinkSocket, index: int, address: IPv4Address, operation: str) -> None:
    """Solicit the neighbour with an address on a link, unless it is known; do not wait for the answer."""
    socket.request(_NEWNEIGH, _neighbour(index, address, _NTF_USE), operation, CREATE)


def forget(socket: NetlinkSocket, index: int, address: IPv4Address, operation: str) -> None:
    """Delete an address on a link from the neighbour table."""
    socket.request(_DELNEIGH, _neighbour(index, address, 0), operation)


def set_ipv6_retransmission(socket: NetlinkSocket, index: int, milliseconds: int, operation: str) -> None:
    """Set the time that a link waits for answers of its IPv6 neighbours (RetransTimer, RFC 4861).

    Duplicate address detection waits as long (`addrconf_dad_work`, net/ipv6/addrconf.c).
    """
    time = attribute(_NDTPA_RETRANS_TIME, struct.pack("=Q", milliseconds))
    body = struct.pack("=Bxxx", _AF_INET6) + text(_NDTA_NAME, "ndisc_cache")
    socket.request(_SETNEIGHTBL, body + nested(_NDTA_PARMS, u32(_NDTPA_IFINDEX, index), time), operation)


def _neighbour(index: int, address: IPv4Address, flags: int) -> bytes:
    return _NDMSG.pack(_AF_INET, index, 0, flags, 0) + attribute(_NDA_DST, address.packed)


def addressed_links(rtnl: Rtnl) -> frozenset[int]:
    """Return the links with an address for which `counts` is true, by one dump of all addresses."""
    found = set()
    for body in rtnl.socket.dump(_GETADDR, _IFADDR.pack(0, 0, 0, 0, 0), "addresses"):
        family, _, _, scope, index = _IFADDR.unpack_from(body)
        if family in _INTERNET_FAMILIES and counts(scope):
            found.add(index)
    return frozenset(found)


def counts(scope: int) -> bool:
    """Report whether the scope of an address is wider than its link or its host.

    Every link that is up has an address of link scope (IPv6 link-local).
    """
    return scope < _SCOPE_LINK


def default_route_links(rtnl: Rtnl, links: Iterable[Link]) -> frozenset[int]:
    """Return the links of the main table's default routes, of any metric, and the links `below` them."""
    through: set[int] = set()
    for family in _FAMILIES:
        through.update(_through(rtnl, family))
    return below(links, through)


def below(links: Iterable[Link], indexes: Iterable[int]) -> frozenset[int]:
    """Add the links that carry the frames of these: bonded and bridged ones, parents of VLANs, macvlans.

    The frames of an Open vSwitch port pass its other ports: `br-ex` and the NIC have the same master.
    """
    by_index = {link.index: link for link in links}
    members: dict[int, list[int]] = {}
    for link in by_index.values():
        if link.master:
            members.setdefault(link.master, []).append(link.index)
    found: set[int] = set()
    waiting = [index for index in indexes if index in by_index]
    while waiting:
        link = by_index[waiting.pop()]
        if link.index in found:
            continue
        found.add(link.index)
        waiting += members.get(link.index, ())
        if link.peer_elsewhere is None and link.peer in by_index:
            waiting.append(link.peer)
        if link.kind == _OPEN_VSWITCH and link.master in by_index:
            waiting.append(link.master)
    return frozenset(found)


def carriers(links: Iterable[Link]) -> frozenset[int]:
    """Return the links on which VLANs, macvlans or guests' macvtaps of this namespace are made."""
    return frozenset(
        link.peer for link in links if link.peer and link.peer_elsewhere is None and link.kind != "veth"
    )


def _through(rtnl: Rtnl, family: int) -> Iterator[int]:
    """Yield the links of one address family's default routes."""
    for route in _default_routes(rtnl, family):
        if _RTA_OIF in route:
            yield number(route[_RTA_OIF])
        elif _RTA_MULTIPATH in route:
            yield from _multipath(route[_RTA_MULTIPATH])
        elif _RTA_NH_ID in route:  # alone with net.ipv4.nexthop_compat_mode 0
            yield from _nexthop_links(rtnl, number(route[_RTA_NH_ID]))


def _default_routes(rtnl: Rtnl, family: int) -> Iterator[dict[int, bytes]]:
    body = _RTMSG.pack(family, 0, 0, 0, _TABLE_MAIN, 0, 0, 0, 0)
    for answer in _dump_table(rtnl, body):
        _, prefix, _, _, _, _, _, kind, _ = _RTMSG.unpack_from(answer)
        if prefix == 0 and kind == _UNICAST:
            route = attributes(answer, _RTMSG.size)
            if number(route.get(_RTA_TABLE, b"")) == _TABLE_MAIN:
                yield route


def _dump_table(rtnl: Rtnl, body: bytes) -> Sequence[bytes]:
    try:
        return rtnl.socket.dump(_GETROUTE, body, "default routes")
    except NetlinkError as error:
        if error.errno == errno.ENOENT:  # a namespace has no main table before its first route
            return ()
        raise


def _multipath(value: bytes) -> Iterator[int]:
    """Yield the links of `struct rtnexthop`s."""
    start = 0
    while start + _NEXTHOP.size <= len(value):
        size, _, _, index = _NEXTHOP.unpack_from(value, start)
        yield index
        start += max(_NEXTHOP.size, (size + 3) & ~3)


def _nexthop_links(rtnl: Rtnl, nexthop_id: int) -> Iterator[int]:
    """Yield the links of a nexthop object, or of the members of a nexthop group."""
    body = bytes(_NHMSG_BYTES) + u32(_NHA_ID, nexthop_id)
    nexthop = attributes(rtnl.socket.get(_GETNEXTHOP, body, f"nexthop {nexthop_id}"), _NHMSG_BYTES)
    if _NHA_OIF in nexthop:
        yield number(nexthop[_NHA_OIF])
    members = nexthop.get(_NHA_GROUP, b"")
    for start in range(0, len(members), _GROUP_ENTRY_BYTES):
        yield from _nexthop_links(rtnl, number(members[start : start + 4]))
