"""HTTP application of the device plugin: probes, metrics, index."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING

from k8s_rdma import __version__
from k8s_rdma.http_server.access import EVERYBODY, Access
from k8s_rdma.http_server.answer import (
    CONTENT_TYPE,
    Answer,
    Receive,
    Samples,
    Scope,
    Send,
    counter,
    exposition,
    gauge,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from prometheus_client import Metric

    from k8s_rdma.deviceplugin.device_monitor import DeviceMonitor
    from k8s_rdma.deviceplugin.plugin_server import PluginServer

INDEX = """\
k8s-rdma: device plugin of this node

GET /metrics  metrics of resources, devices and kubelet (Prometheus)
GET /healthz  whether this process runs, and what kubelet has of each resource
GET /readyz   whether kubelet follows all of them
"""

_PREFIX = "k8s_rdma_device_plugin_"
_OUTCOMES = {True: "taken", False: "failed"}


class PluginApp:
    """ASGI application of the device plugin's probes, metrics and index."""

    def __init__(
        self, servers: Sequence[PluginServer], monitor: DeviceMonitor, access: Access = EVERYBODY
    ) -> None:
        self._servers = servers
        self._monitor = monitor
        self._access = access
        self._paths: dict[str, Callable[[], Answer]] = {
            "/": lambda: Answer(INDEX),
            "/metrics": lambda: Answer(render_metrics(servers, monitor), content_type=CONTENT_TYPE),
            "/healthz": lambda: Answer(f"ok\n{self._state()}"),
            "/readyz": self._readyz,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        answer = self._access.refuse(scope, self._paths) or self._paths[scope["path"]]()
        await answer(scope, receive, send)

    def _readyz(self) -> Answer:
        ready = self._monitor.succeeded and not any(server.problem for server in self._servers)
        return Answer(f"{'ok' if ready else 'not ready'}\n{self._state()}", status=200 if ready else 503)

    def _state(self) -> str:
        """List the state of each resource, and what cannot be read, a line each."""
        lines = [f"{_state(server)}\n" for server in self._servers]
        lines += [f"unreadable: {why}\n" for why in self._monitor.inventory.unreadable]
        return "".join(lines)


def _state(server: PluginServer) -> str:
    states = [server.problem or "kubelet follows it"]
    if server.resource.fault:
        states.append(f"no container can have it: {server.resource.fault}")
    elif server.resource.unhealthy:
        states.append(server.resource.unhealthy)
    return f"{server.resource.name}: {'; '.join(states)}"


def render_metrics(servers: Sequence[PluginServer], monitor: DeviceMonitor) -> str:
    """Render the metrics of all resources and devices."""
    build = gauge(f"{_PREFIX}build_info", "1, with the program's version.", [({"version": __version__}, 1)])
    metrics = chain([build], _resource_metrics(servers), _health_metrics(monitor), _scan_metrics(monitor))
    return exposition(metrics).decode()


def _resource_metrics(servers: Sequence[PluginServer]) -> Iterator[Metric]:
    resources = [({"resource": server.resource.name}, server) for server in servers]
    yield gauge(
        f"{_PREFIX}kubelet_up",
        "Whether kubelet follows the list of any resource.",
        [({}, any(server.followed for server in servers))],
    )
    yield gauge(
        f"{_PREFIX}followed",
        "Whether kubelet follows the resource's list.",
        [(labels, server.followed) for labels, server in resources],
    )
    yield gauge(f"{_PREFIX}devices", "Devices offered, by health.", _devices(servers))
    yield gauge(
        f"{_PREFIX}unusable_resource",
        "Resources that no container can have, and why.",
        [
            ({**labels, "why": server.resource.fault}, 1)
            for labels, server in resources
            if server.resource.fault
        ],
    )
    yield counter(
        f"{_PREFIX}allocations_total",
        "Containers that got devices.",
        [(labels, server.resource.counts.allocations) for labels, server in resources],
    )
    yield counter(f"{_PREFIX}refusals_total", "Allocations refused, by reason.", _refusals(servers))
    yield counter(f"{_PREFIX}registrations_total", "Registrations with kubelet.", _registrations(servers))


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
        f"{_PREFIX}unhealthy_rdma_device",
        "RDMA devices that are not healthy, and why.",
        [
            ({"device": device.name, "pf": device.pf_name or device.pf, "why": "; ".join(device.faults)}, 1)
            for device in monitor.inventory.devices.values()
            if device.faults
        ],
    )
    yield counter(
        f"{_PREFIX}health_changes_total",
        "How often RDMA devices became healthy, or unhealthy.",
        [
            ({"device": name, "health": "healthy" if healthy else "unhealthy"}, count)
            for (name, healthy), count in sorted(monitor.health_changes.items())
        ],
    )


def _scan_metrics(monitor: DeviceMonitor) -> Iterator[Metric]:
    scans = monitor.scan_counts
    yield counter(f"{_PREFIX}looks_total", "Scans of the hardware.", [({}, scans.total)])
    help_text = "Scans of the hardware that were incomplete."
    yield counter(f"{_PREFIX}failed_looks_total", help_text, [({}, scans.failed)])
    help_text = "Time since the last scan of the hardware."
    yield gauge(f"{_PREFIX}look_age_seconds", help_text, [({}, monitor.scan_age_s)])
    help_text = "Parts of the hardware that the last scan could not read."
    yield gauge(f"{_PREFIX}unreadable", help_text, [({}, len(monitor.inventory.unreadable))])
