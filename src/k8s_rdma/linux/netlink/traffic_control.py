"""Traffic control over netlink: qdiscs, classes, filters of virtual functions, token buckets for caps.

Handles are `major << 16 | minor`, as `tc` prints them in hexadecimal. A token bucket (TBF) as a netdev's root
counts whole frames, without the overhead on the wire, of all queues of the netdev together: as the root it
replaces `mq`. Below it is a plain queue, which the owner of the netdev may replace.

TBF was chosen over HTB, whose one class would do the same with two objects to read back, and over fq, whose
rate applies to each flow. There is no active queue management: CoDel drops packets of flows that do not slow
down, which soft-RoCE does not, since its only reaction is to retransmit everything from the lost packet on
(go-back-N).

Source: tc(8), tc-tbf(8), Linux `include/uapi/linux/{pkt_sched,pkt_cls}.h`, `tc_act/tc_mirred.h`,
`net/sched/sch_tbf.c`, `net/sched/sch_api.c`, 6.18.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass
from functools import lru_cache

from k8s_rdma.core.types import BYTES_PER_MEGABIT
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.socket import (
    CREATE,
    ECHO,
    EXCL,
    REPLACE,
    NetlinkError,
    NetlinkSocket,
    attribute,
    attributes,
    nested,
    number,
    string,
    text,
    u32,
)

HANDLE = 0x7264_0000
"""Handle that marks our qdisc: `tc qdisc show` prints `tbf 7264:`. The kernel assigns 8000: and above."""


SLACK_PER_S = 250
"""A bucket is full after 4 ms: as late may the timer be that lets the next frame go (one tick at 250 Hz,
without high-resolution timers, or on a busy virtual machine) before any of the rate is lost."""

LEAST_BURST = (64 << 10) + 64
"""Bytes: a frame of any MTU. TBF drops what is larger than its bucket, and splits what TCP hands down (GSO,
64 KiB and some headers) if that is; TCP does so only at rates where 4 ms are more than that."""

QUEUE_PER_S = 20
"""A queue holds at most 50 ms of the rate: less than the usual 67 ms (4.096 us * 2^14) after which a queue
pair retransmits unacknowledged packets and all that follow."""

LEAST_QUEUE, MOST_QUEUE = 512 << 10, 64 << 20
"""Bytes. Senders of the same kernel wait by themselves rather than fill it: TCP with a few packets of a
connection, soft-RoCE with 64 of a queue pair (`RXE_INFLIGHT_SKBS_PER_QP_HIGH`; 270 KiB with the largest)."""

_NEWQDISC, _DELQDISC, _GETQDISC = 36, 37, 38
_NEWCLASS, _DELCLASS, _GETCLASS, _NEWFILTER, _DELFILTER, _GETFILTER = 40, 41, 42, 44, 45, 46
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
"""The length of a tick: PSCHED_SHIFT 6, include/net/pkt_sched.h."""
TICKS_PER_S = 1_000_000_000 // _TICK_NS
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
"""Offset from the network header back: 2 bytes of protocol, 6 of source MAC."""

_STAB = 8
_TBF_PARMS, _TBF_RATE64, _TBF_BURST = 1, 4, 6
_TBF_PARAMETERS = struct.Struct("=BBHhHI12xIII")
"""struct tc_tbf_qopt: rate, no peak rate, limit in bytes, bucket and peak bucket in ticks."""
_UNKNOWN = (errno.ENOENT, errno.EOPNOTSUPP)
"""Error for a queueing discipline that the kernel lacks, or on a kernel without any."""
_LOOPBACK = 1
"""Index of the loopback in every namespace (LOOPBACK_IFINDEX, include/net/flow.h)."""

Place = tuple[int, int]
"""Place of a filter: the handle of its parent, and its priority."""

_TABLE = 0x00100000
"""The first u32 hash table that is not the root one."""

_BUCKET, _IN_TABLE = 0xFFFFF000, 0xFFF00000
"""The parts of a u32 filter's handle that name table and bucket, and the table alone."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Bytes a second; bytes that may be sent at once; bytes that may wait."""

    rate: int
    burst: int
    queue: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RootQdisc:
    """A link's root queueing discipline. bucket: of one with our handle whose parameters nothing weakens.

    handle: 0 for one that the kernel chose.
    """

    kind: str
    handle: int
    bucket: Bucket | None = None

    @property
    def is_ours(self) -> bool:
        """Report whether this software created it, even if it was changed since."""
        return (self.kind, self.handle) == ("tbf", HANDLE)

    @property
    def mbps(self) -> int:
        """Limit in whole Mb/s, rounded up; 0 for an unmanaged queueing discipline."""
        return _mbps(self.bucket.rate) if self.bucket else 0


def bucket_for(mbps: int) -> Bucket:
    """Return the bucket for a rate in Mb/s, at least 1."""
    rate = mbps * BYTES_PER_MEGABIT
    return Bucket(
        rate=rate,
        burst=min(max(LEAST_BURST, rate // SLACK_PER_S), _MAX_32),
        queue=min(max(LEAST_QUEUE, rate // QUEUE_PER_S), MOST_QUEUE),
    )


def root_qdiscs(socket: NetlinkSocket, operation: str) -> dict[int, RootQdisc]:
    """Return the root qdiscs of a namespace by link index; links without one (never up) are left out.

    Empty on a kernel without traffic control.
    """
    try:
        bodies = socket.dump(_GETQDISC, _root_header(0), f"{operation}: queueing disciplines")
    except NetlinkError as error:
        if error.errno == errno.EOPNOTSUPP:
            return {}
        raise
    found = {}
    for body in bodies:
        _, index, handle, parent, _ = _TCMSG.unpack_from(body)
        if parent == ROOT:
            found[index] = _root_qdisc(handle, attributes(body, _TCMSG.size))
    return found


def is_supported(socket: NetlinkSocket, kind: str = "tbf") -> bool:
    """Report whether the kernel has TBF, or a module of it that it loads. Changes nothing.

    The request creates one without parameters on the loopback, which the kernel refuses once it has found the
    code (`tbf_init`). KernelError when that remains unknown, as without CAP_NET_ADMIN.
    """
    try:
        body = _root_header(_LOOPBACK) + text(_KIND, kind)
        socket.request(_NEWQDISC, body, f"queueing discipline {kind}", CREATE | REPLACE)
    except NetlinkError as error:
        if error.errno in _UNKNOWN:
            return False
        if error.errno != errno.EINVAL:
            raise
    return True


def limit(socket: NetlinkSocket, index: int, mbps: int, operation: str) -> None:
    """Limit the traffic that a link sends, Mb/s; 0 removes our limit.

    KernelError when the limit is not in effect afterwards.

    A queueing discipline of others is replaced. A changed rate is changed in place and keeps waiting packets.
    """
    bucket = bucket_for(mbps) if mbps else None
    previous = root_qdiscs(socket, operation).get(index)
    if _holds(previous, bucket):
        return
    if previous is not None and previous.handle and not (bucket and previous.is_ours):
        # Also for a limit: a root of another kind would keep its parameters if it bore our handle.
        _delete(socket, index, operation)
    if bucket:
        _set(socket, index, bucket, operation)
    now = root_qdiscs(socket, operation).get(index)
    if not _holds(now, bucket):
        msg = f"{operation}: the kernel keeps {now} instead of {bucket}"
        raise KernelError(msg)


def _holds(found: RootQdisc | None, desired: Bucket | None) -> bool:
    if desired is None:
        return found is None or not found.is_ours
    return found is not None and found.bucket == desired


def _set(socket: NetlinkSocket, index: int, bucket: Bucket, operation: str) -> None:
    rate, ticks = min(bucket.rate, _MAX_32), _burst_ticks(bucket.burst, bucket.rate)
    options = [
        attribute(_TBF_PARMS, _TBF_PARAMETERS.pack(0, _ETHERNET, 0, 0, 0, rate, bucket.queue, ticks, 0)),
        u32(_TBF_BURST, bucket.burst),
    ]
    if bucket.rate > _MAX_32:
        options.append(attribute(_TBF_RATE64, struct.pack("=Q", bucket.rate)))
    body = _root_header(index, HANDLE) + text(_KIND, "tbf") + nested(_OPTIONS, *options)
    try:
        socket.request(_NEWQDISC, body, operation, CREATE | REPLACE)
    except NetlinkError as error:
        if error.errno in _UNKNOWN:
            msg = f"{operation}: the kernel has no token bucket filter; load its module sch_tbf"
            raise KernelError(msg, details=str(error)) from error
        raise


def _delete(socket: NetlinkSocket, index: int, operation: str) -> None:
    """Delete a link's root qdisc, so that the kernel chooses one; no change when it has that."""
    try:
        socket.request(_DELQDISC, _root_header(index), operation)
    except NetlinkError as error:
        if error.errno != errno.ENOENT:
            raise


def _root_qdisc(handle: int, found: dict[int, bytes]) -> RootQdisc:
    unmanaged = RootQdisc(kind=string(found.get(_KIND, b"")), handle=handle)
    if not unmanaged.is_ours or _STAB in found:  # a size table makes frames count for less than they are
        return unmanaged
    options = attributes(found[_OPTIONS])
    *_, rate, queue, ticks, _ = _TBF_PARAMETERS.unpack_from(options[_TBF_PARMS])
    rate = number(options[_TBF_RATE64]) if _TBF_RATE64 in options else rate
    burst = bucket_for(_mbps(rate)).burst
    if abs(ticks - _burst_ticks(burst, rate)) > ticks // 100 + 1:
        return unmanaged
    return RootQdisc(kind=unmanaged.kind, handle=handle, bucket=Bucket(rate, burst, queue))


def _mbps(rate: int) -> int:
    """Convert to Mb/s, rounded up, so that a rate slightly above a limit is not taken for the limit."""
    return -(-rate // BYTES_PER_MEGABIT)


def _burst_ticks(burst: int, rate: int) -> int:
    """Return the time that so many bytes take at a rate, as the kernel stores a bucket's size."""
    return min(_MAX_32, burst * 1_000_000_000 // max(1, rate) // _TICK_NS)


def _root_header(index: int, handle: int = 0) -> bytes:
    return _header(index, handle, ROOT if index else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HtbClass:
    """An HTB class: guaranteed rate and ceiling in bytes a second; the others in bytes."""

    handle: int
    parent: int
    rate: int
    ceil: int
    burst: int
    quantum: int


@dataclass(frozen=True, slots=True)
class ClassState:
    """State of a class: rates in bytes a second, and tokens as time in ticks, negative when overdrawn."""

    rate: int
    ceil: int
    tokens: int


@dataclass(frozen=True, slots=True)
class SourceMac:
    """A source MAC and a number of its own, 1 to 4095, among those with the same last byte."""

    mac: str
    number: int

    @property
    def node(self) -> int:
        """Return the handle of its filter in its bucket of the table."""
        return _TABLE | int(self.mac[-2:], 16) << 12 | self.number


class TrafficControl:
    """Qdiscs, classes and filters of one network namespace. Every failure is a `NetlinkError`."""

    def __init__(self, socket: NetlinkSocket) -> None:
        """Use this socket."""
        self._socket = socket

    def add_htb(self, index: int, handle: int, default: int, operation: str) -> None:
        """Add HTB as a link's root qdisc; unclassified traffic goes to class `default` (a minor)."""
        init = _HTB_GLOBAL.pack(_HTB_VERSION, _RATE_TO_QUANTUM, default, 0, 0)
        self._add_qdisc(index, (handle, ROOT), "htb", attribute(_HTB_INIT, init), operation)

    def add_fifo(self, index: int, parent: int, limit: int, operation: str, *, packets: bool = False) -> None:
        """Add a queue of so many bytes (or packets) below `parent`; one of size 0 drops everything."""
        kind = "pfifo" if packets else "bfifo"
        body = _header(index, 0, parent) + text(_KIND, kind) + u32(_OPTIONS, limit)
        self._socket.request(_NEWQDISC, body, operation, CREATE | REPLACE)

    def add_ingress(self, index: int, operation: str) -> None:
        """Add the ingress qdisc, where filters see the received traffic of a link."""
        self._add_qdisc(index, (INGRESS_FILTERS, INGRESS), "ingress", b"", operation)

    def set_class(self, index: int, htb_class: HtbClass, operation: str) -> None:
        """Create an HTB class, or change the one of that handle."""
        tail = _HTB_TAIL.pack(
            _ticks(htb_class.burst, htb_class.rate),
            _ticks(htb_class.burst, htb_class.ceil),
            htb_class.quantum,
            0,
            0,
        )
        parameters = _rate_spec(htb_class.rate) + _rate_spec(htb_class.ceil) + tail
        options = [attribute(_HTB_PARMS, parameters)]
        if htb_class.rate > _MAX_32:
            options.append(attribute(_HTB_RATE64, struct.pack("=Q", htb_class.rate)))
        if htb_class.ceil > _MAX_32:
            options.append(attribute(_HTB_CEIL64, struct.pack("=Q", htb_class.ceil)))
        body = (
            _header(index, htb_class.handle, htb_class.parent)
            + text(_KIND, "htb")
            + nested(_OPTIONS, *options)
        )
        self._socket.request(_NEWCLASS, body, operation, CREATE)

    def delete_class(self, index: int, handle: int, operation: str) -> None:
        """Delete an HTB class with its queue; refused while a filter points to it."""
        self._socket.request(_DELCLASS, _header(index, handle, 0), operation)

    def class_rates(self, index: int, operation: str) -> dict[int, tuple[int, int]]:
        """Return rate and ceil of every HTB class of a link, bytes per second, by handle."""
        found = {}
        for body in self._socket.dump(_GETCLASS, _header(index, 0, 0), operation):
            _, _, handle, _, _ = _TCMSG.unpack_from(body)
            rates = _rates(attributes(body, _TCMSG.size).get(_OPTIONS, b""))
            if rates is not None:
                found[handle] = rates
        return found

    def class_state(self, index: int, handle: int, operation: str) -> ClassState | None:
        """Return the state of one HTB class, if it exists.

        The kernel sends the answer to subscribers of changes, and to the requester only with ECHO
        (`net/sched/sch_api.c`, tclass_get_notify).
        """
        try:
            return _class_state(self._socket.get(_GETCLASS, _header(index, handle, 0), operation, ECHO))
        except NetlinkError as error:
            if error.errno == errno.ENOENT:
                return None
            raise

    def redirect(self, index: int, target: int, operation: str, *, priority: int, source: str = "") -> None:
        """Send received traffic of a link out of link `target`; with a source MAC only frames from that MAC.

        Filters of a lower priority see a frame first.
        """
        selector = _source_selector(source) if source else _any_selector()
        self._filter(index, (INGRESS_FILTERS, priority), selector, _redirect(target), operation=operation)

    def forget_redirects(self, index: int, operation: str, *, priority: int) -> None:
        """Undo all `redirect` of that priority, if any."""
        self._delete_filter(_header(index, 0, INGRESS_FILTERS, _info(priority)), operation)

    def add_source_table(self, index: int, parent: int, priority: int, operation: str) -> None:
        """Add a hash table of 256 buckets by a source MAC's last byte, for `classify_source`."""
        table = _header(index, _TABLE, parent, _info(priority)) + text(_KIND, "u32")
        self._socket.request(
            _NEWFILTER, table + nested(_OPTIONS, u32(_U32_DIVISOR, 256)), operation, CREATE | EXCL
        )
        selector = _SELECTOR.pack(0, 0, 1, 0, 0, 0, _SOURCE_MAC_OFFSET + 4, b"\x00\xff\0\0")
        selector += _ANY_KEY
        self._filter(index, (parent, priority), selector, u32(_U32_LINK, _TABLE), operation=operation)

    def classify_source(
        self, index: int, place: Place, source: SourceMac, handle: int, operation: str
    ) -> None:
        """Put frames from this source MAC into class `handle`."""
        options = (u32(_U32_CLASSID, handle), u32(_U32_HASH, source.node & _BUCKET))
        selector = _source_selector(source.mac)
        self._filter(index, place, selector, *options, operation=operation, handle=source.node)

    def classified_sources(self, index: int, place: Place, operation: str) -> dict[int, int]:
        """Return the nodes (`SourceMac.node`) that `classify_source` made, each with its class."""
        parent, priority = place
        found = {}
        for body in self._socket.dump(_GETFILTER, _header(index, 0, parent, _info(priority)), operation):
            _, _, node, _, _ = _TCMSG.unpack_from(body)
            options = attributes(attributes(body, _TCMSG.size).get(_OPTIONS, b""))
            if node & _IN_TABLE == _TABLE and _U32_CLASSID in options:
                found[node] = number(options[_U32_CLASSID])
        return found

    def forget_source(self, index: int, place: Place, node: int, operation: str) -> None:
        """Undo `classify_source`, if it was done."""
        parent, priority = place
        self._delete_filter(_header(index, node, parent, _info(priority)), operation)

    def classify_port(self, index: int, place: Place, port: str, handle: int, operation: str) -> None:
        """Put all frames that arrived by link `port` into class `handle`."""
        options = (u32(_U32_CLASSID, handle), text(_U32_INDEV, port))
        self._filter(index, place, _any_selector(), *options, operation=operation)

    def forget_port(self, index: int, place: Place, operation: str) -> None:
        """Undo `classify_port`, if it was done."""
        parent, priority = place
        self._delete_filter(_header(index, 0, parent, _info(priority)), operation)

    def _delete_filter(self, header: bytes, operation: str) -> None:
        try:
            self._socket.request(_DELFILTER, header + text(_KIND, "u32"), operation)
        except NetlinkError as error:
            if error.errno != errno.ENOENT:
                raise

    def _add_qdisc(
        self, index: int, place: tuple[int, int], kind: str, options: bytes, operation: str
    ) -> None:
        body = _header(index, *place) + text(_KIND, kind)
        if options:
            body += nested(_OPTIONS, options)
        self._socket.request(_NEWQDISC, body, operation, CREATE | REPLACE)

    def _filter(
        self, index: int, place: Place, selector: bytes, *options: bytes, operation: str, handle: int = 0
    ) -> None:
        """Add a u32 filter at (parent, priority)."""
        parent, priority = place
        body = _header(index, handle, parent, _info(priority)) + text(_KIND, "u32")
        body += nested(_OPTIONS, attribute(_U32_SEL, selector), *options)
        self._socket.request(_NEWFILTER, body, operation, CREATE | EXCL)


def _header(index: int, handle: int, parent: int, info: int = 0) -> bytes:
    return _TCMSG.pack(0, index, handle, parent, info)


def _info(priority: int) -> int:
    return priority << 16 | _ANY_PROTOCOL


def _ticks(burst: int, rate: int) -> int:
    """Return the time that `burst` bytes take at `rate` bytes a second, in the kernel's ticks."""
    return min(_MAX_32, max(1, burst * 1_000_000_000 // rate // _TICK_NS))


def _rate_spec(rate: int) -> bytes:
    return _RATE_SPEC.pack(0, _ETHERNET, 0, 0, 0, min(rate, _MAX_32))


def _class_state(body: bytes) -> ClassState | None:
    """Decode an HTB class; a class of another kind is ignored."""
    found = attributes(body, _TCMSG.size)
    rates = _rates(found.get(_OPTIONS, b""))
    if rates is None:
        return None
    tokens = _HTB_XSTATS.unpack_from(found[_XSTATS])[3] if _XSTATS in found else 0
    return ClassState(*rates, tokens)


@lru_cache(maxsize=512)
def _rates(encoded: bytes) -> tuple[int, int] | None:
    """Decode rate and ceil of a class's options; None of another kind's. VFs without rates have the same."""
    options = attributes(encoded)
    if _HTB_PARMS not in options:
        return None
    parameters = options[_HTB_PARMS]
    rate, ceil = (_RATE_SPEC.unpack_from(parameters, offset)[5] for offset in (0, _RATE_SPEC.size))
    wide = {
        kind: struct.unpack("=Q", options[kind])[0] for kind in (_HTB_RATE64, _HTB_CEIL64) if kind in options
    }
    return wide.get(_HTB_RATE64, rate), wide.get(_HTB_CEIL64, ceil)


def _source_selector(mac: str) -> bytes:
    """Encode two keys of four bytes; the last two bytes of the second one are the protocol's."""
    octets = bytes.fromhex(mac.replace(":", ""))
    first, second = int.from_bytes(octets[:4], "big"), int.from_bytes(octets[4:] + b"\0\0", "big")
    keys = _key(first, 0xFFFFFFFF, _SOURCE_MAC_OFFSET) + _key(second, 0xFFFF0000, _SOURCE_MAC_OFFSET + 4)
    return _SELECTOR.pack(_U32_TERMINAL, 0, 2, 0, 0, 0, 0, bytes(4)) + keys


def _any_selector() -> bytes:
    return _SELECTOR.pack(_U32_TERMINAL, 0, 1, 0, 0, 0, 0, bytes(4)) + _ANY_KEY


def _key(value: int, mask: int, offset: int) -> bytes:
    return _KEY.pack(mask.to_bytes(4, "big"), value.to_bytes(4, "big"), offset, 0)


_ANY_KEY = _key(0, 0, _SOURCE_MAC_OFFSET)
"""Key that matches every frame; although it matches no bit, its offset must lie in the frame, which may have
no payload."""


def _redirect(target: int) -> bytes:
    parameters = _MIRRED.pack(0, 0, _STOLEN, 0, 0, _EGRESS_REDIRECT, target)
    options = nested(_ACT_OPTIONS, attribute(_MIRRED_PARMS, parameters))
    return nested(_U32_ACT, nested(1, text(_ACT_KIND, "mirred"), options))
