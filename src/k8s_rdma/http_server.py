"""What the processes that speak HTTP have in common: a listening socket, and uvicorn on it.

The application is the process's own; signals are the process's business too.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

import uvicorn

from k8s_rdma.errors import K8sRdmaError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import ASGIApp


def listen(address: str, port: int, *, backlog: int = 2048) -> socket.socket:
    """A listening socket; for an empty address on all addresses of both families, where there are two.

    K8sRdmaError says where it cannot listen, and why.
    """
    ipv6 = ":" in address or (not address and socket.has_dualstack_ipv6())
    try:
        return socket.create_server(
            (address, port),
            family=socket.AF_INET6 if ipv6 else socket.AF_INET,
            backlog=backlog,
            dualstack_ipv6=ipv6 and not address,
        )
    except OSError as error:
        msg = f"cannot listen on {address or 'any address'}, port {port}: {error.strerror}"
        raise K8sRdmaError(msg) from error


class HttpServer(uvicorn.Server):
    """Leaves signals to the process: uvicorn would end it by the signal itself after a clean stop."""

    def __init__(self, app: ASGIApp, *, keep_alive_s: int, shutdown_s: int) -> None:
        """keep_alive_s: for idle connections. shutdown_s: for the requests under way when stopped."""
        super().__init__(
            uvicorn.Config(
                app,
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=keep_alive_s,
                timeout_graceful_shutdown=shutdown_s,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield

    async def serve_orderly(self, listener: socket.socket) -> None:
        """Serve, and close every connection also when cancelled.

        uvicorn leaves them open then, and a uvloop loop that is closed over open connections can wait for
        them for ever (seen when a test fails with its client in the same loop).
        """
        try:
            await self.serve(sockets=[listener])
        except asyncio.CancelledError:
            if self.started:
                await self.shutdown(sockets=[listener])
            raise
