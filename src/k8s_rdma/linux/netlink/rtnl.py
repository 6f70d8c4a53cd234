"""Route netlink: links, addresses, routes, counters and VLANs of bridges of one network namespace."""

from __future__ import annotations

import errno
import ipaddress
import struct
from dataclasses import dataclass
from enum import Enum, auto, unique
from functools import lru_cache
from typing import TYPE_CHECKING

from k8s_rdma.core.kernel import NameTakenError
from k8s_rdma.errors import printable
from k8s_rdma.linux.netlink.socket import (
    CREATE,
    EXCL,
    REPLACE,
    ROUTE,
    NetlinkError,
    NetlinkSocket,
    SocketClient,
    attribute,
    attributes,
    connect,
    each_attribute,
    nested,
    number,
    string,
    text,
    u32,
)

if TYPE_CHECKING:
    from k8s_rdma.core.step import Route


_GETSTATS = 94
_LINK_64 = 1
_LINK_64_ONLY = 1 << (_LINK_64 - 1)
_MESSAGE = struct.Struct("=BxxxII")
_FIRST_COUNTERS = struct.Struct("=8Q")

INFINIBAND = 32
"""ARPHRD_INFINIBAND: the address of such a link is that of queue pair and port and cannot be set."""
_NEWLINK, _DELLINK, _GETLINK, _SETLINK = 16, 17, 18, 19
_NEWADDR, _DELADDR, _GETADDR = 20, 21, 22
_NEWROUTE = 24
_GETNSID = 90
_DELLINKPROP = 109
_ADDRESS, _IFNAME, _MTU, _LINK, _MASTER, _LINKINFO, _IFALIAS = 1, 3, 4, 5, 10, 18, 20
_AF_SPEC, _NET_NS_FD, _EXT_MASK, _CARRIER, _LINK_NETNSID = 26, 28, 29, 33, 37
_PROP_LIST, _ALT_IFNAME, _PARENT_DEV_NAME = 52, 53, 56
_INFO_KIND = 1
_XDP, _XDP_PROGRAMS = 43, {"driver": 5, "generic": 6, "hardware": 7}
_SKIP_STATS = 8
_IFF_UP, _IFF_NOARP, _IFF_PROMISC, _IFF_ALLMULTI = 0x1, 0x80, 0x100, 0x200
_NETNSA_NSID, _NETNSA_FD = 1, 3
_AF_INET, _AF_INET6 = 2, 10
_INET_CONF, _INET6_ADDR_GEN_MODE = 1, 8
_ARP_ANNOUNCE, _ARP_IGNORE = 18, 19
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_IFA_F_OPTIMISTIC, _IFA_F_DADFAILED, _IFA_F_TENTATIVE, _SCOPE_LINK = 0x4, 0x8, 0x40, 253
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_PRIORITY, _RTA_METRICS, _RTA_TABLE = 1, 4, 5, 6, 8, 15
_RTAX_MTU, _RTAX_ADVMSS = 2, 8
_TABLE_UNSPEC, _TABLE_MAIN, _PROTO_BOOT, _TYPE_UNICAST = 0, 254, 3, 1
_LINK_KINDS = frozenset(
    [
        *(_ADDRESS, _IFNAME, _MTU, _LINK, _MASTER, _LINKINFO, _IFALIAS, _CARRIER, _LINK_NETNSID),
        *(_PROP_LIST, _PARENT_DEV_NAME, _XDP),
    ]
)
"""The attributes that a `Link` has."""

_IFINFO = struct.Struct("=BxHiII")
_INDEX = struct.Struct("=4xi")
_IFADDR = struct.Struct("=BBBBI")
_RTMSG = struct.Struct("=BBBBBBBBI")
_SHOWN = u32(_EXT_MASK, _SKIP_STATS)
Address = ipaddress.IPv4Interface | ipaddress.IPv6Interface
_AF_BRIDGE = 7
_FILTER_BRIDGE_VLANS = 2
_VLAN_INFO = 2
_PVID, _UNTAGGED = 2, 4
_INFO_DATA, _VLAN_FILTERING, _DEFAULT_PVID = 2, 7, 39
_VLAN = struct.Struct("=HH")


class Rtnl(SocketClient[NetlinkSocket]):
    """One namespace's links, addresses and routes. Every failure is a `NetlinkError`.

    The socket keeps the namespace alive: close it soon unless it is one's own.
    """

    def __init__(self, namespace: int | None = None, *, socket: NetlinkSocket | None = None) -> None:
        """Open a socket in the namespace of this descriptor, by default the thread's; or use `socket`."""
        self.socket = socket or NetlinkSocket(connect(ROUTE, namespace))
        self._decoded: dict[int, tuple[int, Link]] = {}
        """Links by index, each with the hash of the kernel's answer, 64 bits with a secret of the process
        (PEP 456). To decode a link takes 20 times as long, and the answers themselves would take half a
        MiB."""

    def links(self) -> list[Link]:
        """Return all links; for a link with the same answer of the kernel as before, the same object."""
        answers = self.socket.dump(_GETLINK, _IFINFO.pack(0, 0, 0, 0, 0) + _SHOWN, "links")
        links = list(map(self._link, answers))
        self._decoded = {link.index: self._decoded[link.index] for link in links}
        return links

    def link(self, name: str) -> Link | None:
        """Return the link of that name, if there is one."""
        return self._find(0, text(_IFNAME, name), name)

    def link_at(self, index: int) -> Link | None:
        """Return the link of that index, if there is one."""
        return self._find(index, b"", f"#{index}")

    def details(self, index: int, filters: int, operation: str) -> dict[int, bytes]:
        """Return a link's attributes, with those that must be requested (RTEXT_FILTER_*)."""
        body = _IFINFO.pack(0, 0, index, 0, 0) + u32(_EXT_MASK, filters)
        return attributes(self.socket.get(_GETLINK, body, operation), _IFINFO.size)

    def create(self, operation: str, *attributes: bytes) -> None:
        """Create a link; `operation` begins the error on failure."""
        body = _IFINFO.pack(0, 0, 0, 0, 0) + b"".join(attributes)
        self.socket.request(_NEWLINK, body, operation, CREATE | EXCL)

    def delete(self, index: int, operation: str) -> None:
        """Destroy a link, and the other end of a pair with it; no change when it does not exist."""
        try:
            self.socket.request(_DELLINK, _IFINFO.pack(0, 0, index, 0, 0), operation)
        except NetlinkError as error:
            if error.errno != errno.ENODEV:
                raise

    def change(self, index: int, operation: str, *attributes: bytes, up: bool | None = None) -> None:
        """Change a link in one message; `operation` begins the error when that is refused."""
        body = _IFINFO.pack(0, 0, index, int(bool(up)), 0 if up is None else _IFF_UP) + b"".join(attributes)
        self.socket.request(_SETLINK, body, operation)

    def quiesce(self, index: int, operation: str) -> None:
        """Take a link down, turn promiscuous and all-multicast mode off and ARP on."""
        flags = _IFF_UP | _IFF_NOARP | _IFF_PROMISC | _IFF_ALLMULTI
        self.socket.request(_SETLINK, _IFINFO.pack(0, 0, index, 0, flags), operation)

    def delete_altnames(self, link: Link, operation: str) -> None:
        """Delete a link's alternative names."""
        if link.altnames:
            names = nested(_PROP_LIST, *(text(_ALT_IFNAME, name) for name in link.altnames))
            self.socket.request(
                _DELLINKPROP, _IFINFO.pack(0, 0, link.index, 0, 0) + names, f"{operation}: altnames"
            )

    def require_free(self, name: str, operation: str) -> None:
        """Raise NameTakenError when a link has that name or alternative name.

        To be called before a message that moves and renames: it would move first, and only then find the name
        taken.
        """
        holder = self.link(name)
        if holder is not None:
            note = f", as another name of {printable(holder.name)}" if holder.name != name else ""
            msg = f"{operation}: the name {name} is taken there{note}"
            raise NameTakenError(msg)

    def above(self, index: int, namespace: int) -> list[Link]:
        """Return the links of this namespace that are made on a link of another one (a descriptor).

        Others are not decoded: a pod decides how many links it has.
        """
        body, lower = _IFINFO.pack(0, 0, 0, 0, 0) + _SHOWN, u32(_LINK, index)
        links = [_link(found) for found in self.socket.dump(_GETLINK, body, "links") if lower in found]
        number = self.number_of(namespace) if links else None  # the kernel may choose it for the answer
        return [link for link in links if link.peer == index and link.peer_elsewhere == number is not None]

    def number_of(self, namespace: int) -> int | None:
        """Return this namespace's number for another one (a descriptor), as in `Link.peer_elsewhere`."""
        body = struct.pack("=Bxxx", 0) + u32(_NETNSA_FD, namespace)
        found = struct.unpack(
            "=i", attributes(self.socket.get(_GETNSID, body, "namespace number"), 4)[_NETNSA_NSID]
        )
        return None if found[0] < 0 else int(found[0])

    def addresses(self, index: int) -> list[Address]:
        """Return a link's addresses."""
        body = _IFADDR.pack(0, 0, 0, 0, index)
        return [
            _address(message) for message in self.socket.dump(_GETADDR, body, f"addresses of link #{index}")
        ]

    def every_address(self) -> dict[int, list[HeldAddress]]:
        """Return all addresses of the namespace, by the index of their links."""
        found: dict[int, list[HeldAddress]] = {}
        for body in self.socket.dump(_GETADDR, _IFADDR.pack(0, 0, 0, 0, 0), "addresses"):
            _, _, flags, _, index = _IFADDR.unpack_from(body)
            found.setdefault(index, []).append(HeldAddress(_address(body), _address_state(flags)))
        return found

    def add_address(self, index: int, address: Address, operation: str, flags: int = 0) -> None:
        """Add an address to a link; no change when the link has it.

        An IPv6 address is usable after duplicate address detection; at once, within RFC 4429, if the
        namespace's settings make the link optimistic.

        flags: of an IPv6 address, in the place of IFA_F_OPTIMISTIC, because the kernel refuses some together
            with it (`inet6_rtm_newaddr`, net/ipv6/addrconf.c, Linux 6.1).
        """
        self.socket.request(_NEWADDR, _address_body(index, address, flags), operation, CREATE | REPLACE)

    def delete_address(self, index: int, address: Address, operation: str) -> None:
        """Delete an address from a link; succeeds when the link has no such address."""
        family = _AF_INET if address.version == 4 else _AF_INET6
        body = _IFADDR.pack(family, address.network.prefixlen, 0, 0, index)
        try:
            self.socket.request(_DELADDR, body + attribute(_IFA_LOCAL, address.ip.packed), operation)
        except NetlinkError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise

    def add_route(self, index: int, route: Route, operation: str) -> None:
        """Add a route through a link, to the main table by default.

        An existing route to the same destination stays, without an error: with several interfaces in one
        subnet the first one's route applies, as with the reference CNI plugins (`pkg/ipam`, ConfigureIface).
        """
        destination = ipaddress.ip_network(route.dst, strict=False)
        family = _AF_INET if destination.version == 4 else _AF_INET6
        scope = _SCOPE_LINK if route.gateway is None and family == _AF_INET else 0
        scope = scope if route.scope is None else route.scope
        table = _TABLE_MAIN if route.table is None else route.table
        header = _RTMSG.pack(
            *(family, destination.prefixlen, 0, 0),
            *(_TABLE_UNSPEC, _PROTO_BOOT, scope, _TYPE_UNICAST, 0),  # the attribute holds more than 255
        )
        body = header + u32(_RTA_OIF, index) + u32(_RTA_TABLE, table) + _route_options(route)
        if destination.prefixlen:
            body += attribute(_RTA_DST, destination.network_address.packed)
        if route.gateway is not None:
            body += attribute(_RTA_GATEWAY, ipaddress.ip_address(route.gateway).packed)
        try:
            self.socket.request(_NEWROUTE, body, operation, CREATE | EXCL)
        except NetlinkError as error:
            if error.errno != errno.EEXIST:
                raise

    def _find(self, index: int, attributes: bytes, operation: str) -> Link | None:
        body = _IFINFO.pack(0, 0, index, 0, 0) + _SHOWN + attributes
        try:
            answer = self.socket.get(_GETLINK, body, f"link {operation}")
        except NetlinkError as error:
            if error.errno == errno.ENODEV:
                self._decoded.pop(index, None)
                return None
            raise
        return self._link(answer)

    def _link(self, answer: bytes) -> Link:
        """Decode a link, unless the kernel's last answer on it was the same."""
        index, key = _INDEX.unpack_from(answer)[0], hash(answer)
        last_key, last_link = self._decoded.get(index, (None, None))
        if last_link is not None and last_key == key:
            return last_link
        link = _link(answer)
        self._decoded[index] = key, link
        return link


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A netdev.

    peer: index of the other end of a veth pair, in this namespace unless `peer_elsewhere`.
    peer_elsewhere: this namespace's number for the peer's namespace, if it is another one.
    type: ARPHRD_*, 1 for Ethernet and 32 for InfiniBand (`include/uapi/linux/if_arp.h`).
    device: its device, a PCI address for a PCI function (since Linux 5.14).
    altnames: alternative names, which no other link of the namespace can have either.
    xdp: its XDP programs, number and mode of each, if any.
    """

    index: int
    name: str
    mac: str
    mtu: int
    is_up: bool
    carrier: bool
    kind: str
    master: int
    alias: str
    peer: int
    peer_elsewhere: int | None
    type: int = 1
    device: str = ""
    altnames: tuple[str, ...] = ()
    xdp: str = ""


@dataclass(frozen=True, slots=True)
class HeldAddress:
    """An address that a link has."""

    address: Address
    state: AddressState


@unique
class AddressState(Enum):
    """State of an address in the kernel's duplicate address detection (RFC 4862).

    TENTATIVE: not usable before detection has ended. OPTIMISTIC: usable meanwhile (RFC 4429).
    """

    VALID = auto()
    TENTATIVE = auto()
    OPTIMISTIC = auto()
    DUPLICATE = auto()


def of_kind(kind: str, *data: bytes) -> bytes:
    """Encode a new link's kind, and the data of that kind."""
    return nested(_LINKINFO, text(_INFO_KIND, kind), *data)


def named(name: str) -> bytes:
    """Encode a link's name."""
    return text(_IFNAME, name)


def with_mac(mac: str) -> bytes:
    """Encode a link's hardware address, `aa:bb:cc:dd:ee:ff`."""
    return attribute(_ADDRESS, bytes.fromhex(mac.replace(":", "")))


def with_mtu(mtu: int) -> bytes:
    """Encode a link's MTU in bytes."""
    return u32(_MTU, mtu)


def with_alias(alias: str) -> bytes:
    """Encode a link's alias: up to 255 bytes of free text that the kernel stores."""
    return attribute(_IFALIAS, alias.encode())


def in_namespace(namespace: int) -> bytes:
    """Encode the namespace (a descriptor) for a link; with `named`, it gets that name in the same step."""
    return u32(_NET_NS_FD, namespace)


def enslaved_to(index: int) -> bytes:
    """Encode a link's master; 0 for none."""
    return u32(_MASTER, index)


def answering_for_itself() -> bytes:
    """Encode ARP for an interface's own addresses only (arp_ignore 1, arp_announce 2 of ip-sysctl).

    By default Linux answers for any address of the machine on any interface, so of several interfaces in one
    subnet the first to answer would get all traffic, and reservations on the others would be void.
    """
    settings = nested(_INET_CONF, u32(_ARP_IGNORE, 1), u32(_ARP_ANNOUNCE, 2))
    return nested(_AF_SPEC, nested(_AF_INET, settings))


def without_link_local() -> bytes:
    """Encode no IPv6 link-local address, so that a link that only forwards sends no frames itself."""
    return nested(_AF_SPEC, nested(_AF_INET6, attribute(_INET6_ADDR_GEN_MODE, b"\x01")))


def vlan_bridge(default: int) -> bytes:
    """Encode VLAN filtering for a new bridge; untagged frames are in VLAN `default` on a new port.

    A kernel without such bridges (CONFIG_BRIDGE_VLAN_FILTERING) refuses it with EOPNOTSUPP.
    """
    data = attribute(_VLAN_FILTERING, b"\1"), attribute(_DEFAULT_PVID, struct.pack("=H", default))
    return of_kind("bridge", nested(_INFO_DATA, *data))


def add_untagged_vlan(rtnl: Rtnl, port: int, vlan: int, operation: str) -> None:
    """Make a port an untagged member of a VLAN, and that VLAN the one of its untagged frames (PVID)."""
    rtnl.socket.request(_SETLINK, _attribute(port, vlan, _PVID | _UNTAGGED), operation)


def add_tagged_vlan(rtnl: Rtnl, port: int, vlan: int, operation: str) -> None:
    """Make a port a tagged member of a VLAN; no change when it is one."""
    rtnl.socket.request(_SETLINK, _attribute(port, vlan), operation)


def remove_vlan(rtnl: Rtnl, port: int, vlan: int, operation: str) -> None:
    """Remove a port from a VLAN; no change when it is not a member."""
    rtnl.socket.request(_DELLINK, _attribute(port, vlan), operation)


def bridge_vlans(rtnl: Rtnl, operation: str) -> dict[int, frozenset[int]]:
    """Return the VLANs of every port of every bridge, by the port's index."""
    body = _IFINFO.pack(_AF_BRIDGE, 0, 0, 0, 0) + u32(_EXT_MASK, _FILTER_BRIDGE_VLANS)
    return dict(_vlans_of(answer) for answer in rtnl.socket.dump(_GETLINK, body, operation))


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCounters:
    """Counters of a link, as the link itself keeps them, if known."""

    tx_bytes: int
    rx_bytes: int
    tx_packets: int
    rx_packets: int
    tx_dropped: int | None = None
    rx_dropped: int | None = None

    @property
    def opposite(self) -> LinkCounters:
        """Return the counters as the other end of a pair sees them, without drops, which it does not see."""
        return LinkCounters(
            tx_bytes=self.rx_bytes,
            rx_bytes=self.tx_bytes,
            tx_packets=self.rx_packets,
            rx_packets=self.tx_packets,
        )


def counters_of_all(socket: NetlinkSocket) -> dict[int, LinkCounters]:
    """Return the counters of all links by index, in the namespace of this socket."""
    answers = socket.dump(_GETSTATS, _MESSAGE.pack(0, 0, _LINK_64_ONLY), "counters of links")
    return dict(map(_counters, answers))


def _counters(body: bytes) -> tuple[int, LinkCounters]:
    _, index, _ = _MESSAGE.unpack_from(body)
    rx_packets, tx_packets, rx_bytes, tx_bytes, _, _, rx_dropped, tx_dropped = _FIRST_COUNTERS.unpack_from(
        attributes(body, _MESSAGE.size)[_LINK_64]
    )
    return index, LinkCounters(
        tx_bytes=tx_bytes,
        rx_bytes=rx_bytes,
        tx_packets=tx_packets,
        rx_packets=rx_packets,
        tx_dropped=tx_dropped,
        rx_dropped=rx_dropped,
    )


def _route_options(route: Route) -> bytes:
    metrics = b"".join(
        u32(kind, value)
        for kind, value in ((_RTAX_MTU, route.mtu), (_RTAX_ADVMSS, route.advmss))
        if value is not None
    )
    return (nested(_RTA_METRICS, metrics) if metrics else b"") + (
        b"" if route.priority is None else u32(_RTA_PRIORITY, route.priority)
    )


def _link(body: bytes) -> Link:
    _, kind, index, flags, _ = _IFINFO.unpack_from(body)
    found = attributes(body, _IFINFO.size, _LINK_KINDS)
    elsewhere = found.get(_LINK_NETNSID)
    return Link(
        index=index,
        name=string(found[_IFNAME]),
        mac=found.get(_ADDRESS, b"").hex(":"),
        mtu=number(found.get(_MTU, b"")),
        is_up=bool(flags & _IFF_UP),
        carrier=bool(number(found.get(_CARRIER, b""))),
        kind=string(attributes(found.get(_LINKINFO, b"")).get(_INFO_KIND, b"")),
        master=number(found.get(_MASTER, b"")),
        alias=string(found.get(_IFALIAS, b"")),
        peer=number(found.get(_LINK, b"")),
        peer_elsewhere=None if elsewhere is None else struct.unpack("=i", elsewhere)[0],
        type=kind,
        device=string(found.get(_PARENT_DEV_NAME, b"")),
        altnames=tuple(string(name) for _, name in each_attribute(found[_PROP_LIST]))
        if _PROP_LIST in found
        else (),
        xdp=xdp_programs(found.get(_XDP, b"")),
    )


@lru_cache(maxsize=64)
def xdp_programs(value: bytes) -> str:
    """Describe the XDP programs of IFLA_XDP: number and mode of each; empty without programs."""
    found = attributes(value)
    present = ((mode, found[kind]) for mode, kind in _XDP_PROGRAMS.items() if kind in found)
    return ", ".join(f"{number(program)} ({mode})" for mode, program in present)


def _address(body: bytes) -> Address:
    _, prefix, _, _, _ = _IFADDR.unpack_from(body)
    found = attributes(body, _IFADDR.size)
    packed = found.get(_IFA_LOCAL) or found[_IFA_ADDRESS]
    return ipaddress.ip_interface((packed, prefix))


def _address_state(flags: int) -> AddressState:
    if flags & _IFA_F_DADFAILED:
        return AddressState.DUPLICATE
    if flags & _IFA_F_OPTIMISTIC:
        return AddressState.OPTIMISTIC
    return AddressState.TENTATIVE if flags & _IFA_F_TENTATIVE else AddressState.VALID


def _address_body(index: int, address: Address, flags: int) -> bytes:
    packed = address.ip.packed
    if address.version == 4:
        header, local = (
            _IFADDR.pack(_AF_INET, address.network.prefixlen, 0, 0, index),
            attribute(_IFA_LOCAL, packed),
        )
        return header + local + attribute(_IFA_ADDRESS, packed)
    header = _IFADDR.pack(_AF_INET6, address.network.prefixlen, flags or _IFA_F_OPTIMISTIC, 0, index)
    return header + attribute(_IFA_LOCAL, packed) + attribute(_IFA_ADDRESS, packed)


def _vlans_of(answer: bytes) -> tuple[int, frozenset[int]]:
    _, _, index, _, _ = _IFINFO.unpack_from(answer)
    spec = attributes(answer, _IFINFO.size).get(_AF_SPEC, b"")
    vlan_infos = (_VLAN.unpack(value) for kind, value in each_attribute(spec) if kind == _VLAN_INFO)
    return index, frozenset(vlan for _, vlan in vlan_infos)


def _attribute(port: int, vlan: int, flags: int = 0) -> bytes:
    info = nested(_AF_SPEC, attribute(_VLAN_INFO, _VLAN.pack(flags, vlan)))
    return _IFINFO.pack(_AF_BRIDGE, 0, port, 0, 0) + info
