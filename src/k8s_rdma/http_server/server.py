"""An HTTP server with limits, its listening socket, and connections that begin with TLS.

The event loop's own server knows neither how many clients negotiate TLS at a time nor when a certificate was
renewed, so connections with TLS are accepted by `TlsListener`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from contextlib import suppress
from functools import partial
from math import inf
from typing import TYPE_CHECKING, NoReturn

import structlog

from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.http_server.connections import (
    RECEIVE_BUFFER_BYTES,
    ConnectionLimits,
    Connections,
    set_receive_buffer,
)
from k8s_rdma.http_server.protocol import HttpProtocol, PlainHttpProtocol, ServerState, TlsHttpProtocol

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from k8s_rdma.http_server.asgi import Application, ServerTls

_log = structlog.get_logger()

BACKLOG = 2048
"""Connections that the kernel completes before they are accepted."""

DRAIN_POLL_S = 0.1
"""Interval of the check at the end whether all requests are answered."""

ACCEPT_RETRY_S = 0.1
"""Delay after a connection could not be accepted, usually for lack of descriptors."""

_TAKEN = (
    "`ss -tanp sport = :{port}` shows who has it. If that is a client, whose port the kernel chose, keep the "
    "port from clients: sysctl net.ipv4.ip_local_reserved_ports={port}"
)
"""Advice for a port in use. The kernel's range for clients (`ip_local_port_range`) has our default ports."""


class HttpServer:
    """Server of an application on a listening socket; signals are left to the process.

    started: whether it accepts connections.
    """

    def __init__(
        self,
        app: Application,
        *,
        shutdown_s: float,
        limits: ConnectionLimits | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        """Prepare a server. shutdown_s: for the requests under way when stopped. tls: None for plain HTTP."""
        self.started = False
        self._wake = asyncio.Event()
        connections = Connections(limits or ConnectionLimits(), sooner=self._wake.set)
        self.state = ServerState(app=app, connections=connections, tls=tls)
        self._shutdown_s = shutdown_s
        self._stopping = False

    def stop(self) -> None:
        """Have `serve` finish the requests under way, and return."""
        self._stopping = True
        self._wake.set()

    async def serve(self, listener: socket.socket) -> None:
        """Serve until `stop`, then finish the requests under way.

        Every connection is closed, also when this is cancelled or when requests outlast `shutdown_s`: a loop
        of uvloop's that is closed over open connections can wait for them for ever (seen when a test fails
        with its client in the same loop).
        """
        accepting = await self._accept(listener)
        self.started = True
        try:
            while not self._stopping:
                await self._check_connections()
        finally:
            accepting.close()
            try:
                await self._drain(accepting)
            finally:
                self.state.connections.abort()

    async def _check_connections(self) -> None:
        """Check the connections if that is due, and wait until it may be due: a server at rest sleeps."""
        connections, loop = self.state.connections, asyncio.get_running_loop()
        if connections.due_s <= loop.time():
            connections.check(loop.time())
        self._wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(None if connections.due_s == inf else connections.due_s):
                await self._wake.wait()

    async def _accept(self, listener: socket.socket) -> asyncio.Server | TlsListener:
        if self.state.tls is not None:
            protocol_factory = partial(TlsHttpProtocol, self.state)
            return TlsListener(listener, self.state.tls, protocol_factory, self.state.connections)
        loop = asyncio.get_running_loop()
        return await loop.create_server(
            partial(PlainHttpProtocol, self.state), sock=listener, backlog=BACKLOG
        )

    async def _drain(self, accepting: asyncio.Server | TlsListener) -> None:
        """Wait for the requests under way, and cancel those that outlast `shutdown_s`."""
        self.state.connections.shutdown()
        try:
            async with asyncio.timeout(self._shutdown_s):
                while self.state.connections or self.state.tasks:  # noqa: ASYNC110  the process ends
                    await asyncio.sleep(DRAIN_POLL_S)
                await accepting.wait_closed()
        except TimeoutError:
            _log.error("requests_cancelled", requests=len(self.state.tasks), shutdown_s=self._shutdown_s)
            for task in self.state.tasks:
                task.cancel()


def listen(address: str, port: int, *, backlog: int = BACKLOG) -> socket.socket:
    """Open a listening socket; for an empty address on all addresses of both families, if there are two.

    K8sRdmaError names the address and the reason if it cannot listen.
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
        # create_server() adds to the system's words the address, in its own
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        msg = f"cannot listen on {address or 'any address'}, port {port}: {reason}"
        details = _TAKEN.format(port=port) if error.errno == errno.EADDRINUSE else ""
        raise K8sRdmaError(msg, details=details) from error
    return listener


class TlsListener:
    """Listener for connections with TLS, from its creation until it is closed, as an `asyncio.Server`.

    It closes its socket as soon as no connection waits for it any more.
    """

    def __init__(
        self,
        listener: socket.socket,
        context: Callable[[], ssl.SSLContext],
        protocol_factory: Callable[[], HttpProtocol],
        connections: Connections,
    ) -> None:
        """Begin to accept. context: of the next connection. protocol_factory: makes the protocol above it."""
        listener.setblocking(False)
        set_receive_buffer(listener, RECEIVE_BUFFER_BYTES)
        self._listener = listener
        self._context = context
        self._protocol_factory = protocol_factory
        self._connections = connections
        self._task = asyncio.create_task(self._run())

    def close(self) -> None:
        """Accept no more connections, and close those that still negotiate."""
        self._task.cancel()

    async def wait_closed(self) -> None:
        """Return once no connection negotiates any more."""
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        with self._listener:
            async with asyncio.TaskGroup() as handshakes:
                await self._accept(handshakes)

    async def _accept(self, handshakes: asyncio.TaskGroup) -> NoReturn:
        loop = asyncio.get_running_loop()
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
            error.__traceback__ = None  # # its frames hold TLS's buffers, and the objects that hold the error
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
        """Forget the task: they refer to each other, and would stay until Python collects such cycles."""
        self._task = None

    def unsent_bytes(self) -> int:
        """Return 0, because no data is sent above TLS yet."""
        return 0

    def time_out(self) -> None:
        """Close the connection."""
        self.abort()

    def shutdown(self) -> None:
        """Close the connection."""
        self.abort()

    def abort(self) -> None:
        """Close the connection."""
        if self._task is not None:
            self._task.cancel()
