"""Interfaces inside a pod's namespace: list, configure, cap, announce and clear.

Announcements are gratuitous ARP and unsolicited neighbour advertisements. The kernel's own (`arp_notify`,
`ndisc_notify`) go out when a netdev is set up, and so before it has an address or a carrier, or not at all
for optimistic addresses (`addrconf_dad_work`, net/ipv6/addrconf.c, Linux 6.1). Packet sockets take some 10
ms each to close (`packet_release`), so a raw socket of each family sends them.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from k8s_rdma.core.kernel import Hardware, LocatedVf, PodInterface
from k8s_rdma.core.plan import without_software_caps
from k8s_rdma.core.step import CapInterface, ClearInterface, ConfigureInterface, NetnsRef
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.routes import forget, set_ipv6_retransmission, solicit
from k8s_rdma.linux.netlink.rtnl import Address, AddressState, HeldAddress, Link, Rtnl, answering_for_itself
from k8s_rdma.linux.netlink.socket import NetlinkError, NetlinkSocket
from k8s_rdma.linux.netlink.traffic_control import RootQdisc, is_supported, limit, root_qdiscs
from k8s_rdma.linux.netns import Namespaces, entered

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from k8s_rdma.core.types import PciAddress

_ADVERTISEMENT, _TARGET_ADDRESS = 136, 2
_OVERRIDE = 1 << 29
_HOP_LIMIT = 255
_ALL_NODES = "ff02::1"
_SETTINGS = Path("/proc/sys/net/ipv6/conf")
_WITHOUT_IPV6 = (errno.EACCES, errno.EAFNOSUPPORT, errno.EOPNOTSUPP)

_IPV6_MIN_MTU = 1280
"""The minimum MTU of an IPv6 link: RFC 8200, section 5."""

ANSWER_MS = 100
"""Time for neighbours to answer: within a network a millisecond, for busy ones a few."""

USUAL_ANSWER_MS = 1000
"""RETRANS_TIMER of RFC 4861, section 10."""


def interfaces_in(netns: NetnsRef, namespaces: Namespaces) -> dict[str, PodInterface]:
    """Return its interfaces by name. KernelError when it no longer exists or cannot be accessed."""
    with namespaces.existing(netns) as namespace, Rtnl(namespace) as rtnl:
        addresses, qdiscs = rtnl.every_address(), root_qdiscs(rtnl.socket, f"namespace {netns.path}")
        return {
            link.name: _interface(link, addresses.get(link.index, []), qdiscs.get(link.index))
            for link in rtnl.links()
        }


def located_vfs(
    links: Mapping[PciAddress, Link], namespace_rtnl: Rtnl, operation: str
) -> dict[PciAddress, LocatedVf]:
    """Return VFs with their limits. links: their netdevs, in the namespace of `namespace_rtnl`."""
    qdiscs = root_qdiscs(namespace_rtnl.socket, operation) if links else {}
    return {pci: _located(link, qdiscs.get(link.index)) for pci, link in links.items()}


def change_interface(step: ConfigureInterface | ClearInterface, namespaces: Namespaces) -> None:
    """Apply the step in its namespace; one that no longer exists needs no clearing."""
    if isinstance(step, ConfigureInterface):
        with namespaces.existing(step.netns) as namespace:
            configure(step, namespace)
        return
    with namespaces.opened(step.netns) as found:
        if found is not None:
            clear(step, found)


def configure(step: ConfigureInterface, namespace: int) -> None:
    """Bring an interface up with addresses and routes; KernelError when it does not exist.

    Duplicate address detection (RFC 4862) of its IPv6 addresses waits 0.1 s for answers and not 1 s, until
    `announce` restores that. Meanwhile the addresses can be used already (optimistic, RFC 4429); where the
    kernel does not permit this, detection also starts up to 1 s later. Flags of the step replace optimism.
    """
    with Rtnl(namespace) as rtnl:
        link = link_of(step, rtnl)
        place = f"interface {step.ifname} in {step.netns.path}"
        addresses = [ipaddress.ip_interface(address) for address in step.addresses]
        if any(address.version == 6 for address in addresses):
            _let_be_optimistic(step.ifname, namespace)
            _wait_for_answers(ANSWER_MS, link, rtnl)
        rtnl.change(link.index, f"{place}: up", answering_for_itself(), up=True)
        for address in addresses:
            _add(address, step.address_flags, link, rtnl, f"{place}: address {address}")
        for route in step.routes:
            rtnl.add_route(link.index, route, f"{place}: route to {route.dst}")


def clear(step: ClearInterface, namespace: int) -> None:
    """Take an interface down and flush its addresses; a missing one needs no change."""
    with Rtnl(namespace) as rtnl:
        link = rtnl.link(step.ifname)
        if link is None:
            return
        make_bare(link, rtnl, f"interface {step.ifname} in {step.netns.path}")


def announce(addresses: Mapping[str, Collection[str]], namespace: int) -> None:
    """Announce addresses (CIDR form) on the interfaces' networks; missing interfaces are skipped."""
    with Rtnl(namespace) as rtnl:
        links = [link for link in rtnl.links() if link.name in addresses]
        for link in links:
            if any(":" in address for address in addresses[link.name]):
                _wait_for_answers(USUAL_ANSWER_MS, link, rtnl)
        send_announcements({link: addresses[link.name] for link in links}, rtnl, namespace)


def make_bare(link: Link, rtnl: Rtnl, operation: str) -> None:
    """Take a link down and delete its addresses, and with them its routes; `operation` begins an error.

    Promiscuous mode is turned off as well, so that the next pod does not inherit it.
    """
    rtnl.quiesce(link.index, f"{operation}: down")
    for address in rtnl.addresses(link.index):
        rtnl.delete_address(link.index, address, f"{operation}: address {address}")


def link_of(step: ConfigureInterface | CapInterface, rtnl: Rtnl) -> Link:
    """Return the step's interface, in the namespace of `rtnl`; KernelError when it does not exist."""
    link = rtnl.link(step.ifname)
    if link is None:
        msg = f"interface {step.ifname}: not in namespace {step.netns.path}"
        raise KernelError(msg)
    return link


def send_announcements(addresses: Mapping[Link, Collection[str]], rtnl: Rtnl, namespace: int) -> None:
    """Announce addresses (CIDR form) on links of a namespace, as far as those have a carrier.

    KernelError without CAP_NET_RAW, if there are IPv6 addresses.
    """
    ready = [
        (link, ipaddress.ip_interface(address).ip)
        for link, link_addresses in addresses.items()
        if link.is_up and link.carrier
        for address in link_addresses
    ]
    for link, address in ready:
        if isinstance(address, ipaddress.IPv4Address):
            # The link may have disappeared; neighbours without the announcement resolve the address.
            with suppress(NetlinkError):
                _ask_for_oneself(link, address, rtnl)
    advertised = [(link, address) for link, address in ready if isinstance(address, ipaddress.IPv6Address)]
    if advertised:
        _advertise(advertised, namespace)


def advertisement(mac: bytes, address: ipaddress.IPv6Address) -> bytes:
    """Encode a neighbour advertisement that overrides the caches of others (RFC 4861, section 7.2.6).

    The kernel fills in the checksum. A MAC of 20 bytes (InfiniBand) is preceded by two bytes (RFC 4391,
    section 9.3).
    """
    padding = bytes(-(2 + len(mac)) % 8)
    units = (2 + len(padding) + len(mac)) // 8
    option = struct.pack("!BB", _TARGET_ADDRESS, units) + padding + mac
    return struct.pack("!BBHI", _ADVERTISEMENT, 0, 0, _OVERRIDE) + address.packed + option


def _located(link: Link, qdisc: RootQdisc | None) -> LocatedVf:
    return LocatedVf(
        ifname=link.name,
        mac=link.mac,
        max_tx_rate_mbps=qdisc.mbps if qdisc else 0,
        qdisc=qdisc.kind if qdisc else "",
    )


def _interface(link: Link, addresses: Iterable[HeldAddress], qdisc: RootQdisc | None) -> PodInterface:
    by_state: dict[AddressState, set[str]] = {state: set() for state in AddressState}
    for address in addresses:
        by_state[address.state].add(str(address.address))
    return PodInterface(
        mac=link.mac,
        mtu=link.mtu,
        is_up=link.is_up,
        carrier=link.carrier,
        addresses=frozenset().union(*by_state.values()),
        duplicates=frozenset(by_state[AddressState.DUPLICATE]),
        unusable=frozenset(by_state[AddressState.TENTATIVE]),
        unverified=frozenset(by_state[AddressState.OPTIMISTIC]),
        max_tx_rate_mbps=qdisc.mbps if qdisc else 0,
        xdp=link.xdp,
    )


def _ask_for_oneself(link: Link, address: ipaddress.IPv4Address, rtnl: Rtnl) -> None:
    """Have the kernel solicit a neighbour with the link's own address, and delete the entry again.

    That is an ARP announcement (RFC 5227, section 3): a request to all with the address as sender and target.
    """
    operation = f"{link.name}: announce {address}"
    solicit(rtnl.socket, link.index, address, operation)
    forget(rtnl.socket, link.index, address, operation)


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


def _add(address: Address, flags: int, link: Link, rtnl: Rtnl, operation: str) -> None:
    try:
        rtnl.add_address(link.index, address, operation, flags)
    except NetlinkError as error:
        if address.version == 6 and error.errno in _WITHOUT_IPV6:
            msg = f"{operation}: IPv6 is disabled there (net.ipv6.conf.{link.name}.disable_ipv6)"
            raise KernelError(msg, details=str(error)) from error
        if address.version == 6 and link.mtu < _IPV6_MIN_MTU:
            msg = f"{operation}: IPv6 needs an MTU of {_IPV6_MIN_MTU} bytes, it has {link.mtu}"
            raise KernelError(msg, details=str(error)) from error
        raise


def _let_be_optimistic(ifname: str, namespace: int) -> None:
    """Enable IFA_F_OPTIMISTIC; some kernels are built without it, and /proc/sys may be read-only.

    The settings there are those of the reader's namespace (`net/sysctl_net.c`).
    """
    with entered(namespace), suppress(OSError):
        for setting in ("optimistic_dad", "use_optimistic"):
            (_SETTINGS / ifname / setting).write_text("1")


def _wait_for_answers(milliseconds: int, link: Link, rtnl: Rtnl) -> None:
    """Set the time for neighbours to answer; without IPv6 there is no such setting."""
    with suppress(NetlinkError):
        set_ipv6_retransmission(rtnl.socket, link.index, milliseconds, link.name)


class CapAbility:
    """Support for caps in this kernel, checked until found: its module may be loaded later."""

    def __init__(self, socket: NetlinkSocket) -> None:
        """Use this socket."""
        self._socket = socket
        self._can = False

    def shown_in(self, hardware: Hardware) -> Hardware:
        """Return the hardware with software caps removed when the kernel does not support them."""
        if not self._can:
            self._can = _can(self._socket)
        return hardware if self._can else without_software_caps(hardware)


def _can(socket: NetlinkSocket) -> bool:
    """Report support for caps; True when unknown, because an ADD with a cap then fails with the reason."""
    try:
        return is_supported(socket)
    except KernelError:
        return True


def cap_interface(step: CapInterface, namespaces: Namespaces) -> None:
    """Apply the step in its namespace; without a limit, a missing interface or namespace needs no change."""
    if step.max_tx_rate_mbps:
        with namespaces.existing(step.netns) as namespace, Rtnl(namespace) as rtnl:
            _limit(link_of(step, rtnl), step, rtnl)
        return
    with namespaces.opened(step.netns) as found:
        if found is not None:
            _free(step, found)


def _free(step: CapInterface, namespace: int) -> None:
    with Rtnl(namespace) as rtnl:
        link = rtnl.link(step.ifname)
        if link is not None:
            _limit(link, step, rtnl)


def _limit(link: Link, step: CapInterface, rtnl: Rtnl) -> None:
    operation = f"interface {step.ifname} in {step.netns.path}: {step.max_tx_rate_mbps} Mb/s"
    limit(rtnl.socket, link.index, step.max_tx_rate_mbps, operation)
