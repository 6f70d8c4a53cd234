"""Traffic control over netlink: the few qdiscs, classes and filters that virtual functions are made of.

Source: tc(8), Linux `include/uapi/linux/{pkt_sched,pkt_cls}.h` and `tc_act/tc_mirred.h`, 6.18.
Handles are `major << 16 | minor`, as `tc` prints them in hexadecimal.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.linux.netlink.socket import (
    CREATE,
    EXCL,
    REPLACE,
    NetlinkError,
    attribute,
    attributes,
    nested,
    text,
    u32,
)

if TYPE_CHECKING:
    from k8s_rdma.linux.netlink.socket import NetlinkSocket

_NEWQDISC, _NEWCLASS, _DELCLASS, _GETCLASS, _NEWFILTER, _DELFILTER = 36, 40, 41, 42, 44, 45
_TCMSG = struct.Struct("=B3xiIII")
_KIND, _OPTIONS = 1, 2

ROOT = 0xFFFFFFFF
INGRESS = 0xFFFFFFF1
INGRESS_FILTERS = 0xFFFF0000

_HTB_PARMS, _HTB_INIT, _HTB_RATE64, _HTB_CEIL64 = 1, 2, 6, 7
_HTB_GLOBAL = struct.Struct("=IIIII")
_RATE_SPEC = struct.Struct("=BBHhHI")
_HTB_TAIL = struct.Struct("=IIIII")
_HTB_VERSION, _RATE_TO_QUANTUM = 3, 10
_ETHERNET = 1
"""TC_LINKLAYER_ETHERNET: spares the rate tables of old."""

_TICK_NS = 64
"""PSCHED_SHIFT 6, include/net/pkt_sched.h."""
_MAX_32 = 0xFFFFFFFF

_U32_CLASSID, _U32_HASH, _U32_LINK, _U32_DIVISOR, _U32_SEL, _U32_ACT = 1, 2, 3, 4, 5, 7
_U32_TERMINAL = 1
_SELECTOR = struct.Struct("=BBBxHHhh4s")
_KEY = struct.Struct("=4s4sii")
_ANY_PROTOCOL = 0x0300
"""ETH_P_ALL in network byte order."""

_ACT_KIND, _ACT_OPTIONS, _MIRRED_PARMS = 1, 2, 2
_MIRRED = struct.Struct("=IIiiiiI")
_STOLEN, _EGRESS_REDIRECT = 4, 1

_SOURCE_MAC_OFFSET = -8
"""From the network header back: 2 bytes of protocol, 6 of source MAC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HtbClass:
    """A class: what it is always given and what it may take, bytes a second; the others in bytes."""

    handle: int
    parent: int
    rate: int
    ceil: int
    burst: int
    quantum: int


class TrafficControl:
    """Qdiscs, classes and filters of one network namespace. Every failure is a `NetlinkError`."""

    def __init__(self, socket: NetlinkSocket) -> None:
        """Ask by this socket."""
        self._socket = socket

    def add_htb(self, index: int, handle: int, default: int, what: str) -> None:
        """HTB as a link's root qdisc; what no filter classifies goes to class `default` (a minor)."""
        init = _HTB_GLOBAL.pack(_HTB_VERSION, _RATE_TO_QUANTUM, default, 0, 0)
        self._add_qdisc(index, (handle, ROOT), "htb", attribute(_HTB_INIT, init), what)

    def add_fifo(self, index: int, parent: int, limit: int, what: str, *, packets: bool = False) -> None:
        """A queue of so many bytes (or packets) below `parent`; of none at all it drops everything."""
        kind = "pfifo" if packets else "bfifo"
        body = _header(index, 0, parent) + text(_KIND, kind) + u32(_OPTIONS, limit)
        self._socket.do(_NEWQDISC, body, what, CREATE | REPLACE)

    def add_ingress(self, index: int, what: str) -> None:
        """Where filters see what a link receives."""
        self._add_qdisc(index, (INGRESS_FILTERS, INGRESS), "ingress", b"", what)

    def set_class(self, index: int, each: HtbClass, what: str) -> None:
        """Make an HTB class, or change the one of that handle."""
        tail = _HTB_TAIL.pack(
            _ticks(each.burst, each.rate), _ticks(each.burst, each.ceil), each.quantum, 0, 0
        )
        parameters = _rate_spec(each.rate) + _rate_spec(each.ceil) + tail
        options = [attribute(_HTB_PARMS, parameters)]
        if each.rate > _MAX_32:
            options.append(attribute(_HTB_RATE64, struct.pack("=Q", each.rate)))
        if each.ceil > _MAX_32:
            options.append(attribute(_HTB_CEIL64, struct.pack("=Q", each.ceil)))
        body = _header(index, each.handle, each.parent) + text(_KIND, "htb") + nested(_OPTIONS, *options)
        self._socket.do(_NEWCLASS, body, what, CREATE)

    def delete_class(self, index: int, handle: int, what: str) -> None:
        """Take an HTB class away with its queue; refused while a filter points to it."""
        self._socket.do(_DELCLASS, _header(index, handle, 0), what)

    def class_rates(self, index: int, what: str) -> dict[int, tuple[int, int]]:
        """Rate and ceil of every HTB class of a link, bytes per second, by handle."""
        found = {}
        for body in self._socket.dump(_GETCLASS, _header(index, 0, 0), what):
            _, _, handle, _, _ = _TCMSG.unpack_from(body)
            options = attributes(attributes(body, _TCMSG.size).get(_OPTIONS, b""))
            if _HTB_PARMS in options:
                found[handle] = _rates(options)
        return found

    def redirect_source(self, index: int, mac: str, to: int, what: str) -> None:
        """Send what a link receives from this source MAC out of link `to`."""
        self._filter(index, (INGRESS_FILTERS, 1), _source_selector(mac), _redirect(to), what=what)

    def redirect_rest(self, index: int, to: int, what: str) -> None:
        """Send what no filter before this one took out of link `to`."""
        self._filter(index, (INGRESS_FILTERS, 2), _any_selector(), _redirect(to), what=what)

    def add_source_table(self, index: int, parent: int, what: str) -> None:
        """A hash table of 256 buckets by a source MAC's last byte, for `classify_source`."""
        table = _header(index, _TABLE, parent, _info(1)) + text(_KIND, "u32")
        self._socket.do(_NEWFILTER, table + nested(_OPTIONS, u32(_U32_DIVISOR, 256)), what, CREATE | EXCL)
        selector = _SELECTOR.pack(0, 0, 1, 0, 0, 0, _SOURCE_MAC_OFFSET + 4, b"\x00\xff\0\0") + _key(0, 0, 0)
        self._filter(index, (parent, 1), selector, u32(_U32_LINK, _TABLE), what=what)

    def classify_source(self, index: int, parent: int, mac: str, handle: int, what: str) -> None:
        """Put what has this source MAC into class `handle`."""
        node = _node(mac)
        options = (u32(_U32_CLASSID, handle), u32(_U32_HASH, node & _BUCKET))
        self._filter(index, (parent, 1), _source_selector(mac), *options, what=what, handle=node)

    def forget_source(self, index: int, parent: int, mac: str, what: str) -> None:
        """Undo `classify_source`; holds when there is nothing to undo."""
        body = _header(index, _node(mac), parent, _info(1)) + text(_KIND, "u32")
        try:
            self._socket.do(_DELFILTER, body, what)
        except NetlinkError as error:
            if error.errno != errno.ENOENT:
                raise

    def _add_qdisc(self, index: int, place: tuple[int, int], kind: str, options: bytes, what: str) -> None:
        body = _header(index, *place) + text(_KIND, kind)
        if options:
            body += nested(_OPTIONS, options)
        self._socket.do(_NEWQDISC, body, what, CREATE | REPLACE)

    def _filter(
        self, index: int, place: tuple[int, int], selector: bytes, *options: bytes, what: str, handle: int = 0
    ) -> None:
        """A u32 filter at (parent, priority)."""
        parent, priority = place
        body = _header(index, handle, parent, _info(priority)) + text(_KIND, "u32")
        body += nested(_OPTIONS, attribute(_U32_SEL, selector), *options)
        self._socket.do(_NEWFILTER, body, what, CREATE | EXCL)


_TABLE = 0x00100000
"""The first u32 hash table that is not the root one."""

_BUCKET = 0xFFFFF000
"""The part of a u32 filter's handle that names table and bucket; the rest is its place in there."""


def _node(mac: str) -> int:
    """The handle of the filter for a source MAC in its bucket of the table."""
    return _TABLE | int(mac[-2:], 16) << 12 | 1


def _header(index: int, handle: int, parent: int, info: int = 0) -> bytes:
    return _TCMSG.pack(0, index, handle, parent, info)


def _info(priority: int) -> int:
    return priority << 16 | _ANY_PROTOCOL


def _ticks(burst: int, rate: int) -> int:
    """How long `burst` bytes take at `rate` bytes a second, in the kernel's ticks."""
    return min(_MAX_32, max(1, burst * 1_000_000_000 // rate // _TICK_NS))


def _rate_spec(rate: int) -> bytes:
    return _RATE_SPEC.pack(0, _ETHERNET, 0, 0, 0, min(rate, _MAX_32))


def _rates(options: dict[int, bytes]) -> tuple[int, int]:
    parameters = options[_HTB_PARMS]
    rate, ceil = (_RATE_SPEC.unpack_from(parameters, offset)[5] for offset in (0, _RATE_SPEC.size))
    wide = {
        kind: struct.unpack("=Q", options[kind])[0] for kind in (_HTB_RATE64, _HTB_CEIL64) if kind in options
    }
    return wide.get(_HTB_RATE64, rate), wide.get(_HTB_CEIL64, ceil)


def _source_selector(mac: str) -> bytes:
    """Two keys of four bytes: the last two bytes of the second one are the protocol's."""
    octets = bytes.fromhex(mac.replace(":", ""))
    first, second = int.from_bytes(octets[:4], "big"), int.from_bytes(octets[4:] + b"\0\0", "big")
    keys = _key(first, 0xFFFFFFFF, _SOURCE_MAC_OFFSET) + _key(second, 0xFFFF0000, _SOURCE_MAC_OFFSET + 4)
    return _SELECTOR.pack(_U32_TERMINAL, 0, 2, 0, 0, 0, 0, bytes(4)) + keys


def _any_selector() -> bytes:
    return _SELECTOR.pack(_U32_TERMINAL, 0, 1, 0, 0, 0, 0, bytes(4)) + _key(0, 0, 0)


def _key(value: int, mask: int, offset: int) -> bytes:
    return _KEY.pack(mask.to_bytes(4, "big"), value.to_bytes(4, "big"), offset, 0)


def _redirect(to: int) -> bytes:
    parameters = _MIRRED.pack(0, 0, _STOLEN, 0, 0, _EGRESS_REDIRECT, to)
    options = nested(_ACT_OPTIONS, attribute(_MIRRED_PARMS, parameters))
    return nested(_U32_ACT, nested(1, text(_ACT_KIND, "mirred"), options))
