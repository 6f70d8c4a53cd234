"""The beginning of a TLS connection, counted and timed like any other.

uvicorn would leave that to the event loop, which knows neither how many there are nor when a certificate
was renewed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from k8s_rdma.http_server.connections import Connection, Connections


class Handshake(asyncio.Protocol):
    """A `connections.Connection` until TLS is agreed on; then `http` takes its place."""

    transport: asyncio.Transport

    def __init__(
        self,
        http: asyncio.Protocol,
        context: Callable[[], ssl.SSLContext],
        *,
        guard: Connections,
        connections: set[Connection],
        timeout_s: float,
    ) -> None:
        self.unsent_since: float | None = None
        self._http = http
        self._context = context
        self._guard = guard
        self._connections = connections
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self.owes_by = self._loop.time() + timeout_s
        self._early = bytearray()
        self._lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count it, and negotiate."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are no subclass of it
        self.transport.pause_reading()  # until `start_tls` listens
        self._connections.add(self)
        if self._guard.admit(self):
            self._negotiating = self._loop.create_task(self._negotiate())
        else:
            self._connections.discard(self)
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Keep what the client says before the handshake's end is known here."""
        self._early += data

    def connection_lost(self, _exc: Exception | None) -> None:
        """Nobody to speak with."""
        self._lost = True

    def overdue(self) -> None:
        """As `Connection.overdue`."""
        self.transport.abort()

    def shutdown(self) -> None:
        """The server ends."""
        self.transport.abort()

    async def _negotiate(self) -> None:
        try:
            secured = await self._loop.start_tls(
                self.transport,
                self,
                self._context(),
                server_side=True,
                ssl_handshake_timeout=self._timeout_s,
            )
        except OSError:  # TLS errors are OSErrors too; it is the client's business
            secured = None
            self.transport.abort()
        finally:
            self._connections.discard(self)
        if secured is None or self._lost:
            return
        secured.set_protocol(self._http)
        self._http.connection_made(secured)
        if self._early:
            self._http.data_received(bytes(self._early))
