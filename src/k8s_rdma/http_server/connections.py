"""The open connections of a server: how many there may be, and which of them keep it waiting too long."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio

    from k8s_rdma.http_server.limits import Limits


class Connection(Protocol):
    """One of them.

    owes_by: when the client must have sent what is awaited of it, by the loop's clock; `inf` when nothing is.
    unsent_since: since when there has been an answer that it has not read; kept by `Connections`.
    """

    transport: asyncio.Transport
    owes_by: float
    unsent_since: float | None

    def overdue(self) -> None:
        """`owes_by` has passed."""
        ...


class Connections:
    """Held to the limits by one look at all of them, rather than a timer for each request."""

    def __init__(self, limits: Limits, connections: set[Connection]) -> None:
        """connections: those of now, whenever it is looked at."""
        self._limits = limits
        self._connections = connections

    def admit(self, newcomer: Connection) -> bool:
        """Whether there is room for one that was just added.

        Room is made by closing the one that must send something soonest: of all that the server awaits
        something of, it has been silent longest by its own limit. There is none when each is being answered.
        """
        if len(self._connections) <= self._limits.connections:
            return True
        others = (connection for connection in self._connections if connection is not newcomer)
        silent = min(others, key=lambda connection: connection.owes_by)
        if silent.owes_by == inf:
            return False
        self._connections.discard(silent)  # it takes a turn of the loop until that one knows of its end
        silent.transport.abort()
        return True

    def look(self, now: float) -> None:
        """Deal with those that took too long."""
        for connection in tuple(self._connections):
            if connection.owes_by <= now:
                connection.overdue()
            elif self._unread(connection, now):
                connection.transport.abort()

    def _unread(self, connection: Connection, now: float) -> bool:
        if not connection.transport.get_write_buffer_size():
            connection.unsent_since = None
            return False
        if connection.unsent_since is None:
            connection.unsent_since = now
        return now - connection.unsent_since > self._limits.send_timeout_s
