"""uvicorn with limits."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, cast

import uvicorn

from k8s_rdma.http_server.connections import Connections
from k8s_rdma.http_server.limits import Limits
from k8s_rdma.http_server.protocol import HttpProtocol
from k8s_rdma.http_server.tls_listener import TlsListener

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from k8s_rdma.http_server.asgi import Application
    from k8s_rdma.http_server.connections import Connection
    from k8s_rdma.http_server.protocol import Ready
    from k8s_rdma.http_server.tls import ServerTls


class HttpServer(uvicorn.Server):
    """Leaves signals to the process: uvicorn would end it by the signal itself after a clean stop."""

    def __init__(
        self,
        app: Application,
        *,
        shutdown_s: int,
        limits: Limits | None = None,
        ready: Ready | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        """shutdown_s: for the requests under way when stopped. ready: asked before the application.

        tls: None for plain HTTP.
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
        self._ready = ready
        self._tls = tls
        self._accepting: asyncio.Task[NoReturn] | None = None
        connections = cast("set[Connection]", self.server_state.connections)
        self._connections = Connections(limits, connections)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn, which however leaves TLS to the event loop."""
        if self._tls is None or sockets is None:
            await super().startup(sockets)
            return
        await self.lifespan.startup()
        [listener] = sockets
        make = partial(
            self._protocol, config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        self._accepting = asyncio.create_task(TlsListener(listener, self._tls, make, self._connections).run())
        self.servers: list[asyncio.Server] = []
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait([self._accepting])
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        """What uvicorn does ten times a second."""
        self._connections.look(asyncio.get_running_loop().time())
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
            self._connections.abort()

    def _protocol(self, **uvicorn: Any) -> HttpProtocol:
        return HttpProtocol(connections=self._connections, ready=self._ready, tls=self._tls, **uvicorn)
