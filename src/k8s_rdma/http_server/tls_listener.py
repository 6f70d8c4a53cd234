"""Connections that begin with TLS: accepted, counted and timed by us.

The event loop's own server knows neither how many negotiate at a time nor when a certificate was renewed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NoReturn

import structlog

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable

    from k8s_rdma.http_server.connections import Connections
    from k8s_rdma.http_server.protocol import HttpProtocol

_log = structlog.get_logger()

REST_S = 0.1
"""After a connection could not be accepted, for want of descriptors as a rule."""


class TlsListener:
    """Accepts until cancelled."""

    def __init__(
        self,
        listener: socket.socket,
        context: Callable[[], ssl.SSLContext],
        make: Callable[[], HttpProtocol],
        connections: Connections,
    ) -> None:
        """context: for the next connection. make: what speaks on it once TLS is agreed on."""
        listener.setblocking(False)
        self._listener = listener
        self._context = context
        self._make = make
        self._connections = connections

    async def run(self) -> NoReturn:
        """Accept; what still negotiates when this is cancelled is closed."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as handshakes:
            while True:
                try:
                    accepted, (address, *_) = await loop.sock_accept(self._listener)
                except OSError as error:
                    _log.error("not_accepted", error=error.strerror)
                    await asyncio.sleep(REST_S)
                    continue
                handshakes.create_task(self._negotiate(accepted, address))
                # It does not wait by itself while there are clients: those that make room for them end first.
                await asyncio.sleep(0)

    async def _negotiate(self, accepted: socket.socket, address: str) -> None:
        timeout_s = self._connections.limits.request_timeout_s
        handshake = Handshake(asyncio.current_task(), address, timeout_s)
        if not self._connections.admit(handshake):
            accepted.close()
            return
        try:
            http = self._make()
            http.replaces = handshake
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: http, accepted, ssl=self._context(), ssl_handshake_timeout=timeout_s
            )
        except Exception as error:  # of one client; the others are accepted all the same
            accepted.close()
            if not isinstance(error, OSError):  # which TLS errors are: it is the client's business
                _log.error("not_negotiated", error=str(error) or type(error).__name__)
            error.__traceback__ = None  # its frames hold TLS's buffers, and what holds the error
        except BaseException:
            accepted.close()
            raise
        finally:
            handshake.end()
            self._connections.forget(handshake)


class Handshake:
    """A `connections.Connection` until HTTP begins."""

    def __init__(self, task: asyncio.Task[None] | None, address: str, timeout_s: float) -> None:
        self._task = task
        self.address = address
        self.owes_by = asyncio.get_running_loop().time() + timeout_s
        self.unsent_since: float | None = None

    def end(self) -> None:
        """Forget the task: they know each other, and would stay until Python looks for such cycles."""
        self._task = None

    def unsent_bytes(self) -> int:
        """None of ours."""
        return 0

    def overdue(self) -> None:
        """End it."""
        self.abort()

    def shutdown(self) -> None:
        """End it, since the server does."""
        self.abort()

    def abort(self) -> None:
        """End it."""
        if self._task is not None:
            self._task.cancel()
