"""The process `k8s-rdma extender`."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog
import uvicorn
import uvloop

from k8s_rdma import logs
from k8s_rdma.config import load_key
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.extender.app import make_app
from k8s_rdma.extender.config import port_of
from k8s_rdma.extender.service import running
from k8s_rdma.kube.client import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.extender.config import ExtenderConfig
    from k8s_rdma.kube.api import ClusterApi

BACKLOG = 128
KEEP_ALIVE_S = 300
"""Longer than Go's client keeps an idle connection (90 s): it must be the one that closes, since it does
not repeat a POST that meets a connection closed at the same moment."""

SHUTDOWN_S = 30
"""For the requests under way, above all for binds."""

_log = structlog.get_logger()


def run(config: ExtenderConfig) -> None:
    """Serve until SIGTERM or SIGINT. K8sRdmaError when it cannot start."""
    logs.configure("extender")
    key = load_key(config.placement_key_file)
    _allow_many_connections()
    with (
        listen(config.listen, port_of(config, os.environ)) as listener,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(_until_signalled(config, key, listener))


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


async def serve(
    config: ExtenderConfig,
    api: ClusterApi,
    listener: socket.socket,
    *,
    stop: asyncio.Event,
    key: bytes | None = None,
) -> None:
    """Serve until `stop` is set; then finish the requests under way and close."""
    async with running(config, api, key) as extender, asyncio.TaskGroup() as tasks:
        server = _Server(
            uvicorn.Config(
                make_app(extender, config),
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
        serving = tasks.create_task(server.serve(sockets=[listener]))
        host, port = listener.getsockname()[:2]
        _log.info("extender_ready", address=host, port=port)
        await stop.wait()
        server.should_exit = True
        await serving
    _log.info("extender_stopped")


class _Server(uvicorn.Server):
    """Leaves signals to the process: uvicorn would end it by the signal itself after a clean stop."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _until_signalled(config: ExtenderConfig, key: bytes | None, listener: socket.socket) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    client = connect(config.kubeconfig, timeout_s=config.api_timeout_s)
    try:
        await serve(config, client, listener, stop=stop, key=key)
    finally:
        await client.close()


def _allow_many_connections() -> None:
    """One is kept open to every node; a thousand descriptors are the usual soft limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
