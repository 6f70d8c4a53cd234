"""The open connections of a server; limits on their number, time and memory."""

from __future__ import annotations

import ctypes
import gc
import struct
from collections import Counter
from dataclasses import dataclass
from fcntl import ioctl
from math import inf
from socket import SO_RCVBUF, SOL_SOCKET
from termios import TIOCOUTQ
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator


_INT = struct.Struct("i")

_PEAK_TO_TRIM, _TRIM_EVERY_S = 64, 2.0
"""Connections, and seconds. The heap is trimmed after the server closed that many connections, or after a
peak of that many has halved: they leave holes in the heap, and hostile clients that keep reconnecting would
make it grow without end. Ordinary clients do not reach these numbers."""

_SHORTEST_PAUSE_S = 0.1
"""Pause between two checks for the same deadline: while the application does not read, no client is late."""

_M_MMAP_THRESHOLD = -3
_THRESHOLD_BYTES = 128 << 10

RECEIVE_BUFFER_BYTES = 32 << 10
"""The receive buffer of a connection, and so about the size of one read. By default it grows to megabytes for
each client that sends fast, and TLS keeps several times a read for each connection."""

LARGE_BODY_BUFFER_BYTES = 1 << 20
"""The receive buffer while a body of megabytes comes in without TLS: its size over the round-trip time is how
fast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits of one server; times are kept to a tenth of a second, that to send to a fifth of it.

    connections: at a time, including those that negotiate TLS; see `Connections.admit`.
    head_bytes: request line and header fields.
    fields: number of header fields.
    body_bytes: None leaves bodies to the application.
    request_timeout_s: for a whole request, from its first byte, or from the connection's begin.
    send_timeout_s: for a client to read an answer.
    keep_alive_s: for a connection between two requests.
    """

    connections: int = 1024
    head_bytes: int = 32 << 10
    fields: int = 128
    body_bytes: int | None = None
    request_timeout_s: float = 10.0
    send_timeout_s: float = 10.0
    keep_alive_s: float = 75.0

    linger_s: float = 2.0
    """Time for which a refused client is still read, so that it receives the reason rather than a reset."""


class Connection(Protocol):
    """A connection, as `Connections` uses it.

    address: the client's.
    deadline: by the loop's clock, for the bytes that the client must send; `inf` if it must send no bytes.
    unsent_since: time since which the client has left a part of an answer unread; kept by `Connections`, and
        reset by each new request.
    """

    address: str
    deadline: float
    unsent_since: float | None

    def unsent_bytes(self) -> int:
        """Count the bytes that the client has not read."""
        ...

    def time_out(self) -> None:
        """Act on a `deadline` that has passed."""
        ...

    def shutdown(self) -> None:
        """Close when the request under way is answered."""
        ...

    def abort(self) -> None:
        """Close at once."""
        ...


class Connections:
    """The open connections.

    One check of all, in place of a timer for each request, holds them to the limits.

    due_s: time of the next check by the loop's clock; `inf` without connections to check.
    """

    def __init__(self, limits: ConnectionLimits, *, sooner: Callable[[], None]) -> None:
        """sooner: called when `due_s` becomes earlier."""
        self.limits = limits
        self.due_s = inf
        self._sooner = sooner
        self._connections: set[Connection] = set()
        self._ended = self._peak = 0
        self._trimmed_at = -inf

    def admit(self, newcomer: Connection) -> bool:
        """Add a connection; False when there is no room for it.

        The address with the most connections makes room. Of its connections the one with the earliest
        deadline is closed: of those that must send something, it has been silent longest by its own limit. A
        connection whose request is being answered is closed only for an address that has fewer.
        """
        if len(self._connections) >= self.limits.connections:
            candidate = self._eviction_candidate(newcomer)
            if candidate is None:
                return False
            self.discard(candidate)  # it takes a turn of the loop until that one knows of its end
            candidate.abort()
            self._ended += 1
        self._connections.add(newcomer)
        self._peak = max(self._peak, len(self._connections))
        self.check_by(newcomer.deadline)
        return True

    def discard(self, connection: Connection) -> None:
        """Remove a connection that has ended, or is about to."""
        self._connections.discard(connection)

    def check_by(self, due_s: float) -> None:
        """Have the next check no later than that."""
        if due_s < self.due_s:
            self.due_s = due_s
            self._sooner()

    def expect_reading(self, now_s: float) -> None:
        """Have the clients checked that are being answered: whether they read is only seen when checked."""
        self.check_by(now_s + self.limits.send_timeout_s / 10)

    def check(self, now_s: float) -> None:
        """Close or time out the connections that are too slow."""
        self.due_s = inf
        for connection in self:
            if connection.deadline <= now_s:
                connection.time_out()
                self._ended += 1
            elif self._is_send_overdue(connection, now_s):
                connection.abort()
                self._ended += 1
            if connection.deadline == inf or connection.unsent_since is not None:
                self.expect_reading(now_s)
            self.check_by(max(connection.deadline, now_s + _SHORTEST_PAUSE_S))
        if self._peak >= _PEAK_TO_TRIM or self._ended >= _PEAK_TO_TRIM:
            self.check_by(now_s + _TRIM_EVERY_S)
        has_shrunk = self._peak >= _PEAK_TO_TRIM and 2 * len(self._connections) <= self._peak
        if (has_shrunk or self._ended >= _PEAK_TO_TRIM) and now_s - self._trimmed_at >= _TRIM_EVERY_S:
            self._ended, self._peak, self._trimmed_at = 0, len(self._connections), now_s
            return_free_memory()

    def __iter__(self) -> Iterator[Connection]:
        return iter(tuple(self._connections))

    def __len__(self) -> int:
        return len(self._connections)

    def shutdown(self) -> None:
        """Close each connection when the request under way is answered."""
        for connection in self:
            connection.shutdown()

    def abort(self) -> None:
        """Close all at once."""
        for connection in self:
            connection.abort()

    def _eviction_candidate(self, newcomer: Connection) -> Connection | None:
        count = Counter(connection.address for connection in self._connections)
        count[newcomer.address] += 1
        own = count[newcomer.address]
        candidates = [connection for connection in self._connections if count[connection.address] >= own]
        candidate = max(
            candidates, key=lambda connection: (count[connection.address], -connection.deadline), default=None
        )
        if candidate is None or (candidate.deadline == inf and count[candidate.address] == own):
            return None
        return candidate

    def _is_send_overdue(self, connection: Connection, now_s: float) -> bool:
        if not connection.unsent_bytes():
            connection.unsent_since = None
            return False
        if connection.unsent_since is None:
            connection.unsent_since = now_s
        return now_s - connection.unsent_since > self.limits.send_timeout_s


def unsent_bytes(connected: socket.socket) -> int:
    """Count the bytes in the kernel that the client has not read (tcp(7), SIOCOUTQ).

    All bytes queued behind them, in the transport or in TLS, wait for them.
    """
    descriptor = connected.fileno()
    if descriptor < 0:
        return 0
    (unsent,) = _INT.unpack(ioctl(descriptor, TIOCOUTQ, bytes(_INT.size)))
    return int(unsent)


def set_receive_buffer(opened: socket.socket, size: int) -> None:
    """Set the receive buffer in bytes (socket(7), SO_RCVBUF, which the kernel doubles, and limits).

    On the listening socket it limits TCP's window for good (tcp_select_initial_window in
    net/ipv4/tcp_output.c), and also the data that is received before a connection is accepted.
    """
    opened.setsockopt(SOL_SOCKET, SO_RCVBUF, size)


def return_large_buffers() -> None:
    """Keep the C library's initial threshold for memory with a mapping of its own (mallopt(3)).

    glibc raises it to the largest such buffer that was ever freed. From then on TLS's 256 KiB of each
    connection come from the heap, between small objects, by which the heap grows under many connections
    and stays so. Another C library has no such threshold, and is left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _THRESHOLD_BYTES)


def return_free_memory() -> None:
    """Return free memory between live objects to the kernel (malloc_trim(3)), if the C library can.

    Objects that ended connections left in cycles are freed first; long-lived objects are not searched.
    """
    gc.collect(1)
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
