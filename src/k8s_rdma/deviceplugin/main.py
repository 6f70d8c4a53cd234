"""The process `k8s-rdma device-plugin`: resources, registered with each new kubelet; probes and metrics.

Through `SharedLink` the agent writes the CDI specifications of shared resources (`wire.cdi`).
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import uvloop

from k8s_rdma import __version__, process
from k8s_rdma.core.devices.pod_devices import shared_device
from k8s_rdma.core.devices.rdma_devices import CharacterDevice, DeviceInventory
from k8s_rdma.core.node_paths import CDI_SOCKET
from k8s_rdma.deviceplugin.device_monitor import DeviceMonitor
from k8s_rdma.deviceplugin.directory_watch import DirectoryWatch
from k8s_rdma.deviceplugin.health_events import node_events
from k8s_rdma.deviceplugin.modes import Mode, modes_of, to_publish
from k8s_rdma.deviceplugin.plugin_server import PluginServer
from k8s_rdma.deviceplugin.resource import PREFIX, InventorySource, Resource
from k8s_rdma.deviceplugin.topology import neighbours
from k8s_rdma.errors import K8sRdmaError, MalformedError
from k8s_rdma.http_server import ConnectionLimits, HttpServer, listen
from k8s_rdma.http_server.asgi import (
    CONTENT_TYPE,
    EVERYBODY,
    Access,
    Answer,
    Receive,
    Samples,
    Scope,
    Send,
    access_of,
    counter,
    exposition,
    gauge,
)
from k8s_rdma.http_server.connections import return_large_buffers
from k8s_rdma.process import stop_on_signals
from k8s_rdma.wire.cdi import MAX_LINE_BYTES, Declared, Written, decode_written, encode_line

if TYPE_CHECKING:
    import socket
    from asyncio import StreamReader, StreamWriter, TimerHandle
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from prometheus_client import Metric

    from k8s_rdma.config.devices import DevicePluginConfig
    from k8s_rdma.deviceplugin.dra import DraDriver
    from k8s_rdma.kube.client import Client


GRACE_S = 10.0
"""Time for which specifications count after the agent is gone: it keeps them when it restarts."""

ANSWER_S = 10.0
"""Time for an answer; the agent reads a few files and writes one."""

FIRST_ANSWER_S = 2.0
"""Time at the start without an offer, so that kubelet does not see unhealthy devices first."""

RETRY_S = 1.0
"""Delay until the agent is tried again, or asked again for a specification that it could not write."""

INDEX = """\
k8s-rdma: device plugin of this node

GET /metrics  metrics of resources, devices and kubelet (Prometheus)
GET /healthz  whether this process runs, and what kubelet has of each resource
GET /readyz   whether kubelet follows all of them
"""

_OUTCOMES = {True: "taken", False: "failed"}

SHUTDOWN_S = 2
"""Time for HTTP requests under way; each takes milliseconds."""

LIMITS = ConnectionLimits(connections=64, body_bytes=16 << 10)

_log = structlog.get_logger()


class SharedLink:
    """The inventory with the CDI devices of shared resources that the agent has written.

    `run` keeps a connection to the agent: a specification counts while it lasts. Without a resource that is
    shared by CDI nothing is done. A `resource.InventorySource`.
    """

    def __init__(
        self,
        socket: Path,
        devices: InventorySource,
        modes: Sequence[Mode],
        *,
        changed: Callable[[], None],
        grace_s: float = GRACE_S,
    ) -> None:
        """Declare the shared resources of modes. changed: called when the written specifications change."""
        self._socket = socket
        self._devices = devices
        self._modes = modes
        self._changed = changed
        self._grace_s = grace_s
        self._inventory = self._base = DeviceInventory()
        self._published: frozenset[str] = frozenset()
        self._desired = to_publish(modes, self._base)
        self._nodes: frozenset[CharacterDevice] = frozenset()
        self._desired_changed = asyncio.Event()
        self._attempted = asyncio.Event()
        self._expiry: TimerHandle | None = None
        self._failed: Mapping[str, str] = {}
        self._problem = ""

    @property
    def inventory(self) -> DeviceInventory:
        """Current inventory; the same object without a change."""
        if self._devices.inventory is not self._base or self._inventory.published != self._published:
            self._base = self._devices.inventory
            self._inventory = replace(self._base, published=self._published)
        return self._inventory

    def update(self) -> None:
        """Declare again if devices or their nodes have changed; the agent then reads the nodes again."""
        inventory = self._devices.inventory
        desired = to_publish(self._modes, inventory)
        nodes = frozenset(
            node for names in desired.values() for name in names for node in inventory.devices[name].nodes
        )
        if (desired, nodes) != (self._desired, self._nodes):
            self._desired, self._nodes = desired, nodes
            self._desired_changed.set()

    async def wait_for_attempt(self) -> None:
        """Return once the agent has answered or cannot be reached, or after `FIRST_ANSWER_S`."""
        if self._desired:
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_ANSWER_S):
                    await self._attempted.wait()

    async def run(self) -> None:
        """Keep the declaration up to date until cancelled."""
        try:
            while self._desired:
                try:
                    await self._declare()
                except (OSError, EOFError, ValueError, TimeoutError, MalformedError) as error:
                    self._disconnected(error)
                await asyncio.sleep(RETRY_S)
        finally:
            self._stop_expiry()

    async def _declare(self) -> None:
        """Declare on one connection until it fails."""
        incoming, writer = await asyncio.open_unix_connection(self._socket, limit=MAX_LINE_BYTES)
        try:
            while True:
                self._desired_changed.clear()
                self._answered(await _call(incoming, writer, Declared(resources=dict(self._desired))))
                await self._wait_for_change(incoming)
        finally:
            writer.close()

    async def _wait_for_change(self, incoming: StreamReader) -> None:
        """Return when a declaration is due; EOFError when the agent closes the connection."""
        ended = asyncio.ensure_future(incoming.read(1))
        change = asyncio.ensure_future(self._desired_changed.wait())
        try:
            await asyncio.wait(
                (ended, change),
                timeout=RETRY_S if self._failed else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if ended.done():
                raise EOFError(
                    "it ended the connection" if not ended.result() else "it sent data without a request"
                )
        finally:
            for task in (ended, change):
                task.cancel()
            await asyncio.gather(ended, change, return_exceptions=True)

    def _answered(self, written: Written) -> None:
        self._stop_expiry()
        if written.failed and written.failed != self._failed:
            _log.warning("shared_devices_not_written", resources=written.failed)
        self._failed = written.failed
        self._problem = ""
        self._publish(frozenset(map(shared_device, written.resources)))
        self._attempted.set()

    def _disconnected(self, error: Exception) -> None:
        self._attempted.set()
        problem = str(error) or "it does not answer"
        if problem != self._problem:
            _log.warning("shared_devices_untold", socket=str(self._socket), why=problem)
        self._problem = problem
        if self._expiry is None and self._published:
            self._expiry = asyncio.get_running_loop().call_later(self._grace_s, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        self._publish(frozenset())

    def _stop_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def _publish(self, published: frozenset[str]) -> None:
        if published != self._published:
            self._published = published
            self._changed()


async def _call(incoming: StreamReader, writer: StreamWriter, declared: Declared) -> Written:
    async with asyncio.timeout(ANSWER_S):
        writer.write(encode_line(declared))
        await writer.drain()
        line = await incoming.readline()
    if not line.endswith(b"\n"):
        raise EOFError("it ended the connection")
    return decode_written(line)


class PluginApp:
    """ASGI application of the device plugin's probes, metrics and index."""

    def __init__(
        self,
        servers: Sequence[PluginServer],
        monitor: DeviceMonitor,
        access: Access = EVERYBODY,
        driver: DraDriver | None = None,
    ) -> None:
        self._servers = servers
        self._driver = driver
        self._monitor = monitor
        self._access = access
        self._paths: dict[str, Callable[[], Answer]] = {
            "/": lambda: Answer(INDEX),
            "/metrics": lambda: Answer(render_metrics(servers, monitor, driver), content_type=CONTENT_TYPE),
            "/healthz": lambda: Answer(f"ok\n{self._state()}"),
            "/readyz": self._readyz,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        answer = self._access.refuse(scope, self._paths) or self._paths[scope["path"]]()
        await answer(scope, receive, send)

    def _readyz(self) -> Answer:
        problems = [server.problem for server in self._servers]
        problems += [self._driver.problem] if self._driver else []
        ready = self._monitor.succeeded and not any(problems)
        return Answer(f"{'ok' if ready else 'not ready'}\n{self._state()}", status=200 if ready else 503)

    def _state(self) -> str:
        """List the state of each resource, and the unreadable parts, a line each."""
        lines = [f"{_state(server)}\n" for server in self._servers]
        lines += [f"claims: {self._driver.problem or 'kubelet uses the driver'}\n"] if self._driver else []
        lines += [f"unreadable: {why}\n" for why in self._monitor.inventory.unreadable]
        return "".join(lines)


def _state(server: PluginServer) -> str:
    states = [server.problem or "kubelet follows it"]
    if server.resource.fault:
        states.append(f"no container can have it: {server.resource.fault}")
    elif server.resource.unhealthy:
        states.append(server.resource.unhealthy)
    return f"{server.resource.name}: {'; '.join(states)}"


def render_metrics(
    servers: Sequence[PluginServer], monitor: DeviceMonitor, driver: DraDriver | None = None
) -> str:
    """Render the metrics of all resources and devices."""
    build = gauge(f"{PREFIX}build_info", "1, with the program's version.", [({"version": __version__}, 1)])
    claims = _claim_metrics(driver) if driver is not None else ()
    metrics = chain(
        [build], _resource_metrics(servers), _health_metrics(monitor), _scan_metrics(monitor), claims
    )
    return exposition(metrics).decode()


def _resource_metrics(servers: Sequence[PluginServer]) -> Iterator[Metric]:
    resources = [({"resource": server.resource.name}, server) for server in servers]
    yield gauge(
        f"{PREFIX}kubelet_up",
        "Whether kubelet follows the list of any resource.",
        [({}, any(server.followed for server in servers))],
    )
    yield gauge(
        f"{PREFIX}followed",
        "Whether kubelet follows the resource's list.",
        [(labels, server.followed) for labels, server in resources],
    )
    yield gauge(f"{PREFIX}devices", "Devices offered, by health.", _devices(servers))
    yield gauge(
        f"{PREFIX}unusable_resource",
        "Resources that no container can have, and why.",
        [
            ({**labels, "why": server.resource.fault}, 1)
            for labels, server in resources
            if server.resource.fault
        ],
    )
    yield counter(
        f"{PREFIX}allocations_total",
        "Containers that got devices.",
        [(labels, server.resource.counts.allocations) for labels, server in resources],
    )
    yield counter(f"{PREFIX}refusals_total", "Allocations refused, by reason.", _refusals(servers))
    yield counter(f"{PREFIX}registrations_total", "Registrations with kubelet.", _registrations(servers))


def _devices(servers: Sequence[PluginServer]) -> Samples:
    for server in servers:
        counts = Counter("unhealthy" if device.unhealthy else "healthy" for device in server.resource.devices)
        for health in ("healthy", "unhealthy"):
            yield {"resource": server.resource.name, "health": health}, counts[health]


def _refusals(servers: Sequence[PluginServer]) -> Samples:
    for server in servers:
        for reason, count in sorted(server.resource.counts.refusals.items()):
            yield {"resource": server.resource.name, "reason": reason}, count


def _registrations(servers: Sequence[PluginServer]) -> Samples:
    for server in servers:
        for accepted, outcome in _OUTCOMES.items():
            count = server.resource.counts.registrations[accepted]
            yield {"resource": server.resource.name, "outcome": outcome}, count


def _health_metrics(monitor: DeviceMonitor) -> Iterator[Metric]:
    yield gauge(
        f"{PREFIX}unhealthy_rdma_device",
        "RDMA devices that are not healthy, and why.",
        [
            ({"device": device.name, "pf": device.pf_name or device.pf, "why": "; ".join(device.faults)}, 1)
            for device in monitor.inventory.devices.values()
            if device.faults
        ],
    )
    yield counter(
        f"{PREFIX}health_changes_total",
        "How often RDMA devices became healthy, or unhealthy.",
        [
            ({"device": name, "health": "healthy" if healthy else "unhealthy"}, count)
            for (name, healthy), count in sorted(monitor.health_changes.items())
        ],
    )


def _scan_metrics(monitor: DeviceMonitor) -> Iterator[Metric]:
    scans = monitor.scan_counts
    yield counter(f"{PREFIX}looks_total", "Scans of the hardware.", [({}, scans.total)])
    help_text = "Scans of the hardware that were incomplete."
    yield counter(f"{PREFIX}failed_looks_total", help_text, [({}, scans.failed)])
    help_text = "Time since the last scan of the hardware."
    yield gauge(f"{PREFIX}look_age_seconds", help_text, [({}, monitor.scan_age_s)])
    help_text = "Parts of the hardware that the last scan could not read."
    yield gauge(f"{PREFIX}unreadable", help_text, [({}, len(monitor.inventory.unreadable))])


def _claim_metrics(driver: DraDriver) -> Iterator[Metric]:
    yield gauge(
        f"{PREFIX}claims_up",
        "Whether kubelet uses the DRA driver, its slices are published, and the agent answers.",
        [({}, not driver.problem)],
    )
    help_text = "Whether kubelet has registered the DRA driver."
    yield gauge(f"{PREFIX}claims_registered", help_text, [({}, not driver.registration)])
    help_text = "Whether the agent tells the DRA driver what it offers."
    yield gauge(f"{PREFIX}claims_agent_up", help_text, [({}, driver.agent_up)])
    help_text = "ResourceSlices of the node in the API server."
    yield gauge(f"{PREFIX}slices", help_text, [({}, driver.slices.count)])
    yield counter(
        f"{PREFIX}claims_total",
        "ResourceClaims that kubelet had prepared and unprepared, by outcome.",
        [
            ({"command": command, "outcome": outcome}, driver.counts[command, succeeded])
            for command in ("prepare", "unprepare")
            for succeeded, outcome in ((True, "done"), (False, "failed"))
        ],
    )
    yield from driver.durations.collect()
    help_text = "Writes of the node's ResourceSlices."
    yield counter(f"{PREFIX}slice_writes_total", help_text, [({}, driver.slices.writes)])
    help_text = "Writes of `status.devices` of ResourceClaims."
    yield counter(f"{PREFIX}claim_status_writes_total", help_text, [({}, driver.statuses.writes)])
    yield counter(
        f"{PREFIX}claim_status_failures_total",
        "Attempts to write `status.devices` of ResourceClaims that failed, by reason.",
        [({"reason": reason}, count) for reason, count in sorted(driver.statuses.failures.items())],
    )


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
        api_client(config) as api,
        node_events(config, api) as record_changes,
        DeviceMonitor(config, on_health_changes=record_changes) as monitor,
    ):
        driver = claims_driver(config, api)
        plugin = DevicePlugin(config, monitor, driver)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, plugin.renew)
        await plugin.run(stop, listener)


@asynccontextmanager
async def api_client(config: DevicePluginConfig) -> AsyncIterator[Client | None]:
    """Open the client of the API server, if it is needed.

    One for all, because each has its own connections and TLS. MalformedError if the credentials are unusable.
    """
    has_events = config.node is not None and (config.kubeconfig or config.in_cluster)
    if config.claims is None and not has_events:
        yield None
        return
    from k8s_rdma.kube.client import connect  # noqa: PLC0415  much of the process' memory

    client = connect(config.kubeconfig, in_cluster=config.in_cluster)
    try:
        yield client
    finally:
        await client.close()


def claims_driver(config: DevicePluginConfig, api: Client | None) -> DraDriver | None:
    """Build the DRA driver, if it is configured. MalformedError when a directory's path is too long."""
    if config.claims is None or api is None:
        return None
    from k8s_rdma.deviceplugin.dra import DraDriver  # noqa: PLC0415  memory

    return DraDriver(config, config.claims, api)


class DevicePlugin:
    """Servers of the configured resources, and the HTTP server beside them."""

    def __init__(
        self, config: DevicePluginConfig, monitor: DeviceMonitor, driver: DraDriver | None = None
    ) -> None:
        """Build the servers; MalformedError when the directory or a configured file is unusable."""
        self._access = access_of(config)
        self._directory = Path(config.kubelet_dir)
        self._driver = driver
        self._monitor = monitor
        self._neighbours = neighbours(config)
        modes = modes_of(config)
        self._shared = SharedLink(Path(config.run_dir) / CDI_SOCKET, monitor, modes, changed=self._update)
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
                *([tasks.create_task(self._watch_kubelet(stop))] if self.plugin_servers else []),
                tasks.create_task(self._follow_devices()),
                tasks.create_task(self._neighbours.follow()),
                *(tasks.create_task(plugin_server.run()) for plugin_server in self.plugin_servers),
                *([tasks.create_task(self._driver.run())] if self._driver else []),
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
                http_server.stop()
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
            await DirectoryWatch((self._directory,), self._wake).run()
        except K8sRdmaError as error:
            self._failure = error
            stop.set()

    async def _follow_devices(self) -> None:
        inventory = self._monitor.inventory
        self._log_faults = True  # not before the agent was asked, because its files would seem missing
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
                # The fault of one must not keep new devices from others; it keeps its last list.
                _log.exception("resource_failed", resource=plugin_server.resource.name)

    def _http(self) -> HttpServer:
        app = PluginApp(self.plugin_servers, self._monitor, self._access, self._driver)
        return HttpServer(app, shutdown_s=SHUTDOWN_S, limits=LIMITS, tls=self._access.tls)
