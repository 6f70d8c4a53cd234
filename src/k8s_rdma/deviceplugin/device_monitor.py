"""Device monitor: the host's scan of RDMA devices and the agent's report, kept current and judged together.

The scan follows the kernel's events and small files. It blocks, in a thread of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Self

import structlog

from k8s_rdma.core.devices.rdma_devices import INFINIBAND, RDMA_CM, DeviceInventory
from k8s_rdma.core.node_paths import STATE_SOCKET
from k8s_rdma.deviceplugin.health import AgentReport, AgentState, Health, read_report
from k8s_rdma.deviceplugin.health_events import EventLimiter, HealthChange
from k8s_rdma.deviceplugin.resource import Observable
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.changes import RDMA_DEVICES, CachedScan
from k8s_rdma.linux.discovery.netlink_queries import NetlinkQueries
from k8s_rdma.linux.rdma.character_devices import DEV, DeviceNodes
from k8s_rdma.linux.rdma.observation import RdmaObserver, RdmaQueries, RdmaSnapshot, port_state_files
from k8s_rdma.linux.sysfs import Sysfs
from k8s_rdma.state_reader import AgentLink

if TYPE_CHECKING:
    from k8s_rdma.config.devices import DevicePluginConfig
    from k8s_rdma.wire.report import NodeReport

_log = structlog.get_logger()

AGENT_S = 3.0
"""Time that the first scan waits for an agent that takes connections: else pods' devices would be missing."""

RETRY_S = 1.0
"""Delay after a scan that could not read everything."""

LATER_S = 0.5
"""Delay of a second scan after a change: a driver may set its port's state after its netdev's."""


class DeviceMonitor:
    """Device monitor: inside its context it keeps the inventory up to date; a thread does all that blocks.

    on_health_changes: called in the event loop with the changes of health that users are to see.
    """

    def __init__(
        self,
        config: DevicePluginConfig,
        *,
        host: ScannedHost | None = None,
        on_health_changes: Callable[[Sequence[HealthChange]], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start with an empty inventory. clock: seconds of a monotonic clock."""
        self._run_dir = Path(config.run_dir)
        self._rescan_s = config.rescan_s or None
        self._host = host or ScannedHost()
        self._on_health_changes = on_health_changes
        self._clock = clock
        self._event_limiter = EventLimiter()
        self._scanned_at = clock()
        self._scan_requested = False
        self._inventory = Observable(DeviceInventory())
        self._resources = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opened:
            loop = asyncio.get_running_loop()
            self._wake = asyncio.Event()

            def wake() -> None:
                loop.call_soon_threadsafe(self._wake.set)

            self._agent = DevicesLink(self._run_dir / STATE_SOCKET, changed=self._wake.set, clock=self._clock)
            self._scanner = opened.enter_context(HostScanner(self._host, changed=wake))
            self._thread = opened.enter_context(ThreadPoolExecutor(1, thread_name_prefix="looking"))
            tasks = await opened.enter_async_context(asyncio.TaskGroup())
            opened.callback(tasks.create_task(self._agent.run()).cancel)
            with suppress(TimeoutError):
                async with asyncio.timeout(AGENT_S):
                    await self._agent.wait_for_attempt()
            await self._scan(anew=True)
            opened.callback(tasks.create_task(self._scan_forever()).cancel)
            self._resources = opened.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._resources.aclose()

    @property
    def inventory(self) -> DeviceInventory:
        """Return the current inventory."""
        return self._inventory.value

    async def wait_for_change(self, previous: DeviceInventory) -> DeviceInventory:
        """Return the inventory once it is another object than `previous`."""
        return await self._inventory.wait_for_change(previous)

    @property
    def succeeded(self) -> bool:
        """Report whether a scan of the host has succeeded; until then its devices are unknown."""
        return self._scanner.succeeded

    @property
    def scan_counts(self) -> DeviceScanCounts:
        """Counts of the scans so far."""
        return self._scanner.counts

    @property
    def scan_age_s(self) -> float:
        """Time since the last scan; it may be long if no event required one since."""
        return self._clock() - self._scanned_at

    def rescan(self) -> None:
        """Scan everything, with or without a sign of a change."""
        self._scan_requested = True
        self._wake.set()

    @property
    def health_changes(self) -> Mapping[tuple[str, bool], int]:
        """Number of times that each device became healthy or unhealthy."""
        return self._event_limiter.counts

    async def _scan_forever(self) -> NoReturn:
        rescan_at = self._deadline_after(self._rescan_s)
        later_at: float | None = None
        while True:
            await self._wait(self._earliest(rescan_at, later_at))
            now_s = self._clock()
            rescan, later = _is_due(rescan_at, now_s), _is_due(later_at, now_s)
            rescan_at = self._deadline_after(self._rescan_s) if rescan else rescan_at
            previous = self.inventory
            requested, self._scan_requested = self._scan_requested, False
            await self._scan(anew=rescan or later or requested)
            later_at = None if later else later_at
            if self.inventory is not previous and not later:
                later_at = self._deadline_after(LATER_S)

    async def _scan(self, *, anew: bool) -> None:
        self._wake.clear()
        agent = AgentState(report=self._agent.report, silent_since=self._agent.silent_since)
        loop = asyncio.get_running_loop()
        previous = self.scan_counts
        observed = await loop.run_in_executor(
            self._thread, partial(self._scanner.scan, agent, self._clock(), anew=anew)
        )
        if self.scan_counts != previous:
            self._scanned_at = self._clock()
        self._log_unreadable(observed)
        self._inventory.publish(observed)
        changes = self._event_limiter.changes(observed, self._clock())
        for change in changes:
            _log_change(change)
        if changes:
            self._on_health_changes(changes)

    def _log_unreadable(self, inventory: DeviceInventory) -> None:
        new = [problem for problem in inventory.unreadable if problem not in self.inventory.unreadable]
        for why in new:
            _log.warning("devices_unreadable", why=why)

    async def _wait(self, deadline: float | None) -> None:
        """Wait for a sign of a change, until the deadline at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None if deadline is None else max(0.0, deadline - self._clock())):
                await self._wake.wait()

    def _earliest(self, *deadlines: float | None) -> float | None:
        retry_at = self._deadline_after(RETRY_S if self._scanner.due else None)
        times = (retry_at, self._scanner.due_at(), self._event_limiter.due_at(), *deadlines)
        return min((time for time in times if time is not None), default=None)

    def _deadline_after(self, seconds: float | None) -> float | None:
        return None if seconds is None else self._clock() + seconds


class DevicesLink(AgentLink):
    """The devices of the agent's last report, and since when the agent is silent; kept up to date by `run`.

    report: the latest, if there was one. silent_since: by `clock`, while the agent is silent.
    """

    def __init__(self, socket: Path, *, changed: Callable[[], None], clock: Callable[[], float]) -> None:
        """changed: called when something is new, in the event loop. clock: seconds of a monotonic clock."""
        super().__init__(socket)
        self._changed = changed
        self._clock = clock
        self._attempted = asyncio.Event()
        self.report: AgentReport | None = None
        self.silent_since: float | None = clock()

    async def wait_for_attempt(self) -> None:
        """Return once the agent has sent a report, or cannot be reached."""
        await self._attempted.wait()

    def reported(self, report: NodeReport) -> None:
        """Keep the devices of a report."""
        parsed = read_report(report)
        if (
            report.unreadable and self.report is not None
        ):  # a PF that the agent cannot look at is its all the same
            parsed = replace(parsed, pfs=parsed.pfs | self.report.pfs)
        is_new = self.silent_since is not None or parsed != self.report
        self.report, self.silent_since = parsed, None
        self._attempted.set()
        if is_new:
            self._changed()

    def disconnected(self) -> None:
        """Note that the last report may be out of date from now on."""
        if self.silent_since is None:
            self.silent_since = self._clock()
            self._changed()

    async def away(self, why: str) -> None:  # noqa: ARG002
        """Note that the agent cannot be reached."""
        self._attempted.set()


class HostScanner:
    """Scanner of the host's RDMA devices, for one thread at a time.

    It opens its resources at the first scan.
    """

    def __init__(self, host: ScannedHost, *, changed: Callable[[], None]) -> None:
        """changed: called from another thread when a scan may differ from the last."""
        self._host = host
        self._changed = changed
        self._opened = ExitStack()
        self._cached_scan: CachedScan[RdmaSnapshot] | None = None
        self._nodes = DeviceNodes(host.dev)
        self._health = Health()
        self._expected: Mapping[str, str] = {}
        self._last: RdmaSnapshot | None = None
        self.counts = DeviceScanCounts()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @property
    def succeeded(self) -> bool:
        """Report whether a scan has succeeded."""
        return self._last is not None

    def scan(self, agent: AgentState, now_s: float, *, anew: bool = False) -> DeviceInventory:
        """Return the devices as of now.

        If the host cannot be read, those of the last scan, with the reason.

        anew: scan with or without a sign of a change.
        """
        expected = self._health.expected(agent)
        anew |= expected != self._expected
        self._expected = expected
        failure: tuple[str, ...] = ()
        try:
            self._last = self._scan_rdma(anew=anew)
        except (KernelError, OSError) as error:
            self._count(failed=True)
            failure = (f"the host's RDMA devices cannot be scanned: {error}",)
        if self._last is None:
            return DeviceInventory(unreadable=failure)
        return self._health.inventory(self._last, agent, now_s, unreadable=failure)

    def due_at(self) -> float | None:
        """Return the time at which health changes without an event, by the clock of `now_s`.

        None for never.
        """
        return self._health.due_at()

    @property
    def due(self) -> bool:
        """Report whether the last scan was incomplete, or may lack a change that came during it."""
        return self._cached_scan is None or self._cached_scan.due

    def _scan_rdma(self, *, anew: bool) -> RdmaSnapshot:
        if self._cached_scan is None:
            self._cached_scan = self._open()
        scan = self._cached_scan.scan(anew=anew)
        if scan is not self._last:
            self._count(failed=bool(scan.unreadable))
        return scan

    def _open(self) -> CachedScan[RdmaSnapshot]:
        with ExitStack() as opened:
            sysfs = Sysfs(self._host.sysfs)
            queries = opened.enter_context(self._host.queries())
            observer = RdmaObserver(sysfs, queries, self._nodes)
            cached_scan = CachedScan(
                lambda changed: observer.scan(self._expected, changed=changed),
                files=self._port_states,
                nodes=self._device_nodes,
                incomplete=lambda snapshot: bool(snapshot.unreadable),
                subscriptions=RDMA_DEVICES,
                changed=self._changed,
            )
            opened.enter_context(cached_scan)
            self._opened = opened.pop_all()
        return cached_scan

    def _port_states(self, snapshot: RdmaSnapshot) -> frozenset[Path]:
        return frozenset(self._host.sysfs / path for path in port_state_files(snapshot))

    def _device_nodes(self, snapshot: RdmaSnapshot) -> frozenset[Path]:
        """List the nodes of all devices, which may be made by hand, without a message of the kernel."""
        nodes = {node.path for device in snapshot.present.values() for node in device.characters}
        return frozenset(self._nodes.locate(path) for path in (INFINIBAND, RDMA_CM, *nodes))

    def _count(self, *, failed: bool) -> None:
        self.counts = DeviceScanCounts(self.counts.total + 1, self.counts.failed + failed)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedHost:
    """The machine that is scanned. queries: opens the source of all that sysfs does not hold."""

    sysfs: Path = Path("/sys")
    dev: Path = DEV
    queries: Callable[[], AbstractContextManager[RdmaQueries]] = NetlinkQueries


@dataclass(frozen=True, slots=True)
class DeviceScanCounts:
    """Counts of scans. failed: scans that could not read everything."""

    total: int = 0
    failed: int = 0


def _is_due(deadline: float | None, now_s: float) -> bool:
    return deadline is not None and deadline <= now_s


def _log_change(change: HealthChange) -> None:
    device = change.device
    fields = {"device": device.name, "pf": device.pf_name or device.pf, "pci": device.pci}
    if change.healthy:
        _log.info("device_healthy", **fields, changes=change.changes)
    else:
        _log.warning("device_unhealthy", **fields, why=change.why, changes=change.changes)
