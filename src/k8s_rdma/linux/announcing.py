"""Telling everybody on a link which addresses are on it: gratuitous ARP, unsolicited advertisements.

Our own frames rather than the kernel's (`arp_notify`, `ndisc_notify`): those go out when a netdev is set up,
and so before it has an address or a carrier, or not at all for optimistic addresses (`addrconf_dad_work`,
net/ipv6/addrconf.c, Linux 6.1). Ethernet only: an InfiniBand station is more than its hardware address.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

from k8s_rdma.linux.netns import entered

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from k8s_rdma.linux.netlink.rtnl import Link

_ETHERNET = 1
_ARP, _IPV4, _IPV6 = 0x0806, 0x0800, 0x86DD
_ICMPV6, _ADVERTISEMENT, _TARGET_ADDRESS = 58, 136, 2
_OVERRIDE = 1 << 29
_HOP_LIMIT = 255
_EVERYBODY = b"\xff" * 6
_ALL_NODES = ipaddress.IPv6Address("ff02::1")
_ALL_NODES_MAC = bytes.fromhex("333300000001")


def send_announcements(addresses: Mapping[Link, Collection[str]], namespace: int) -> None:
    """Announce addresses (CIDR form) on links of a namespace, as far as those have a carrier."""
    with entered(namespace):
        sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    with sender:
        for link, given in addresses.items():
            if not (link.up and link.carrier and link.type == _ETHERNET):
                continue
            for address in given:
                frame = _frame(bytes.fromhex(link.mac.replace(":", "")), ipaddress.ip_interface(address).ip)
                # It may go down just now; what nobody hears is found out by asking.
                with suppress(OSError):
                    sender.sendto(frame, (link.name, 0))


def _frame(mac: bytes, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bytes:
    if isinstance(address, ipaddress.IPv4Address):
        return gratuitous_arp(mac, address)
    return unsolicited_advertisement(mac, address)


def gratuitous_arp(mac: bytes, address: ipaddress.IPv4Address) -> bytes:
    """An Ethernet frame that says to all that this MAC has the address (RFC 5227, section 3)."""
    body = struct.pack("!HHBBH", _ETHERNET, _IPV4, 6, 4, 1)
    body += mac + address.packed + bytes(6) + address.packed
    return _EVERYBODY + mac + struct.pack("!H", _ARP) + body


def unsolicited_advertisement(mac: bytes, address: ipaddress.IPv6Address) -> bytes:
    """The same for IPv6 (RFC 4861, section 7.2.6), overriding what others remember."""
    message = struct.pack("!BBHI", _ADVERTISEMENT, 0, 0, _OVERRIDE) + address.packed
    message += struct.pack("!BB", _TARGET_ADDRESS, 1) + mac
    ends = address.packed + _ALL_NODES.packed
    checksum = _checksum(ends + struct.pack("!IxxxB", len(message), _ICMPV6) + message)
    message = message[:2] + struct.pack("!H", checksum) + message[4:]
    header = struct.pack("!IHBB", 6 << 28, len(message), _ICMPV6, _HOP_LIMIT)
    return _ALL_NODES_MAC + mac + struct.pack("!H", _IPV6) + header + ends + message


def _checksum(data: bytes) -> int:
    """RFC 1071; of an even number of bytes."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
