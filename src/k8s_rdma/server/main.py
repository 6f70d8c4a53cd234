"""The process `k8s-rdma server`, with a scan of the hardware of its own while the agent is away.

The scan is unprivileged, and has no ledger.
"""

from __future__ import annotations

import asyncio
import os
import resource
import uuid
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

import structlog
import uvloop

from k8s_rdma import process
from k8s_rdma.config.ports import port_of
from k8s_rdma.core.devices.required_rdma import with_required_rdma
from k8s_rdma.core.ledger import Ledger
from k8s_rdma.core.node_paths import STATE_SOCKET
from k8s_rdma.core.types import NodeName
from k8s_rdma.errors import KernelError, MalformedError
from k8s_rdma.http_server import ConnectionLimits, HttpServer, listen
from k8s_rdma.http_server.asgi import EVERYBODY, Access, access_of
from k8s_rdma.http_server.connections import return_large_buffers
from k8s_rdma.linux.changes import CachedScan, files_without_events
from k8s_rdma.linux.discovery.netlink_queries import UnprivilegedQueries
from k8s_rdma.linux.discovery.observation import Observer
from k8s_rdma.linux.sysfs import Sysfs
from k8s_rdma.process import stop_on_signals
from k8s_rdma.server.agent_link import AnswersLink, Scan
from k8s_rdma.server.app import MAX_BODY_BYTES, NodeApp
from k8s_rdma.wire.report_builder import NodeReports

if TYPE_CHECKING:
    import socket

    from k8s_rdma.config.server import ServerConfig
    from k8s_rdma.core.kernel import Hardware
    from k8s_rdma.core.pf_selection import Selection
    from k8s_rdma.linux.netlink.queries import Queries
    from k8s_rdma.wire.report import NodeReport

_log = structlog.get_logger()
SHUTDOWN_S = 5

OTHER_FILES = 64
"""Open files other than connections."""

LIMITS = ConnectionLimits(body_bytes=MAX_BODY_BYTES)
"""Connections stay open for longer than the pauses between two requests of a scheduler. Bodies have a meaning
for placements alone."""


def run(config: ServerConfig, *, scan: Scan | None = None) -> None:
    """Serve until SIGTERM or SIGINT. K8sRdmaError if it cannot start.

    scan: as for `AnswersLink`; by default that of the configuration.
    """
    process.configure_logging("server")
    return_large_buffers()
    access = access_of(config)
    _allow_connections(config.max_connections)
    with ExitStack() as resources:
        listener = resources.enter_context(listen(config.listen, port_of(config, os.environ)))
        if scan is None and config.kernel == "linux" and config.node is not None:
            reports = NodeReports(NodeName(config.node), epoch=f"scan-{uuid.uuid4().hex[:12]}")
            scan = resources.enter_context(HardwareScan(reports, config.hardware.to_core()))
        link = AnswersLink(Path(config.run_dir) / STATE_SOCKET, scan=scan)
        runner = resources.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        limits = replace(LIMITS, connections=config.max_connections)
        runner.run(_until_signalled(listener, link, access, limits))


async def _until_signalled(
    listener: socket.socket, link: AnswersLink, access: Access, limits: ConnectionLimits
) -> None:
    await serve(listener, link, stop_on_signals(), access=access, limits=limits)


async def serve(
    listener: socket.socket,
    link: AnswersLink,
    stop: asyncio.Event,
    *,
    access: Access = EVERYBODY,
    limits: ConnectionLimits = LIMITS,
) -> None:
    """Serve until `stop` is set; then answer open watches, finish the requests under way, and close."""
    app = NodeApp(link.shown, link.traffic, link.deliveries, access=access)
    server = HttpServer(app, shutdown_s=SHUTDOWN_S, limits=limits, tls=access.tls)
    host, port = listener.getsockname()[:2]
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(link.run())
        serving = tasks.create_task(server.serve(listener))
        _log.info("server_ready", address=host, port=port, tls=access.tls is not None)
        await stop.wait()
        app.stopping.set()
        server.stop()
        await serving
        following.cancel()
    _log.info("server_stopped")


def check(config: ServerConfig) -> None:
    """Read all that a start would read. MalformedError names the field, or the environment's variable."""
    access_of(config)
    port_of(config, os.environ)


def _allow_connections(count: int) -> None:
    """Raise the limit of open files. MalformedError when the process may not have so many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    required = count + OTHER_FILES
    if resource.RLIM_INFINITY != hard < required:
        msg = f"maxConnections {count}: the process may open {hard} files, {OTHER_FILES} of them for others"
        raise MalformedError(msg)
    if resource.RLIM_INFINITY != soft < required:
        resource.setrlimit(resource.RLIMIT_NOFILE, (required, hard))


class HardwareScan:
    """An `agent_link.Scan`. It opens its resources at its first call, which may never come."""

    def __init__(self, reports: NodeReports, selection: Selection, sysfs: Path = Path("/sys")) -> None:
        self._reports = reports
        self._selection = selection
        self._sysfs = sysfs
        self._opened = ExitStack()
        self._cached_scan: CachedScan[Hardware] | None = None
        self._hardware: Hardware | None = None
        self._report: NodeReport | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def __call__(self) -> NodeReport:
        """Report the hardware, with everything in use as foreign; the same object without a change.

        KernelError if the kernel cannot be queried at all.
        """
        try:
            hardware = self._scan()
        except OSError as error:
            msg = f"it cannot be scanned: {error}"
            raise KernelError(msg) from error
        if self._report is None or hardware is not self._hardware:
            required = with_required_rdma(hardware) if self._selection.require_rdma else hardware
            self._hardware, self._report = hardware, self._reports.build(required, Ledger())
        return self._report

    def _scan(self) -> Hardware:
        if self._cached_scan is None:
            with ExitStack() as opened:
                queries = opened.enter_context(UnprivilegedQueries(Sysfs(self._sysfs)))
                self._cached_scan = opened.enter_context(cached_scan(self._sysfs, queries, self._selection))
                self._opened = opened.pop_all()
        return self._cached_scan.scan()


def cached_scan(root: Path, queries: Queries, selection: Selection) -> CachedScan[Hardware]:
    """Build a scan of the machine's hardware; KernelError or OSError as `Observer.observe`."""
    sysfs = Sysfs(root)
    return CachedScan(
        Observer(sysfs, queries, selection).observe,
        files=lambda hardware: frozenset(root / file for file in files_without_events(sysfs, hardware)),
        incomplete=lambda hardware: bool(hardware.unreadable),
    )
