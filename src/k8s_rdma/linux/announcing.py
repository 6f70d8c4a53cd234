"""Telling everybody on a link which addresses are on it: gratuitous ARP, unsolicited advertisements.

Not by the kernel's own (`arp_notify`, `ndisc_notify`): those go out when a netdev is set up, and so before it
has an address or a carrier, or not at all for optimistic addresses (`addrconf_dad_work`, net/ipv6/addrconf.c,
Linux 6.1). Nor by packet sockets, each of which takes some 10 ms to close (`packet_release`).
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.neighbours import forget, solicit
from k8s_rdma.linux.netlink.socket import NetlinkError
from k8s_rdma.linux.netns import entered

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from k8s_rdma.linux.netlink.rtnl import Link, Rtnl

_ADVERTISEMENT, _TARGET_ADDRESS = 136, 2
_OVERRIDE = 1 << 29
_HOP_LIMIT = 255
_ALL_NODES = "ff02::1"


def send_announcements(addresses: Mapping[Link, Collection[str]], rtnl: Rtnl, namespace: int) -> None:
    """Announce addresses (CIDR form) on links of a namespace, as far as those have a carrier.

    KernelError without CAP_NET_RAW, if there are IPv6 addresses.
    """
    ready = [
        (link, ipaddress.ip_interface(address).ip)
        for link, given in addresses.items()
        if link.up and link.carrier
        for address in given
    ]
    for link, address in ready:
        if isinstance(address, ipaddress.IPv4Address):
            # It may be gone by now; what nobody hears is found out by asking.
            with suppress(NetlinkError):
                _ask_for_oneself(link, address, rtnl)
    advertised = [(link, address) for link, address in ready if isinstance(address, ipaddress.IPv6Address)]
    if advertised:
        _advertise(advertised, namespace)


def _ask_for_oneself(link: Link, address: ipaddress.IPv4Address, rtnl: Rtnl) -> None:
    """Have the kernel look for a neighbour that has the link's own address, and forget that it did.

    That is an ARP announcement (RFC 5227, section 3): a request to all with the address as sender and target.
    """
    what = f"{link.name}: announce {address}"
    solicit(rtnl.socket, link.index, address, what)
    forget(rtnl.socket, link.index, address, what)


def _advertise(addresses: Collection[tuple[Link, ipaddress.IPv6Address]], namespace: int) -> None:
    with entered(namespace):
        sender = _raw_socket()
    with sender:
        sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, _HOP_LIMIT)
        for link, address in addresses:
            source = address.packed + struct.pack("=I", link.index)  # struct in6_pktinfo
            mac = bytes.fromhex(link.mac.replace(":", ""))
            with suppress(OSError):
                sender.sendmsg(
                    [advertisement(mac, address)],
                    [(socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, source)],
                    0,
                    (_ALL_NODES, 0, 0, link.index),
                )


def _raw_socket() -> socket.socket:
    try:
        return socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
    except PermissionError as error:
        msg = "announcing IPv6 addresses needs CAP_NET_RAW"
        raise KernelError(msg) from error


def advertisement(mac: bytes, address: ipaddress.IPv6Address) -> bytes:
    """A neighbour advertisement that overrides what others remember (RFC 4861, section 7.2.6).

    Its checksum is the kernel's to fill in. A MAC of 20 bytes, InfiniBand's, begins after two more (RFC 4391,
    section 9.3).
    """
    padding = bytes(-(2 + len(mac)) % 8)
    units = (2 + len(padding) + len(mac)) // 8
    option = struct.pack("!BB", _TARGET_ADDRESS, units) + padding + mac
    return struct.pack("!BBHI", _ADVERTISEMENT, 0, 0, _OVERRIDE) + address.packed + option
