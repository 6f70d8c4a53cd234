"""uvicorn with limits, its listening socket, and connections that begin with TLS.

The event loop's own server knows neither how many clients negotiate TLS at a time nor when a certificate was
renewed. What `HttpServer` overrides or reads of uvicorn is not its public interface (0.54):

- `capture_signals`: uvicorn would end the process by the signal itself after a clean stop.
- `startup`, `servers`, `started`, `lifespan`: TLS handshakes count as connections and have a time-out.
- `shutdown`: it closes no listener of ours, and leaves handshakes and unanswered clients open.
- `on_tick`: time-outs of requests and answers are looked at ten times a second, in place of a timer for each.
- `server_state.connections`: the number of connections is bounded for each address, and uvicorn closes them.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, cast

import structlog
import uvicorn

from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.http_server.connections import Connections, Limits
from k8s_rdma.http_server.protocol import HttpProtocol

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator

    from k8s_rdma.http_server.access import ServerTls
    from k8s_rdma.http_server.answer import Application
    from k8s_rdma.http_server.connections import Connection

_log = structlog.get_logger()

ACCEPT_RETRY_S = 0.1
"""After a connection could not be accepted, for want of descriptors as a rule."""

RECEIVE_BUFFER_BYTES = 32 << 10
"""Of each connection (socket(7), SO_RCVBUF, which the kernel doubles), and so of one read. Left to itself it
grows to megabytes for each client that sends fast, and TLS keeps several times a read for each connection."""


class HttpServer(uvicorn.Server):
    """Leaves signals to the process: uvicorn would end it by the signal itself after a clean stop."""

    def __init__(
        self,
        app: Application,
        *,
        shutdown_s: int,
        limits: Limits | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        """shutdown_s: for the requests under way when stopped. tls: None for plain HTTP."""
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
        protocol_factory = partial(
            self._protocol, config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        self._accepting = asyncio.create_task(
            TlsListener(listener, self._tls, protocol_factory, self._connections).run()
        )
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
        self._connections.check(asyncio.get_running_loop().time())
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
        return HttpProtocol(connections=self._connections, tls=self._tls, **uvicorn)


def listen(address: str, port: int, *, backlog: int = 2048) -> socket.socket:
    """A listening socket; for an empty address on all addresses of both families, where there are two.

    K8sRdmaError says where it cannot listen, and why.
    """
    ipv6 = ":" in address or (not address and socket.has_dualstack_ipv6())
    try:
        listener = socket.create_server(
            (address, port),
            family=socket.AF_INET6 if ipv6 else socket.AF_INET,
            backlog=backlog,
            dualstack_ipv6=ipv6 and not address,
        )
    except OSError as error:
        msg = f"cannot listen on {address or 'any address'}, port {port}: {error.strerror}"
        raise K8sRdmaError(msg) from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    return listener


class TlsListener:
    """Accepts until cancelled."""

    def __init__(
        self,
        listener: socket.socket,
        context: Callable[[], ssl.SSLContext],
        protocol_factory: Callable[[], HttpProtocol],
        connections: Connections,
    ) -> None:
        """context: for the next connection. protocol_factory: what speaks on it once TLS is agreed on."""
        listener.setblocking(False)
        self._listener = listener
        self._context = context
        self._protocol_factory = protocol_factory
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
                    await asyncio.sleep(ACCEPT_RETRY_S)
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
            http = self._protocol_factory()
            http.handshake = handshake
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
            self._connections.discard(handshake)


class Handshake:
    """A `connections.Connection` until HTTP begins."""

    def __init__(self, task: asyncio.Task[None] | None, address: str, timeout_s: float) -> None:
        self._task = task
        self.address = address
        self.deadline = asyncio.get_running_loop().time() + timeout_s
        self.unsent_since: float | None = None

    def end(self) -> None:
        """Forget the task: they know each other, and would stay until Python looks for such cycles."""
        self._task = None

    def unsent_bytes(self) -> int:
        """None of ours."""
        return 0

    def time_out(self) -> None:
        """End it."""
        self.abort()

    def shutdown(self) -> None:
        """End it, since the server does."""
        self.abort()

    def abort(self) -> None:
        """End it."""
        if self._task is not None:
            self._task.cancel()
