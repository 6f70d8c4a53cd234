"""Settings of a netdev's driver, by the ethtool family of generic netlink and the ioctls that it lacks.

Values are digests of the kernel's answers, because only a change counts. Left out are parts that
follow the link, such as the FEC mode in use.

Source: Linux `include/uapi/linux/{ethtool,ethtool_netlink,net_tstamp}.h`, `net/ethtool/netlink.c`,
`net/ethtool/ioctl.c`, 6.18.
"""

from __future__ import annotations

import errno
import struct
from functools import partial
from typing import TYPE_CHECKING

from k8s_rdma.linux.netlink.generic import find_family
from k8s_rdma.linux.netlink.link_attributes import digest
from k8s_rdma.linux.netlink.socket import (
    GENERIC,
    NetlinkError,
    NetlinkSocket,
    SocketClient,
    attribute,
    attributes,
    connect,
    each_attribute,
    nested,
    u32,
)
from k8s_rdma.linux.sysfs import error_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_HEADER = struct.Struct("=BBxx")
_REQUEST_HEADER, _DEV_INDEX, _HEADER_FLAGS, _COMPACT_BITSETS = 1, 1, 3, 1
_FEATURES_GET, _FEATURES_SET = 11, 12
_WANTED = 3
_BITSET_SIZE, _BITSET_VALUE, _BITSET_MASK = 2, 4, 5

_MESSAGES: Mapping[str, tuple[int, frozenset[int]]] = {
    "message level": (7, frozenset()),
    "wake-on-LAN": (9, frozenset()),
    "private flags": (13, frozenset()),
    "ring sizes": (15, frozenset()),
    "channels": (17, frozenset()),
    "interrupt coalescing": (19, frozenset()),
    "pause frames": (21, frozenset({2, 3, 4})),
    "energy-efficient Ethernet": (23, frozenset({2, 5, 6, 7})),
    "FEC": (29, frozenset({2, 3})),
    "module power": (34, frozenset({2})),
    "receive side scaling": (38, frozenset()),
    "time stamping": (46, frozenset()),
}
"""Messages that read settings, and the attributes that count; no attributes mean all."""

FEATURES = "features"


class EthtoolSettings(SocketClient[NetlinkSocket]):
    """Settings of netdevs of the calling thread's network namespace. Failures are `NetlinkError`s."""

    def __init__(self, socket: NetlinkSocket | None = None) -> None:
        """Use this socket, or a new one."""
        self.socket = socket or NetlinkSocket(connect(GENERIC))
        self._family: int | None = None

    def read(self, index: int) -> dict[str, str]:
        """Return the settings that the driver has; one that it refuses to tell is the error's name."""
        family = self._find_family()
        if family is None:
            return {}
        found = {}
        device = _device(index)
        queries = [_HEADER.pack(command, 1) + device for command, _ in _READINGS.values()]
        answers = self.socket.get_each(family, queries, _driver_of(index))
        for (name, (_, shown)), answer in zip(_READINGS.items(), answers, strict=True):
            if isinstance(answer, bytes):
                found[name] = shown(answer)
            elif answer == errno.ENODEV:
                raise NetlinkError(_driver_of(index), answer)
            elif answer != errno.EOPNOTSUPP:
                found[name] = error_name(answer)
        return found

    def want_features(self, index: int, features: str, operation: str) -> None:
        """Have the driver use the features that `read` returned, unless those are an error's name."""
        family, value = self._find_family(), _bits(features)
        if family is None or value is None:
            return
        query = _HEADER.pack(_FEATURES_GET, 1) + _device(index)
        answer = self.socket.get(family, query, _driver_of(index))
        now = _wanted_features(answer)
        changed = bytes(byte ^ expected for byte, expected in zip(now, value, strict=False))
        if not any(changed):
            return
        bitset = (
            u32(_BITSET_SIZE, 8 * len(changed)),
            attribute(_BITSET_VALUE, value[: len(changed)]),
            attribute(_BITSET_MASK, changed),
        )
        body = _HEADER.pack(_FEATURES_SET, 1) + _device(index) + nested(_WANTED, *bitset)
        self.socket.request(family, body, operation)

    def _find_family(self) -> int | None:
        """Return the family's number, which exists since Linux 5.6."""
        if self._family is None:
            self._family = find_family(self.socket, "ethtool")
        return self._family


def _driver_of(index: int) -> str:
    """Return the beginning of an error."""
    return f"driver of link #{index}"


def _device(index: int) -> bytes:
    return nested(_REQUEST_HEADER, u32(_DEV_INDEX, index), u32(_HEADER_FLAGS, _COMPACT_BITSETS))


def _digest(counted: frozenset[int], body: bytes) -> str:
    """Return the digest of an answer's attributes except its header."""
    found = each_attribute(body, _HEADER.size)
    return digest(
        b"".join(
            attribute(kind, value)
            for kind, value in found
            if kind != _REQUEST_HEADER and (not counted or kind in counted)
        )
    )


def _bits(features: str) -> bytes | None:
    try:
        return bytes.fromhex(features)
    except ValueError:
        return None


def _wanted_features(body: bytes) -> bytes:
    return attributes(attributes(body, _HEADER.size).get(_WANTED, b"")).get(_BITSET_VALUE, b"")


_READINGS: Mapping[str, tuple[int, Callable[[bytes], str]]] = {
    name: (command, partial(_digest, counted)) for name, (command, counted) in _MESSAGES.items()
} | {FEATURES: (_FEATURES_GET, lambda answer: _wanted_features(answer).hex())}
"""Messages that read settings, and the text of each one's answer."""
