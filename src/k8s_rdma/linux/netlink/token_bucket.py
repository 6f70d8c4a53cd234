"""A token bucket (TBF) as a netdev's root queueing discipline: a limit for what the kernel sends through it.

It counts whole frames, without what a wire adds to them, of all of a netdev's queues together: as the root
it replaces `mq`. Below it is a plain queue, which whoever has the netdev may replace by one to their liking.

TBF and not HTB, whose one class would do the same with two objects to be read back; not fq, whose rate is of
each flow. No active queue management: CoDel drops what does not slow down for it, and soft-RoCE, which only
knows to send everything again from what was lost on (go-back-N), does not.

Source: tc-tbf(8), Linux `net/sched/sch_tbf.c`, `net/sched/sch_api.c`, `include/uapi/linux/pkt_sched.h`, 6.18.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.socket import (
    CREATE,
    REPLACE,
    NetlinkError,
    attribute,
    attributes,
    nested,
    number,
    string,
    text,
    u32,
)

if TYPE_CHECKING:
    from k8s_rdma.linux.netlink.socket import NetlinkSocket

HANDLE = 0x7264_0000
"""Tells ours from others': `tc qdisc show` prints `tbf 7264:`. The kernel gives out 8000: and above."""

BYTES_PER_MBPS = 125_000

SLACK_PER_S = 250
"""A bucket is full after 4 ms: as late may the timer be that lets the next frame go (one tick at 250 Hz,
without high-resolution timers, or on a busy virtual machine) before any of the rate is lost."""

LEAST_BURST = (64 << 10) + 64
"""Bytes: a frame of any MTU. TBF drops what is larger than its bucket, and splits what TCP hands down (GSO,
64 KiB and some headers) if that is; TCP does so only at rates where 4 ms are more than that."""

QUEUE_PER_S = 20
"""50 ms of the rate wait at most: less than the usual 67 ms (4.096 us * 2^14) after which a queue pair sends
again what nobody has acknowledged, and with it all that follows."""

LEAST_QUEUE, MOST_QUEUE = 512 << 10, 64 << 20
"""Bytes. Senders of the same kernel wait by themselves rather than fill it: TCP with a few packets of a
connection, soft-RoCE with 64 of a queue pair (`RXE_INFLIGHT_SKBS_PER_QP_HIGH`; 270 KiB with the largest)."""

_NEWQDISC, _DELQDISC, _GETQDISC = 36, 37, 38
_TCMSG = struct.Struct("=B3xiIII")
_ROOT = 0xFFFFFFFF
_KIND, _OPTIONS, _STAB = 1, 2, 8
_PARMS, _RATE64, _BURST = 1, 4, 6
_PARAMETERS = struct.Struct("=BBHhHI12xIII")
"""struct tc_tbf_qopt: rate, no peak rate, limit in bytes, bucket and peak bucket in ticks."""
_UNKNOWN = (errno.ENOENT, errno.EOPNOTSUPP)
"""Of a queueing discipline that the kernel does not have, or of one that has none at all."""
_LOOPBACK = 1
"""Its index in every namespace (LOOPBACK_IFINDEX, include/net/flow.h)."""
_ETHERNET = 1
_TICK_NS = 64
"""PSCHED_SHIFT 6, include/net/pkt_sched.h."""
_MAX_32 = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Bucket:
    """Bytes a second; bytes that may be sent at once; bytes that may wait."""

    rate: int
    burst: int
    queue: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RootQdisc:
    """A link's root queueing discipline. bucket: of one that is ours, with nothing that would weaken it.

    handle: 0 of one that the kernel chose.
    """

    kind: str
    handle: int
    bucket: Bucket | None = None

    @property
    def is_ours(self) -> bool:
        """Whether it is one that was made here, whatever became of it."""
        return (self.kind, self.handle) == ("tbf", HANDLE)

    @property
    def mbps(self) -> int:
        """What it limits a link to in whole Mb/s, more rather than less; 0 if it is another's."""
        return _mbps(self.bucket.rate) if self.bucket else 0


def bucket_for(mbps: int) -> Bucket:
    """What keeps a rate in Mb/s, from 1 on."""
    rate = mbps * BYTES_PER_MBPS
    return Bucket(
        rate=rate,
        burst=min(max(LEAST_BURST, rate // SLACK_PER_S), _MAX_32),
        queue=min(max(LEAST_QUEUE, rate // QUEUE_PER_S), MOST_QUEUE),
    )


def root_qdiscs(socket: NetlinkSocket, what: str) -> dict[int, RootQdisc]:
    """Those of all links of a namespace, by index; links that have none, as before they first came up, not.

    A kernel without traffic control has none at all.
    """
    try:
        bodies = socket.dump(_GETQDISC, _header(0), f"{what}: queueing disciplines")
    except NetlinkError as error:
        if error.errno == errno.EOPNOTSUPP:
            return {}
        raise
    found = {}
    for body in bodies:
        _, index, handle, parent, _ = _TCMSG.unpack_from(body)
        if parent == _ROOT:
            found[index] = _root_qdisc(handle, attributes(body, _TCMSG.size))
    return found


def knows(socket: NetlinkSocket, kind: str = "tbf") -> bool:
    """Whether the kernel has such a queueing discipline, or a module of it that it loads. Changes nothing.

    It is asked to make one without parameters for the loopback, which it refuses once it has found the code
    (`tbf_init`). KernelError when it does not say, as without CAP_NET_ADMIN.
    """
    try:
        body = _header(_LOOPBACK) + text(_KIND, kind)
        socket.do(_NEWQDISC, body, f"queueing discipline {kind}", CREATE | REPLACE)
    except NetlinkError as error:
        if error.errno in _UNKNOWN:
            return False
        if error.errno != errno.EINVAL:
            raise
    return True


def limit(socket: NetlinkSocket, index: int, mbps: int, what: str) -> None:
    """Let a link send so many Mb/s; 0 for no limit of ours. KernelError when it does not hold afterwards.

    Another one's queueing discipline gives way. A changed rate changes in place: what waits goes on waiting.
    """
    wanted = bucket_for(mbps) if mbps else None
    before = root_qdiscs(socket, what).get(index)
    if _holds(before, wanted):
        return
    if before is not None and before.handle and not (wanted and before.is_ours):
        # Also for a limit: a root of another kind would keep its parameters if it bore our handle.
        _delete(socket, index, what)
    if wanted:
        _set(socket, index, wanted, what)
    now = root_qdiscs(socket, what).get(index)
    if not _holds(now, wanted):
        msg = f"{what}: the kernel keeps {now} instead of {wanted}"
        raise KernelError(msg)


def _holds(found: RootQdisc | None, wanted: Bucket | None) -> bool:
    if wanted is None:
        return found is None or not found.is_ours
    return found is not None and found.bucket == wanted


def _set(socket: NetlinkSocket, index: int, bucket: Bucket, what: str) -> None:
    rate, ticks = min(bucket.rate, _MAX_32), _ticks(bucket.burst, bucket.rate)
    options = [
        attribute(_PARMS, _PARAMETERS.pack(0, _ETHERNET, 0, 0, 0, rate, bucket.queue, ticks, 0)),
        u32(_BURST, bucket.burst),
    ]
    if bucket.rate > _MAX_32:
        options.append(attribute(_RATE64, struct.pack("=Q", bucket.rate)))
    body = _header(index, HANDLE) + text(_KIND, "tbf") + nested(_OPTIONS, *options)
    try:
        socket.do(_NEWQDISC, body, what, CREATE | REPLACE)
    except NetlinkError as error:
        if error.errno in _UNKNOWN:
            msg = f"{what}: the kernel has no token bucket filter; load its module sch_tbf"
            raise KernelError(msg, details=str(error)) from error
        raise


def _delete(socket: NetlinkSocket, index: int, what: str) -> None:
    """Leave a link the queueing discipline that the kernel chooses; holds when it has that."""
    try:
        socket.do(_DELQDISC, _header(index), what)
    except NetlinkError as error:
        if error.errno != errno.ENOENT:
            raise


def _root_qdisc(handle: int, found: dict[int, bytes]) -> RootQdisc:
    other = RootQdisc(kind=string(found.get(_KIND, b"")), handle=handle)
    if not other.is_ours or _STAB in found:  # a size table makes frames count for less than they are
        return other
    options = attributes(found[_OPTIONS])
    *_, rate, queue, ticks, _ = _PARAMETERS.unpack_from(options[_PARMS])
    rate = number(options[_RATE64]) if _RATE64 in options else rate
    burst = bucket_for(_mbps(rate)).burst
    if abs(ticks - _ticks(burst, rate)) > ticks // 100 + 1:
        return other
    return RootQdisc(kind=other.kind, handle=handle, bucket=Bucket(rate, burst, queue))


def _mbps(rate: int) -> int:
    """Rounded up: a little more than a limit, which is much of a small one, must not pass for it."""
    return -(-rate // BYTES_PER_MBPS)


def _ticks(burst: int, rate: int) -> int:
    """How long so many bytes take at a rate: what the kernel keeps of a bucket."""
    return min(_MAX_32, burst * 1_000_000_000 // max(1, rate) // _TICK_NS)


def _header(index: int, handle: int = 0) -> bytes:
    return _TCMSG.pack(0, index, handle, _ROOT if index else 0, 0)
