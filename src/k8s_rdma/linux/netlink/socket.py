"""Netlink: encoding of messages, and a socket for requests.

Source: RFC 3549, netlink(7), Linux `include/uapi/linux/netlink.h`. The reason for an own implementation:
docs/adr/0005-netlink-of-our-own.md.
"""

from __future__ import annotations

import errno
import itertools
import os
import socket
import struct
import sys
import time
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netns import entered
from k8s_rdma.linux.sysfs import error_name

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

ROUTE, KOBJECT_UEVENT, GENERIC, RDMA = 0, 15, 16, 20
"""Netlink families in use (NETLINK_*)."""
_FAMILIES = {ROUTE: "rtnetlink", GENERIC: "generic netlink", RDMA: "RDMA netlink"}
"""Names of the families in messages."""

REQUEST, MULTI, ACK, ECHO, DUMP_INTR = 0x1, 0x2, 0x4, 0x8, 0x10
DUMP, REPLACE, EXCL, CREATE = 0x300, 0x100, 0x200, 0x400
"""Flags of a message header; equal values belong to different kinds of request."""

_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_ENDS = (_NLMSG_ERROR, _NLMSG_DONE)
_ACK_TLVS = 0x200
_CAPPED = 0x100
_ERROR_MESSAGE = 1  # NLMSGERR_ATTR_MSG
_SOL_NETLINK, _EXT_ACK, _STRICT_CHECK = 270, 11, 12
_NESTED = 0x8000
_TYPE_MASK = 0x3FFF
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_TRUNCATED = int(socket.MSG_TRUNC)  # of an enumeration `&` is Python's own, and slow
_ANSWER_TIMEOUT_S = 30
"""The kernel answers as soon as it has its lock; a holder that keeps it this long is stuck."""

_BUFFER_BYTES = 1 << 17
"""Largest answer: a PF with 256 VFs and their counters is 85 KiB (rtnl_fill_vfinfo, Linux 6.1)."""
_DUMP_ATTEMPTS = 40
_DUMP_PAUSE_S = 0.001
"""Pause after the first attempt, growing by as much each time: 0.8 s in all, enough for 60 moves of VFs."""


class _Closeable(Protocol):
    def close(self) -> None: ...


S = TypeVar("S", bound=_Closeable)


class NetlinkError(KernelError):
    """The kernel refused a request; `errno` as in errno(3)."""

    def __init__(self, operation: str, number: int, explanation: str = "") -> None:
        """Describe the refused `operation`; `explanation` is the kernel's own, if any."""
        because = f" ({explanation})" if explanation else ""
        super().__init__(f"{operation}: {error_name(number)}: {os.strerror(number)}{because}")
        self.errno = number


def attribute(kind: int, value: bytes) -> bytes:
    """Encode one attribute, padded to four bytes."""
    size = len(value) + 4
    return _ATTRIBUTE.pack(size, kind) + value + bytes(-size % 4)


def nested(kind: int, *attributes: bytes) -> bytes:
    """Encode an attribute made of attributes."""
    return attribute(kind | _NESTED, b"".join(attributes))


def u32(kind: int, value: int) -> bytes:
    """Encode a number in the machine's byte order."""
    return attribute(kind, struct.pack("=I", value))


def text(kind: int, value: str) -> bytes:
    """Encode a string, with the terminating NUL that names need."""
    return attribute(kind, value.encode(errors="surrogateescape") + b"\0")


def attributes(data: bytes, start: int = 0, kinds: Container[int] | None = None) -> dict[int, bytes]:
    """Decode the attributes from `start` on by kind; the last one of several of a kind.

    It has a loop of its own, because a link has some 40 and a generator takes half as long again. To leave
    out those that the caller does not read halves the time.

    kinds: those to decode, by default all.
    """
    found: dict[int, bytes] = {}
    last, unpack = len(data) - _ATTRIBUTE.size, _ATTRIBUTE.unpack_from
    while start <= last:
        size, kind = unpack(data, start)
        if size < _ATTRIBUTE.size:
            break
        kind &= _TYPE_MASK
        if kinds is None or kind in kinds:
            found[kind] = data[start + 4 : start + size]
        start += (size + 3) & ~3
    return found


def each_attribute(data: bytes, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield kind and value of the attributes from `start` on, for lists with several of one kind."""
    end = len(data)
    while start + 4 <= end:
        size, kind = _ATTRIBUTE.unpack_from(data, start)
        if size < 4:
            break
        yield kind & _TYPE_MASK, data[start + 4 : start + size]
        start += (size + 3) & ~3


def number(value: bytes) -> int:
    """Decode an unsigned number of any size in the machine's byte order."""
    return int.from_bytes(value, sys.byteorder)


def string(value: bytes) -> str:
    """Decode a string without its NUL.

    A name may be any bytes; invalid UTF-8 becomes surrogate escapes (PEP 383), so that a netdev has the same
    name here and in sysfs.
    """
    return value.rstrip(b"\0").decode(errors="surrogateescape")


def connect(family: int = ROUTE, namespace: int | None = None) -> socket.socket:
    """Open a socket to the kernel in that namespace (a descriptor), by default in the calling thread's own.

    NetlinkError, EPROTONOSUPPORT when the kernel has no such family.
    """
    try:
        return _connect(family, namespace)
    except OSError as error:
        raise NetlinkError(_FAMILIES[family], error.errno or errno.EIO) from error


def _connect(family: int, namespace: int | None) -> socket.socket:
    with nullcontext() if namespace is None else entered(namespace):
        connection = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, family)
    try:
        timeout = struct.pack("@ll", _ANSWER_TIMEOUT_S, 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        connection.setsockopt(_SOL_NETLINK, _EXT_ACK, 1)
        connection.setsockopt(_SOL_NETLINK, _STRICT_CHECK, 1)
        connection.bind((0, 0))
    except OSError:
        connection.close()
        raise
    return connection


class SocketClient(Generic[S]):
    """A context manager that owns a socket, and closes it at the end."""

    socket: S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket; pending answers are lost."""
        self.socket.close()


class NetlinkSocket(SocketClient[socket.socket]):
    """Requests to one netlink family in the namespace where it was opened.

    The socket keeps its network namespace alive, so one in a pod's namespace must be closed soon.
    """

    def __init__(self, connection: socket.socket | None = None) -> None:
        """Use this connection, which is closed with the object; by default `connect()`."""
        self.socket = connection or connect()
        self._sequence = itertools.count(1)

    @property
    def port(self) -> int:
        """The socket's port, which the kernel's messages on its requests bear (`nlmsg_pid`, netlink(7))."""
        return int(self.socket.getsockname()[0])

    def request(self, kind: int, body: bytes, operation: str, flags: int = 0) -> None:
        """Send a request that changes something. NetlinkError, beginning with `operation`, when it fails."""
        self._talk(kind, REQUEST | ACK | flags, body, operation)

    def get(self, kind: int, body: bytes, operation: str, flags: int = 0) -> bytes:
        """Return the one answer to a query, without its header."""
        return _only(self._talk(kind, REQUEST | ACK | flags, body, operation), operation)

    def get_each(self, kind: int, bodies: Sequence[bytes], operation: str) -> list[bytes | int]:
        """Return the one answer to each query, or the errno with which the kernel refuses it.

        The queries are sent together, which takes half the processor time of as many `get`s. All answers wait
        in the socket's buffer, 208 KiB by default; if it is smaller and overflows (ENOBUFS, netlink(7)), the
        queries are sent one by one.
        """
        try:
            talks = self._talk_at_once(kind, REQUEST | ACK, bodies, operation)
        except NetlinkError as error:
            if error.errno != errno.ENOBUFS:
                raise
            self._empty()
            talks = [self._talk_at_once(kind, REQUEST | ACK, (body,), operation)[0] for body in bodies]
        return [talk.refusal or _only(talk.answers, operation) for talk in talks]

    def dump(self, kind: int, body: bytes, operation: str) -> list[bytes]:
        """Return all answers to a query that has many.

        A dump that was interrupted by changes (NLM_F_DUMP_INTR) is repeated; NetlinkError EINTR after too
        many. An incomplete answer is never returned.
        """
        for attempt in range(_DUMP_ATTEMPTS):
            if attempt:
                time.sleep(attempt * _DUMP_PAUSE_S)
            try:
                return self._talk(kind, REQUEST | DUMP, body, operation)
            except NetlinkError as error:
                if error.errno != errno.EINTR:
                    raise
        raise NetlinkError(operation, errno.EINTR, f"changed under way {_DUMP_ATTEMPTS} times")

    def _talk(self, kind: int, flags: int, body: bytes, operation: str) -> list[bytes]:
        """Return the answers to one request. NetlinkError when the kernel refuses it."""
        [talk] = self._talk_at_once(kind, flags, (body,), operation)
        if talk.refusal:
            raise NetlinkError(operation, talk.refusal, talk.explanation)
        return talk.answers

    def _talk_at_once(self, kind: int, flags: int, bodies: Iterable[bytes], operation: str) -> list[_Talk]:
        """Send requests in one datagram, and return the kernel's answers to each."""
        messages = b""
        talks: dict[int, _Talk] = {}
        for body in bodies:
            sequence = next(self._sequence) & 0xFFFFFFFF
            messages += _HEADER.pack(16 + len(body), kind, flags, sequence, 0) + body
            talks[sequence] = _Talk()
        try:
            self.socket.send(messages)
            unended = len(talks)
            while unended > 0:
                unended -= _read(self._receive(), talks, operation)
        except BlockingIOError as error:
            raise NetlinkError(
                operation, errno.ETIMEDOUT, f"no answer within {_ANSWER_TIMEOUT_S} s"
            ) from error
        except OSError as error:
            raise NetlinkError(operation, error.errno or errno.EIO) from error
        return list(talks.values())

    def _receive(self) -> bytes:
        data, _, flags, _ = self.socket.recvmsg(_BUFFER_BYTES)
        if flags & _TRUNCATED:
            raise OSError(errno.EMSGSIZE, "")
        return data

    def _empty(self) -> None:
        """Drop the waiting answers: after an overflow the kernel adds none before all are read.

        Source: Linux `net/netlink/af_netlink.c` (netlink_rcv_wake), 6.18.
        """
        with suppress(BlockingIOError):
            while True:
                self.socket.recvmsg(_BUFFER_BYTES, 0, socket.MSG_DONTWAIT)


class _Talk:
    """The kernel's answers to one request, without their headers.

    interrupted: whether changes interrupted a dump. refusal: an errno; 0 if the kernel did as requested.
    explanation: the kernel's own, of a refusal.
    """

    __slots__ = ("answers", "explanation", "interrupted", "refusal")

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.interrupted = False
        self.refusal = 0
        self.explanation = ""


def _read(data: bytes, talks: Mapping[int, _Talk], operation: str) -> int:
    """Read a datagram, and return how many talks end in it.

    Answers to an earlier request, which timed out, are skipped.
    """
    start, ended, last = 0, 0, len(data) - 16
    while start <= last:
        size, kind, flags, sequence, _ = _HEADER.unpack_from(data, start)
        if size < 16:
            raise NetlinkError(operation, errno.EPROTO, "a message shorter than its header")
        end = start + size
        talk = talks.get(sequence)
        if talk is not None:
            if flags & DUMP_INTR:
                talk.interrupted = True
            if kind in _ENDS:
                _end(talk, data[start:end], flags, kind)
                ended += 1
            else:
                talk.answers.append(data[start + 16 : end])
        start += (size + 3) & ~3
    return ended


def _end(talk: _Talk, message: bytes, flags: int, kind: int) -> None:
    """Note how the kernel ended a talk."""
    status = struct.unpack_from("=i", message, 16)[0] if len(message) >= 20 else 0
    if status:
        talk.refusal, talk.explanation = -status, _explanation(message, flags, kind)
    elif talk.interrupted:
        talk.refusal = errno.EINTR


def _explanation(message: bytes, flags: int, kind: int) -> str:
    """Return the kernel's explanation of a refusal, if it has one."""
    if not flags & _ACK_TLVS:
        return ""
    # Between the status and the explanation stands the request: whole, or its header if capped.
    copied = 0 if kind == _NLMSG_DONE else 16
    if kind == _NLMSG_ERROR and not flags & _CAPPED:
        copied = (struct.unpack_from("=I", message, 20)[0] + 3) & ~3
    return string(attributes(message, 20 + copied).get(_ERROR_MESSAGE, b""))


def _only(answers: Sequence[bytes], operation: str) -> bytes:
    """Return the one answer; NetlinkError if there are more or none."""
    if len(answers) != 1:
        raise NetlinkError(operation, errno.EPROTO, f"{len(answers)} answers to one question")
    return answers[0]
