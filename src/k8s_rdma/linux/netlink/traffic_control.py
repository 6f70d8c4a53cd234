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
    ECHO,
    EXCL,
    REPLACE,
    NetlinkError,
    attribute,
    attributes,
    nested,
    number,
    text,
    u32,
)

if TYPE_CHECKING:
    from k8s_rdma.linux.netlink.socket import NetlinkSocket

_NEWQDISC, _NEWCLASS, _DELCLASS, _GETCLASS, _NEWFILTER, _DELFILTER, _GETFILTER = 36, 40, 41, 42, 44, 45, 46
_TCMSG = struct.Struct("=B3xiIII")
_KIND, _OPTIONS, _XSTATS = 1, 2, 4

ROOT = 0xFFFFFFFF
INGRESS = 0xFFFFFFF1
INGRESS_FILTERS = 0xFFFF0000

_HTB_PARMS, _HTB_INIT, _HTB_RATE64, _HTB_CEIL64 = 1, 2, 6, 7
_HTB_GLOBAL = struct.Struct("=IIIII")
_RATE_SPEC = struct.Struct("=BBHhHI")
_HTB_TAIL = struct.Struct("=IIIII")
_HTB_XSTATS = struct.Struct("=IIIii")
_HTB_VERSION, _RATE_TO_QUANTUM = 3, 10
_ETHERNET = 1
"""TC_LINKLAYER_ETHERNET: spares the rate tables of old."""

_TICK_NS = 64
"""PSCHED_SHIFT 6, include/net/pkt_sched.h."""
_MAX_32 = 0xFFFFFFFF

_U32_CLASSID, _U32_HASH, _U32_LINK, _U32_DIVISOR, _U32_SEL, _U32_ACT, _U32_INDEV = 1, 2, 3, 4, 5, 7, 8
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


@dataclass(frozen=True, slots=True)
class ClassState:
    """What a class has: bytes a second, and the time that it may send or, below zero, has overdrawn."""

    rate: int
    ceil: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Source:
    """A source MAC and a number of its own, 1 to 4095, among those with the same last byte."""

    mac: str
    number: int

    @property
    def node(self) -> int:
        """The handle of the filter for it in its bucket of the table."""
        return _TABLE | int(self.mac[-2:], 16) << 12 | self.number


Place = tuple[int, int]
"""A filter's: the handle of what it is attached to, and its priority."""


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
            state = _class_state(body)
            if state is not None:
                found[handle] = state.rate, state.ceil
        return found

    def class_state(self, index: int, handle: int, what: str) -> ClassState | None:
        """One HTB class; None when it is not there.

        The kernel tells whoever listens to changes, and the one who asked only with ECHO
        (`net/sched/sch_api.c`, tclass_get_notify).
        """
        try:
            return _class_state(self._socket.get(_GETCLASS, _header(index, handle, 0), what, ECHO))
        except NetlinkError as error:
            if error.errno == errno.ENOENT:
                return None
            raise

    def redirect(self, index: int, to: int, what: str, *, priority: int, source: str = "") -> None:
        """Send what a link receives out of link `to`; with a source MAC what bears that alone.

        Filters of a lower priority see a frame first.
        """
        selector = _source_selector(source) if source else _any_selector()
        self._filter(index, (INGRESS_FILTERS, priority), selector, _redirect(to), what=what)

    def forget_redirects(self, index: int, what: str, *, priority: int) -> None:
        """Undo all `redirect` of that priority; holds when there is nothing to undo."""
        self._delete_filter(_header(index, 0, INGRESS_FILTERS, _info(priority)), what)

    def add_source_table(self, index: int, parent: int, priority: int, what: str) -> None:
        """A hash table of 256 buckets by a source MAC's last byte, for `classify_source`."""
        table = _header(index, _TABLE, parent, _info(priority)) + text(_KIND, "u32")
        self._socket.do(_NEWFILTER, table + nested(_OPTIONS, u32(_U32_DIVISOR, 256)), what, CREATE | EXCL)
        selector = _SELECTOR.pack(0, 0, 1, 0, 0, 0, _SOURCE_MAC_OFFSET + 4, b"\x00\xff\0\0")
        selector += _ANY_KEY
        self._filter(index, (parent, priority), selector, u32(_U32_LINK, _TABLE), what=what)

    def classify_source(self, index: int, place: Place, source: Source, handle: int, what: str) -> None:
        """Put what has this source MAC into class `handle`."""
        options = (u32(_U32_CLASSID, handle), u32(_U32_HASH, source.node & _BUCKET))
        selector = _source_selector(source.mac)
        self._filter(index, place, selector, *options, what=what, handle=source.node)

    def classified_sources(self, index: int, place: Place, what: str) -> dict[int, int]:
        """The nodes (`Source.node`) that `classify_source` made, and what class each leads to."""
        parent, priority = place
        found = {}
        for body in self._socket.dump(_GETFILTER, _header(index, 0, parent, _info(priority)), what):
            _, _, node, _, _ = _TCMSG.unpack_from(body)
            options = attributes(attributes(body, _TCMSG.size).get(_OPTIONS, b""))
            if node & _IN_TABLE == _TABLE and _U32_CLASSID in options:
                found[node] = number(options[_U32_CLASSID])
        return found

    def forget_source(self, index: int, place: Place, node: int, what: str) -> None:
        """Undo `classify_source`; holds when there is nothing to undo."""
        parent, priority = place
        self._delete_filter(_header(index, node, parent, _info(priority)), what)

    def classify_port(self, index: int, place: Place, port: str, handle: int, what: str) -> None:
        """Put what came in by link `port` into class `handle`, whatever it is."""
        options = (u32(_U32_CLASSID, handle), text(_U32_INDEV, port))
        self._filter(index, place, _any_selector(), *options, what=what)

    def forget_port(self, index: int, place: Place, what: str) -> None:
        """Undo `classify_port`; holds when there is nothing to undo."""
        parent, priority = place
        self._delete_filter(_header(index, 0, parent, _info(priority)), what)

    def _delete_filter(self, header: bytes, what: str) -> None:
        try:
            self._socket.do(_DELFILTER, header + text(_KIND, "u32"), what)
        except NetlinkError as error:
            if error.errno != errno.ENOENT:
                raise

    def _add_qdisc(self, index: int, place: tuple[int, int], kind: str, options: bytes, what: str) -> None:
        body = _header(index, *place) + text(_KIND, kind)
        if options:
            body += nested(_OPTIONS, options)
        self._socket.do(_NEWQDISC, body, what, CREATE | REPLACE)

    def _filter(
        self, index: int, place: Place, selector: bytes, *options: bytes, what: str, handle: int = 0
    ) -> None:
        """A u32 filter at (parent, priority)."""
        parent, priority = place
        body = _header(index, handle, parent, _info(priority)) + text(_KIND, "u32")
        body += nested(_OPTIONS, attribute(_U32_SEL, selector), *options)
        self._socket.do(_NEWFILTER, body, what, CREATE | EXCL)


_TABLE = 0x00100000
"""The first u32 hash table that is not the root one."""

_BUCKET, _IN_TABLE = 0xFFFFF000, 0xFFF00000
"""The parts of a u32 filter's handle that name table and bucket, and the table alone."""


def _header(index: int, handle: int, parent: int, info: int = 0) -> bytes:
    return _TCMSG.pack(0, index, handle, parent, info)


def _info(priority: int) -> int:
    return priority << 16 | _ANY_PROTOCOL


def _ticks(burst: int, rate: int) -> int:
    """How long `burst` bytes take at `rate` bytes a second, in the kernel's ticks."""
    return min(_MAX_32, max(1, burst * 1_000_000_000 // rate // _TICK_NS))


def _rate_spec(rate: int) -> bytes:
    return _RATE_SPEC.pack(0, _ETHERNET, 0, 0, 0, min(rate, _MAX_32))


def _class_state(body: bytes) -> ClassState | None:
    """None for a class of another kind than HTB's."""
    found = attributes(body, _TCMSG.size)
    options = attributes(found.get(_OPTIONS, b""))
    if _HTB_PARMS not in options:
        return None
    tokens = _HTB_XSTATS.unpack_from(found[_XSTATS])[3] if _XSTATS in found else 0
    return ClassState(*_rates(options), tokens)


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
    return _SELECTOR.pack(_U32_TERMINAL, 0, 1, 0, 0, 0, 0, bytes(4)) + _ANY_KEY


def _key(value: int, mask: int, offset: int) -> bytes:
    return _KEY.pack(mask.to_bytes(4, "big"), value.to_bytes(4, "big"), offset, 0)


_ANY_KEY = _key(0, 0, _SOURCE_MAC_OFFSET)
"""Matches every frame: also where it matches no bit, it must lie in the frame, which may have no payload."""


def _redirect(to: int) -> bytes:
    parameters = _MIRRED.pack(0, 0, _STOLEN, 0, 0, _EGRESS_REDIRECT, to)
    options = nested(_ACT_OPTIONS, attribute(_MIRRED_PARMS, parameters))
    return nested(_U32_ACT, nested(1, text(_ACT_KIND, "mirred"), options))
