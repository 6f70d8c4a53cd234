"""The process `k8s-rdma server`."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import uvicorn
import uvloop

from k8s_rdma import logs
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.server.agent_link import AgentLink
from k8s_rdma.server.app import make_app
from k8s_rdma.server.config import port_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.server.agent_link import Scan
    from k8s_rdma.server.config import ServerConfig

_log = structlog.get_logger()

BACKLOG = 2048
KEEP_ALIVE_S = 75
"""Longer than the pauses between two looks of a scheduler, so that its connections stay."""

SHUTDOWN_S = 5


def run(config: ServerConfig, *, scan: Scan | None = None) -> None:
    """Serve until SIGTERM or SIGINT. K8sRdmaError when it cannot listen.

    scan: as for `AgentLink`.
    """
    logs.configure("server")
    with listen(config.listen, port_of(config, os.environ)) as listener:
        link = AgentLink(Path(config.run_dir) / "state.sock", scan=scan)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_until_signalled(listener, link))


def listen(address: str, port: int) -> socket.socket:
    """A listening socket; for an empty address on all addresses of both families, where there are two."""
    ipv6 = ":" in address or (not address and socket.has_dualstack_ipv6())
    try:
        return socket.create_server(
            (address, port),
            family=socket.AF_INET6 if ipv6 else socket.AF_INET,
            backlog=BACKLOG,
            dualstack_ipv6=ipv6 and not address,
        )
    except OSError as error:
        msg = f"cannot listen on {address or 'any address'}, port {port}: {error.strerror}"
        raise K8sRdmaError(msg) from error


async def serve(listener: socket.socket, link: AgentLink, stop: asyncio.Event) -> None:
    """Serve until `stop` is set; then finish the requests under way and close."""
    server = _Server(
        uvicorn.Config(
            make_app(lambda: link.answers),
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=SHUTDOWN_S,
        )
    )
    host, port = listener.getsockname()[:2]
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(link.run())
        serving = tasks.create_task(server.serve_orderly(listener))
        _log.info("server_ready", address=host, port=port)
        await stop.wait()
        server.should_exit = True
        await serving
        following.cancel()
    _log.info("server_stopped")


class _Server(uvicorn.Server):
    """Leaves signals to the process: uvicorn would end it by the signal itself after a clean stop."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
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


async def _until_signalled(listener: socket.socket, link: AgentLink) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await serve(listener, link, stop)
