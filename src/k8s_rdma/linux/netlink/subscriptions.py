"""Subscriptions to the kernel's messages about changes, and the state that each makes stale.

Source: rtnetlink(7) RTNLGRP_LINK, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR,
Linux `lib/kobject_uevent.c` (group 1 is the kernel's own, 2 is udev's),
`include/uapi/rdma/rdma_netlink.h` (RDMA_NL_GROUP_NOTIFY since 6.12).
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from k8s_rdma.linux.netlink.routes import counts
from k8s_rdma.linux.netlink.socket import KOBJECT_UEVENT, RDMA, ROUTE

_LINK_GROUP, _IPV4_ADDRESS_GROUP, _IPV6_ADDRESS_GROUP = 1, 5, 9
_UEVENT_GROUP, _NOTIFY_GROUP = 1, 4
_MESSAGE_AND_LINK = struct.Struct("=16x4xi")  # nlmsghdr, ifinfomsg up to its index
_MESSAGE_AND_SCOPE = struct.Struct("=16x3xB")  # nlmsghdr, ifaddrmsg up to its scope
_UEVENT_BYTES = 8192
_SO_RCVBUFFORCE = 33

_TOKEN_BUCKET = b"/module/sch_tbf"

_OF_RDMA_DEVICES = frozenset({b"pci", b"infiniband", b"infiniband_verbs", b"infiniband_mad", b"misc"})


@dataclass(frozen=True, slots=True)
class Dirty:
    """Changes since the last call: the links of these indexes, or everything.

    everything: messages were lost, or a PCI function or a watched file was added, removed or changed.
    """

    links: frozenset[int] = frozenset()
    everything: bool = False


@dataclass(slots=True)
class Gathering:
    """Changes accumulated since the last `drain`."""

    links: set[int] = field(default_factory=set)
    everything: bool = False

    def drain(self) -> Dirty:
        """Return the accumulated changes and reset them."""
        dirty = Dirty(frozenset(self.links), self.everything)
        self.links.clear()
        self.everything = False
        return dirty


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """Groups of a netlink family.

    read: records a message; returns whether it is relevant.
    size: bytes of a message that it reads; the kernel drops the rest.
    optional: whether to continue where the kernel lacks the family or reserves it for root.
    """

    family: int
    groups: tuple[int, ...]
    read: Callable[[bytes, Gathering], bool]
    size: int
    optional: bool = False

    def open(self, queue_bytes: int) -> socket.socket | None:
        """Open a non-blocking socket that receives its messages in the calling thread's namespace."""
        try:
            opened = socket.socket(
                socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, self.family
            )
        except OSError:
            if self.optional:
                return None
            raise
        try:
            _make_room(opened, queue_bytes)
            opened.bind((0, sum(1 << group - 1 for group in self.groups)))
        except OSError as error:
            opened.close()
            if self.optional and error.errno == errno.EPERM:
                return None
            raise
        return opened


def _make_room(opened: socket.socket, queue_bytes: int) -> None:
    try:
        opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, queue_bytes)
    except PermissionError:  # without CAP_NET_ADMIN up to net.core.rmem_max
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, queue_bytes)


def _link(message: bytes, gathering: Gathering) -> bool:
    """Record that a link, its state or carrier, or the settings of its VFs changed."""
    gathering.links.add(_MESSAGE_AND_LINK.unpack_from(message)[0])
    return True


def _address(message: bytes, _gathering: Gathering) -> bool:
    """Report a changed address as relevant; links and settings of VFs stay valid."""
    return counts(_MESSAGE_AND_SCOPE.unpack_from(message)[0])


def _uevent(message: bytes, gathering: Gathering) -> bool:
    """Record a uevent: `ACTION@DEVPATH` and `KEY=value`s, each ended by NUL."""
    values = dict(line.split(b"=", 1) for line in message.split(b"\0") if b"=" in line)
    match values.get(b"SUBSYSTEM"):
        case b"net":
            gathering.links.add(int(values.get(b"IFINDEX", b"0")))
        case b"pci":
            gathering.everything = True
        case b"module" if values.get(b"DEVPATH") == _TOKEN_BUCKET:
            pass  # from now on caps can be kept by software
        case b"infiniband":
            pass  # for its sake no link and no VF's settings are other than they were
        case _:
            return False
    return True


def _rdma(_message: bytes, _gathering: Gathering) -> bool:
    """Report a changed RDMA device or netdev of its ports as relevant, as with uevents of them."""
    return True


def _device(message: bytes, gathering: Gathering) -> bool:
    """Record a uevent of RDMA devices; those of links arrive through another family."""
    of_interest = any(
        line == b"SUBSYSTEM=" + subsystem for line in message.split(b"\0") for subsystem in _OF_RDMA_DEVICES
    )
    gathering.everything |= of_interest
    return of_interest


def _rdma_device(_message: bytes, gathering: Gathering) -> bool:
    gathering.everything = True
    return True


LINKS = Subscription(family=ROUTE, groups=(_LINK_GROUP,), read=_link, size=_MESSAGE_AND_LINK.size)


ADDRESSES = Subscription(
    family=ROUTE,
    groups=(_IPV4_ADDRESS_GROUP, _IPV6_ADDRESS_GROUP),
    read=_address,
    size=_MESSAGE_AND_SCOPE.size,
)


UEVENTS = Subscription(family=KOBJECT_UEVENT, groups=(_UEVENT_GROUP,), read=_uevent, size=_UEVENT_BYTES)


RDMA_EVENTS = Subscription(family=RDMA, groups=(_NOTIFY_GROUP,), read=_rdma, size=1, optional=True)
"""Includes ports that got or lost their netdev; without it, uevents report added and removed RDMA devices."""


EVERYTHING = (LINKS, ADDRESSES, UEVENTS, RDMA_EVENTS)


DEVICE_UEVENTS = Subscription(
    family=KOBJECT_UEVENT, groups=(_UEVENT_GROUP,), read=_device, size=_UEVENT_BYTES
)


DEVICE_RDMA_EVENTS = replace(RDMA_EVENTS, read=_rdma_device)


RDMA_DEVICES = (LINKS, DEVICE_UEVENTS, DEVICE_RDMA_EVENTS)
"""Subscriptions for RDMA devices, their character devices and their netdevs."""
