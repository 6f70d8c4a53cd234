"""The process `k8s-rdma device-plugin`: resources served, and registered with each new kubelet."""

from __future__ import annotations

import asyncio
import signal
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import structlog
import uvloop

from k8s_rdma import process
from k8s_rdma.deviceplugin.app import PluginApp
from k8s_rdma.deviceplugin.device_monitor import DeviceMonitor
from k8s_rdma.deviceplugin.health_events import node_events
from k8s_rdma.deviceplugin.modes import modes_of
from k8s_rdma.deviceplugin.plugin_server import PluginServer
from k8s_rdma.deviceplugin.resource import Resource
from k8s_rdma.deviceplugin.shared_link import SharedLink
from k8s_rdma.deviceplugin.topology import neighbours
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.http_server import HttpServer, Limits, listen
from k8s_rdma.http_server.access import access_of
from k8s_rdma.http_server.connections import return_large_buffers
from k8s_rdma.linux.inotify import DirectoryChanges
from k8s_rdma.process import stop_on_signals
from k8s_rdma.wire.resource_names import SOCKET

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Sequence

    from k8s_rdma.config.devices import DevicePluginConfig

POLL_INTERVAL_S = 1.0
"""Interval of checks without an event: a mount over a directory comes without one, and the kernel limits the
watches of each user."""

SHUTDOWN_S = 2
"""Time for HTTP requests under way; each takes milliseconds."""

LIMITS = Limits(connections=64, body_bytes=16 << 10)

_log = structlog.get_logger()


def run(config: DevicePluginConfig, *, ignored: Sequence[str] = ()) -> None:
    """Serve until SIGTERM, SIGINT or SIGQUIT. K8sRdmaError when it cannot start.

    ignored: keys of the configuration's file that have no effect.
    """
    process.configure_logging("device-plugin")
    return_large_buffers()
    for key in ignored:
        _log.warning("setting_ignored", key=key)
    with ExitStack() as opened:
        listener = None
        if config.port is not None:
            listener = opened.enter_context(listen(config.listen, config.port))
        runner = opened.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        runner.run(_until_signalled(config, listener))


async def _until_signalled(config: DevicePluginConfig, listener: socket.socket | None) -> None:
    stop = stop_on_signals(signal.SIGQUIT)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # by default it would end a process that only begins
    if listener is not None:
        host, port = listener.getsockname()[:2]
        _log.info("listening", address=host, port=port)
    async with (
        node_events(config) as record_changes,
        DeviceMonitor(config, on_health_changes=record_changes) as monitor,
    ):
        plugin = DevicePlugin(config, monitor)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, plugin.renew)
        await plugin.run(stop, listener)


class DevicePlugin:
    """Servers of the configured resources, and the HTTP server beside them."""

    def __init__(self, config: DevicePluginConfig, monitor: DeviceMonitor) -> None:
        """Build the servers; MalformedError when the directory or a configured file is unusable."""
        self._access = access_of(config)
        self._directory = Path(config.kubelet_dir)
        self._monitor = monitor
        self._neighbours = neighbours(config)
        modes = modes_of(config)
        self._shared = SharedLink(Path(config.run_dir) / SOCKET, monitor, modes, changed=self._update)
        self.plugin_servers: Sequence[PluginServer] = [
            PluginServer(Resource(mode, self._shared, self._neighbours.complete), self._directory)
            for mode in modes
        ]
        self._failure: K8sRdmaError | None = None
        self._log_faults = False
        self._update()

    async def run(self, stop: asyncio.Event, listener: socket.socket | None) -> None:
        """Serve until `stop` is set, then remove all sockets.

        K8sRdmaError when kubelet can no longer be reached.
        """
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self._shared.run())]
            await self._shared.wait_for_attempt()
            running += [
                tasks.create_task(self._watch_kubelet(stop)),
                tasks.create_task(self._follow_devices()),
                tasks.create_task(self._neighbours.follow()),
                *(tasks.create_task(plugin_server.run()) for plugin_server in self.plugin_servers),
            ]
            http_server = self._http() if listener is not None else None
            serving = tasks.create_task(http_server.serve(listener)) if http_server and listener else None
            _log.info(
                "device_plugin_ready", resources=[server.resource.name for server in self.plugin_servers]
            )
            await stop.wait()
            for task in running:
                task.cancel()
            if http_server is not None and serving is not None:
                http_server.should_exit = True
                await serving
        await self._neighbours.close()
        if self._failure is not None:
            raise self._failure
        _log.info("device_plugin_stopped")

    def renew(self) -> None:
        """Scan, serve and register everything again."""
        _log.info("renewing")
        self._monitor.rescan()
        for plugin_server in self.plugin_servers:
            plugin_server.renew()

    def _wake(self) -> None:
        for plugin_server in self.plugin_servers:
            plugin_server.wake()

    async def _watch_kubelet(self, stop: asyncio.Event) -> None:
        try:
            await KubeletWatch(self._directory, self._wake).run()
        except K8sRdmaError as error:
            self._failure = error
            stop.set()

    async def _follow_devices(self) -> None:
        inventory = self._monitor.inventory
        self._log_faults = True  # not before the agent was asked: what it is to write would seem missing
        self._update()
        while True:
            inventory = await self._monitor.wait_for_change(inventory)
            self._update()

    def _update(self) -> None:
        self._shared.update()
        for plugin_server in self.plugin_servers:
            try:
                if plugin_server.resource.update():
                    plugin_server.publish()
                if self._log_faults:
                    plugin_server.resource.log_fault()
            except Exception:
                # Others must not go without what is new for a fault of one; it keeps its last list.
                _log.exception("resource_failed", resource=plugin_server.resource.name)

    def _http(self) -> HttpServer:
        app = PluginApp(self.plugin_servers, self._monitor, self._access)
        return HttpServer(app, shutdown_s=SHUTDOWN_S, limits=LIMITS, tls=self._access.tls)


class KubeletWatch:
    """Watch of kubelet's directory; it wakes the servers on each change, and once a second."""

    def __init__(self, directory: Path, wake: Callable[[], None]) -> None:
        self._directory = directory
        self._wake = wake
        self._polling_logged = False

    async def run(self) -> NoReturn:
        """Watch until cancelled. K8sRdmaError when the directory is lost for good."""
        with self._notified():
            while True:
                self._check()
                self._wake()
                await asyncio.sleep(POLL_INTERVAL_S)

    @contextmanager
    def _notified(self) -> Iterator[None]:
        """Get notifications from the kernel within the block, if it has a watch left."""
        try:
            changes = DirectoryChanges()
        except OSError as error:
            self._log_polling(error)
            yield
            return
        loop = asyncio.get_running_loop()

        def directory_changed() -> None:
            changes.forget()
            self._watch(changes)
            self._wake()

        with changes:
            self._watch(changes)
            loop.add_reader(changes, directory_changed)
            try:
                yield
            finally:
                loop.remove_reader(changes)

    def _watch(self, changes: DirectoryChanges) -> None:
        """Watch the directory and its parent, which shows when the directory is created again."""
        try:
            changes.watch((self._directory, self._directory.parent))
        except OSError as error:
            self._log_polling(error)

    def _log_polling(self, error: OSError) -> None:
        if not self._polling_logged:
            _log.warning("kubelet_dir_polled", directory=str(self._directory), error=error.strerror)
        self._polling_logged = True

    def _check(self) -> None:
        """Check that the directory still is the host's: a mounted one stays when the host's is replaced."""
        try:
            links = self._directory.stat().st_nlink
        except OSError:
            return
        if not links:
            raise K8sRdmaError(
                f"kubeletDir {self._directory}: removed from the host while it is mounted here; start again"
            )
