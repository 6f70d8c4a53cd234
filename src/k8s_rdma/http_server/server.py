"""uvicorn with limits."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import uvicorn

from k8s_rdma.http_server.connections import Connections
from k8s_rdma.http_server.handshake import Handshake
from k8s_rdma.http_server.limits import Limits
from k8s_rdma.http_server.protocol import HttpProtocol

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable, Iterator

    from starlette.types import ASGIApp

    from k8s_rdma.http_server.connections import Connection
    from k8s_rdma.http_server.protocol import Ready


class HttpServer(uvicorn.Server):
    """Leaves signals to the process: uvicorn would end it by the signal itself after a clean stop."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        shutdown_s: int,
        limits: Limits | None = None,
        ready: Ready | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """shutdown_s: for the requests under way when stopped. ready: asked before the application.

        tls: the context for the next connection; None for plain HTTP.
        """
        limits = limits or Limits()
        super().__init__(
            uvicorn.Config(
                app,
                http=self._protocol,  # type: ignore[arg-type]  # it is only called
                ws="none",
                interface="asgi3",
                lifespan="off",
                proxy_headers=False,
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=limits.keep_alive_s,  # type: ignore[arg-type]  # fractions do as well
                timeout_graceful_shutdown=shutdown_s,
            )
        )
        self._limits = limits
        self._ready = ready
        self._tls = tls
        self._connections = cast("set[Connection]", self.server_state.connections)
        self._guard = Connections(limits, self._connections)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """What uvicorn does ten times a second."""
        self._guard.look(asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    async def serve_orderly(self, listener: socket.socket) -> None:
        """Serve, and close every connection also when cancelled or when requests outlast `shutdown_s`.

        uvicorn leaves them open then, and a uvloop loop that is closed over open connections can wait for
        them for ever (seen when a test fails with its client in the same loop).
        """
        try:
            await self.serve(sockets=[listener])
        except asyncio.CancelledError:
            if self.started:
                await self.shutdown(sockets=[listener])
            raise
        finally:
            for connection in tuple(self._connections):
                connection.transport.abort()

    def _protocol(self, **uvicorn: Any) -> asyncio.Protocol:
        http = HttpProtocol(limits=self._limits, connections=self._guard, ready=self._ready, **uvicorn)
        if self._tls is None:
            return http
        return Handshake(
            http,
            self._tls,
            guard=self._guard,
            connections=self._connections,
            timeout_s=self._limits.request_timeout_s,
        )
