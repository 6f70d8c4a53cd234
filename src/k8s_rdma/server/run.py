"""The process `k8s-rdma server`."""

from __future__ import annotations

import asyncio
import os
import resource
import ssl
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import uvloop

from k8s_rdma import logs
from k8s_rdma.config.files import port_of
from k8s_rdma.core.ids import NodeName
from k8s_rdma.errors import MalformedError
from k8s_rdma.http_server import HttpServer, Limits, listen
from k8s_rdma.http_server.tls import tls_context
from k8s_rdma.http_server.tokens import Tokens, tokens_of
from k8s_rdma.server.agent_link import AgentLink
from k8s_rdma.server.app import NodeApp
from k8s_rdma.server.scan import HardwareScan
from k8s_rdma.signals import stop_on_signals
from k8s_rdma.wire.node_report import NodeReports

if TYPE_CHECKING:
    import socket

    from k8s_rdma.server.agent_link import Scan
    from k8s_rdma.server.config import ServerConfig

_log = structlog.get_logger()

SHUTDOWN_S = 5

OTHER_FILES = 64
"""Files that are open beside connections."""

LIMITS = Limits(body_bytes=16 << 10)
"""Connections stay for longer than the pauses between two looks of a scheduler. Bodies mean nothing here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who is served, and how much of the server one may take.

    tls, tokens: those of now; None for plain HTTP, and for everybody.
    """

    limits: Limits = LIMITS
    tls: Callable[[], ssl.SSLContext] | None = None
    tokens: Callable[[], Tokens] | None = None


EVERYBODY = Access()


def run(config: ServerConfig, *, scan: Scan | None = None) -> None:
    """Serve until SIGTERM or SIGINT. K8sRdmaError when it cannot start.

    scan: as for `AgentLink`; unless given, that of the configuration.
    """
    logs.configure("server")
    access = access_of(config)
    _allow_connections(config.max_connections)
    with ExitStack() as resources:
        listener = resources.enter_context(listen(config.listen, port_of(config, os.environ)))
        if scan is None and config.kernel == "linux" and config.node is not None:
            reports = NodeReports(NodeName(config.node), epoch=f"scan-{uuid.uuid4().hex[:12]}")
            scan = resources.enter_context(HardwareScan(reports, config.hardware.to_core()))
        link = AgentLink(Path(config.run_dir) / "state.sock", scan=scan)
        runner = resources.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        runner.run(_until_signalled(listener, link, access))


async def serve(
    listener: socket.socket, link: AgentLink, stop: asyncio.Event, *, access: Access = EVERYBODY
) -> None:
    """Serve until `stop` is set; then answer those who wait, finish the requests under way, and close."""
    app = NodeApp(link.shown, link.traffic, tokens=access.tokens)
    server = HttpServer(app, shutdown_s=SHUTDOWN_S, limits=access.limits, ready=app.ready, tls=access.tls)
    host, port = listener.getsockname()[:2]
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(link.run())
        serving = tasks.create_task(server.serve_orderly(listener))
        _log.info("server_ready", address=host, port=port, tls=access.tls is not None)
        await stop.wait()
        app.stopping.set()
        server.should_exit = True
        await serving
        following.cancel()
    _log.info("server_stopped")


def check(config: ServerConfig) -> None:
    """Read what a start would read. MalformedError names the field, or the environment's variable."""
    access_of(config)
    port_of(config, os.environ)


def access_of(config: ServerConfig) -> Access:
    """As the configuration says; MalformedError names the field whose file is unusable."""
    return Access(
        limits=replace(LIMITS, connections=config.max_connections),
        tls=None if config.tls is None else tls_context(config.tls),
        tokens=None if config.token_file is None else tokens_of(config.token_file, field="tokenFile"),
    )


def _allow_connections(count: int) -> None:
    """Each is an open file. MalformedError when the process may not open so many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + OTHER_FILES
    if resource.RLIM_INFINITY != hard < wanted:
        msg = f"maxConnections {count}: the process may open {hard} files, {OTHER_FILES} of them for others"
        raise MalformedError(msg)
    if resource.RLIM_INFINITY != soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _until_signalled(listener: socket.socket, link: AgentLink, access: Access) -> None:
    await serve(listener, link, stop_on_signals(), access=access)
