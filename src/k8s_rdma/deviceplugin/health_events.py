"""Changes of devices' health as events of their node, no more often than a reader can follow."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.core.devices.rdma_devices import DeviceInventory, RdmaDevice
from k8s_rdma.core.types import NodeName
from k8s_rdma.kube.api import EventsApi, about_node
from k8s_rdma.kube.event_recorder import EventRecorder, EventSource, Outbox
from k8s_rdma.kube.informer import REAL_TIME, Time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from k8s_rdma.config.devices import DevicePluginConfig

    OnHealthChanges = Callable[[Sequence["HealthChange"]], None]

BURST = 4
"""Changes of one device that are reported at once; two faults and their ends."""

EVERY_S = 30.0
"""Interval of reports after the burst; each has the number of changes since the last one."""

COMPONENT = "k8s-rdma-device-plugin"

HEALTHY, UNHEALTHY = "RdmaDeviceHealthy", "RdmaDeviceUnhealthy"

MOST_SINGLE_EVENTS = 4
"""Devices that get an event each; when more change at once, as with their PF's link, they share one."""

REPEAT_S = 0.0
"""Interval of equal events: `EventLimiter` limits lines of the log as well, and reports every last state."""


@asynccontextmanager
async def node_events(config: DevicePluginConfig, api: EventsApi | None) -> AsyncIterator[OnHealthChanges]:
    """Open the recorder of health changes; it writes events if there is a client and a node's name."""
    if config.node is None or api is None:
        yield lambda _: None
        return
    events = NodeEvents(api, NodeName(config.node))
    writing = asyncio.create_task(events.run())
    try:
        yield events.record
    finally:  # no task group: the caller must get the original exception
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing


class NodeEvents:
    """Recorder of health changes as events on the Node; `run` writes them."""

    def __init__(self, api: EventsApi, node: NodeName, time: Time = REAL_TIME) -> None:
        self._outbox = Outbox(time)
        teller = EventSource(component=COMPONENT, node=node, repeat_s=REPEAT_S)
        self._events = EventRecorder(api, self._outbox, teller=teller, now=time.now)
        self._about = about_node(node)

    async def run(self) -> None:
        """Write recorded events until cancelled."""
        await self._outbox.run()

    def record(self, changes: Sequence[HealthChange]) -> None:
        """Record changes."""
        for healthy in (False, True):
            alike = [change for change in changes if change.healthy == healthy]
            if len(alike) > MOST_SINGLE_EVENTS:
                self._record_event(_several(alike), healthy=healthy)
            else:
                for change in alike:
                    self._record_event(_sentence(change), healthy=healthy, part=change.device.name)

    def _record_event(self, message: str, *, healthy: bool, part: str = "") -> None:
        reason = HEALTHY if healthy else UNHEALTHY
        self._events.record(self._about, reason, message, warning=not healthy, part=part)


def _sentence(change: HealthChange) -> str:
    device = change.device
    location = f" (VF {device.vf} of {device.pf_name or device.pf})" if device.vf is not None else ""
    condition = "is healthy again" if change.healthy else f"is unhealthy: {change.why}"
    times = f"; it changed {change.changes} times since the last event" if change.changes > 1 else ""
    return f"RDMA device {device.name}{location} {condition}{times}"


def _several(changes: Sequence[HealthChange]) -> str:
    """Describe several changes, grouped by reason, which most of them share."""
    names: dict[str, list[str]] = {}
    for change in changes:
        names.setdefault(change.why, []).append(change.device.name)
    groups = (f"{', '.join(devices)}{f': {why}' if why else ''}" for why, devices in names.items())
    condition = "are healthy again" if changes[0].healthy else "are unhealthy"
    return f"{len(changes)} RDMA devices {condition}: {'; '.join(groups)}"


class EventLimiter:
    """Rate limit of each device's health changes."""

    def __init__(self) -> None:
        """Start with every device healthy, and without reports."""
        self._buckets: dict[str, _TokenBucket] = {}
        self.counts: Counter[tuple[str, bool]] = Counter()
        """Changes of each device to healthy or unhealthy, reported or not."""
        self._due: dict[str, float] = {}

    def changes(self, inventory: DeviceInventory, now_s: float) -> tuple[HealthChange, ...]:
        """Return the changes to report now; called for every inventory, and when due."""
        found = tuple(self._changes(inventory, now_s))
        for name in self._buckets.keys() - inventory.devices.keys():
            del self._buckets[name]
            self._due.pop(name, None)
            self.counts.pop((name, True), None)
            self.counts.pop((name, False), None)
        return found

    def due_at(self) -> float | None:
        """Return the time at which a report is due without a change, if there is one."""
        return min(self._due.values(), default=None)

    def _changes(self, inventory: DeviceInventory, now_s: float) -> Iterator[HealthChange]:
        for name, device in inventory.devices.items():
            bucket = self._buckets.get(name)
            if bucket is None:
                if not device.faults:
                    continue
                bucket = self._buckets[name] = _TokenBucket(healthy=True, tokens=BURST, changed_at=now_s)
            if bucket.healthy == bool(device.faults):
                bucket.healthy = not device.faults
                bucket.pending_changes += 1
                self.counts[name, bucket.healthy] += 1
            if bucket.pending_changes and self._allows_event(name, bucket, now_s):
                yield HealthChange(device=device, changes=bucket.pending_changes)
                bucket.pending_changes = 0

    def _allows_event(self, name: str, bucket: _TokenBucket, now_s: float) -> bool:
        bucket.tokens = min(BURST, bucket.tokens + (now_s - bucket.changed_at) / EVERY_S)
        bucket.changed_at = now_s
        self._due.pop(name, None)
        if bucket.tokens < 1:
            self._due[name] = now_s + (1 - bucket.tokens) * EVERY_S
            return False
        bucket.tokens -= 1
        return True


@dataclass(slots=True)
class _TokenBucket:
    """The rate limit of one device. tokens: changes that may be reported at once, as of `changed_at`."""

    healthy: bool
    tokens: float
    changed_at: float
    pending_changes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthChange:
    """A device's change of health. changes: number of changes since its last report, with this one."""

    device: RdmaDevice
    changes: int = 1

    @property
    def healthy(self) -> bool:
        """Report whether the device has no faults."""
        return not self.device.faults

    @property
    def why(self) -> str:
        """Faults of the device, if it has any."""
        return "; ".join(self.device.faults)
