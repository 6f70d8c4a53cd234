"""The process `k8s-rdma web`: pages for people, without any privilege, apart from nodes and extender."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from time import monotonic
from typing import TYPE_CHECKING

import structlog
import uvloop

from k8s_rdma import process
from k8s_rdma.config.ports import port_of
from k8s_rdma.http_server import ConnectionLimits, HttpServer, listen
from k8s_rdma.http_server.asgi import ServerTls, tls_context
from k8s_rdma.http_server.connections import return_large_buffers
from k8s_rdma.kube.client import connect, require_kubeconfig
from k8s_rdma.kube.documents import Documents
from k8s_rdma.web.access import AccessRule, LoopbackAccess, ReviewedAccess
from k8s_rdma.web.app import Sources, WebApp
from k8s_rdma.web.claim_pods import ClaimPodReader
from k8s_rdma.web.extender_views import ExtenderViews
from k8s_rdma.web.node_traffic import NodeCounterSource, NodeTraffic
from k8s_rdma.web.right_sizing import RecordReader
from k8s_rdma.web.traffic import PrometheusTraffic

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator

    from k8s_rdma.config.web import WebConfig

SHUTDOWN_S = 5
BODY_BYTES = 16 << 10
"""Bytes of a request's body, which has no meaning."""

_log = structlog.get_logger()


def run(config: WebConfig) -> None:
    """Serve until SIGTERM or SIGINT. K8sRdmaError when it cannot start."""
    with listen(config.listen, port_of(config, os.environ)) as listener:
        run_on(listener, config)


def run_on(listener: socket.socket, config: WebConfig) -> None:
    """Serve on a listening socket until SIGTERM or SIGINT. K8sRdmaError when it cannot start."""
    process.configure_logging("web")
    return_large_buffers()
    tls = _server_tls(config)
    sources = _sources(config)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(listener, config, sources, tls))


def check(config: WebConfig) -> None:
    """Read all that a start would read. MalformedError names the field, or the environment's variable."""
    _server_tls(config)
    _sources(config)
    port_of(config, os.environ)
    if (config.access == "reviews" or config.claims) and config.kubeconfig is not None:
        require_kubeconfig(config.kubeconfig)


def _server_tls(config: WebConfig) -> ServerTls | None:
    return None if config.tls is None else tls_context(config.tls)


def _sources(config: WebConfig) -> Sources:
    servers = None if config.nodes is None else NodeCounterSource(config.nodes, clock=monotonic)
    return Sources(
        extender=ExtenderViews(config.extender, poll_s=config.poll_s, clock=monotonic),
        traffic=PrometheusTraffic(config.prometheus, poll_s=config.poll_s),
        nodes=NodeTraffic(servers, clock=monotonic),
        claims=ClaimPodReader(
            connect=(lambda: Documents(config.kubeconfig)) if config.claims else None, clock=monotonic
        ),
        records=RecordReader(config.prometheus, clock=monotonic),
    )


async def _serve(listener: socket.socket, config: WebConfig, sources: Sources, tls: ServerTls | None) -> None:
    stop = process.stop_on_signals()
    limits = ConnectionLimits(body_bytes=BODY_BYTES, connections=config.max_connections)
    async with _access(config) as access, asyncio.TaskGroup() as tasks:
        app = WebApp(sources, access, pages_of_viewer=config.max_connections // 2)
        server = HttpServer(app, shutdown_s=SHUTDOWN_S, limits=limits, tls=tls)
        serving = tasks.create_task(server.serve(listener))
        polling = [
            tasks.create_task(source.run())
            for source in (sources.extender, sources.traffic, sources.nodes, sources.claims, sources.records)
        ]
        host, port = listener.getsockname()[:2]
        _log.info("web_ready", address=host, port=port, tls=tls is not None, access=config.access)
        await stop.wait()
        server.stop()
        await serving
        for task in polling:
            task.cancel()
    _log.info("web_stopped")


@asynccontextmanager
async def _access(config: WebConfig) -> AsyncIterator[AccessRule]:
    if config.access == "loopback":
        yield LoopbackAccess()
        return
    client = connect(config.kubeconfig)
    try:
        yield ReviewedAccess(client, monotonic)
    finally:
        await client.close()
