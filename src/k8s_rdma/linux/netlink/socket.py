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
from contextlib import nullcontext
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netns import entered
from k8s_rdma.linux.sysfs import error_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class _Closeable(Protocol):
    def close(self) -> None: ...


S = TypeVar("S", bound=_Closeable)

ROUTE, KOBJECT_UEVENT, GENERIC, RDMA = 0, 15, 16, 20
"""Netlink families in use (NETLINK_*)."""
_FAMILIES = {ROUTE: "rtnetlink", GENERIC: "generic netlink", RDMA: "RDMA netlink"}
"""Names of the families in messages."""

REQUEST, MULTI, ACK, ECHO, DUMP_INTR = 0x1, 0x2, 0x4, 0x8, 0x10
DUMP, REPLACE, EXCL, CREATE = 0x300, 0x100, 0x200, 0x400
"""Flags of a message header; equal values belong to different kinds of request."""

_NLMSG_ERROR, _NLMSG_DONE = 2, 3
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


def attributes(data: bytes, start: int = 0) -> dict[int, bytes]:
    """Decode the attributes from `start` on by kind; the last one of several of a kind.

    It has a loop of its own, because a link has some 40 and a generator takes half as long again.
    """
    found: dict[int, bytes] = {}
    last, unpack = len(data) - _ATTRIBUTE.size, _ATTRIBUTE.unpack_from
    while start <= last:
        size, kind = unpack(data, start)
        if size < _ATTRIBUTE.size:
            break
        found[kind & _TYPE_MASK] = data[start + 4 : start + size]
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
    """Requests to one netlink family, one at a time, in the namespace where it was opened.

    The socket keeps its network namespace alive, so one in a pod's namespace must be closed soon.
    """

    def __init__(self, connection: socket.socket | None = None) -> None:
        """Use this connection, which is closed with the object; by default `connect()`."""
        self.socket = connection or connect()
        self._sequence = itertools.count(1)

    def request(self, kind: int, body: bytes, operation: str, flags: int = 0) -> None:
        """Send a request that changes something. NetlinkError, beginning with `operation`, when it fails."""
        for _ in self._talk(kind, REQUEST | ACK | flags, body, operation):
            pass

    def get(self, kind: int, body: bytes, operation: str, flags: int = 0) -> bytes:
        """Return the one answer to a query, without its header."""
        answers = list(self._talk(kind, REQUEST | ACK | flags, body, operation))
        if len(answers) != 1:
            raise NetlinkError(operation, errno.EPROTO, f"{len(answers)} answers to one question")
        return answers[0]

    def dump(self, kind: int, body: bytes, operation: str) -> list[bytes]:
        """Return all answers to a query that has many.

        A dump that was interrupted by changes (NLM_F_DUMP_INTR) is repeated; NetlinkError EINTR after too
        many. An incomplete answer is never returned.
        """
        for attempt in range(_DUMP_ATTEMPTS):
            if attempt:
                time.sleep(attempt * _DUMP_PAUSE_S)
            try:
                return list(self._talk(kind, REQUEST | DUMP, body, operation))
            except NetlinkError as error:
                if error.errno != errno.EINTR:
                    raise
        raise NetlinkError(operation, errno.EINTR, f"changed under way {_DUMP_ATTEMPTS} times")

    def _talk(self, kind: int, flags: int, body: bytes, operation: str) -> Iterator[bytes]:
        sequence = next(self._sequence) & 0xFFFFFFFF
        try:
            self.socket.send(_HEADER.pack(16 + len(body), kind, flags, sequence, 0) + body)
            yield from _answers(self._receive, sequence, operation)
        except BlockingIOError as error:
            raise NetlinkError(
                operation, errno.ETIMEDOUT, f"no answer within {_ANSWER_TIMEOUT_S} s"
            ) from error
        except OSError as error:
            raise NetlinkError(operation, error.errno or errno.EIO) from error

    def _receive(self) -> bytes:
        data, _, flags, _ = self.socket.recvmsg(_BUFFER_BYTES)
        if flags & _TRUNCATED:
            raise OSError(errno.EMSGSIZE, "")
        return data


def _answers(receive: Callable[[], bytes], sequence: int, operation: str) -> Iterator[bytes]:
    """Yield the answers to one request. Answers to an earlier request that timed out are skipped."""
    interrupted = False
    while True:
        data, start = receive(), 0
        while start + 16 <= len(data):
            size, kind, flags, answered, _ = _HEADER.unpack_from(data, start)
            if size < 16:
                raise NetlinkError(operation, errno.EPROTO, "a message shorter than its header")
            message, start = data[start : start + size], start + ((size + 3) & ~3)
            if answered != sequence:
                continue
            interrupted = interrupted or bool(flags & DUMP_INTR)
            if kind in (_NLMSG_ERROR, _NLMSG_DONE):
                _raise_for(message, flags, kind, operation)
                if interrupted:
                    raise NetlinkError(operation, errno.EINTR)
                return
            yield message[16:]


def _raise_for(message: bytes, flags: int, kind: int, operation: str) -> None:
    status = struct.unpack_from("=i", message, 16)[0] if len(message) >= 20 else 0
    if status == 0:
        return
    explanation = ""
    if flags & _ACK_TLVS:
        # Between the status and the explanation stands the request: whole, or its header if capped.
        copied = 0 if kind == _NLMSG_DONE else 16
        if kind == _NLMSG_ERROR and not flags & _CAPPED:
            copied = (struct.unpack_from("=I", message, 20)[0] + 3) & ~3
        explanation = string(attributes(message, 20 + copied).get(_ERROR_MESSAGE, b""))
    raise NetlinkError(operation, -status, explanation)
