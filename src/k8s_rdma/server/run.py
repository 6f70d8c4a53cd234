"""The process `k8s-rdma server`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import uvloop

from k8s_rdma import logs
from k8s_rdma.config import port_of
from k8s_rdma.http_server import HttpServer, listen
from k8s_rdma.server.agent_link import AgentLink
from k8s_rdma.server.app import make_app
from k8s_rdma.signals import stop_on_signals

if TYPE_CHECKING:
    import socket

    from k8s_rdma.server.agent_link import Scan
    from k8s_rdma.server.config import ServerConfig

_log = structlog.get_logger()

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


async def serve(listener: socket.socket, link: AgentLink, stop: asyncio.Event) -> None:
    """Serve until `stop` is set; then finish the requests under way and close."""
    server = HttpServer(make_app(lambda: link.answers), keep_alive_s=KEEP_ALIVE_S, shutdown_s=SHUTDOWN_S)
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


async def _until_signalled(listener: socket.socket, link: AgentLink) -> None:
    await serve(listener, link, stop_on_signals())
