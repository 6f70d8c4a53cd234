"""The page of metrics, from the exposition of each process."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, cast

from docs_site.reference.tables import code, table
from k8s_rdma.config.devices import ClaimsConfig, DevicePluginConfig
from k8s_rdma.config.extender import ExtenderConfig
from k8s_rdma.config.webhook import WebhookConfig
from k8s_rdma.deviceplugin import main as device_plugin
from k8s_rdma.deviceplugin.device_monitor import DeviceMonitor, ScannedHost
from k8s_rdma.deviceplugin.dra import DraDriver
from k8s_rdma.extender.extender import Extender
from k8s_rdma.extender.metrics import Metrics
from k8s_rdma.extender.rdmanode_informer import RdmaNodeInformer
from k8s_rdma.kube.api import AbsentApi
from k8s_rdma.server.agent_link import render_age, render_metrics, render_traffic
from k8s_rdma.webhook.injection import Injection
from k8s_rdma.webhook.main import WebhookApp
from k8s_rdma.wire.report import NodeReport
from k8s_rdma.wire.state_socket import Counters, ScanCounts

if TYPE_CHECKING:
    from k8s_rdma.kube.published_api import PublishedApi
    from k8s_rdma.kube.resource_slices import SlicesApi

HEAD = """# Metrics

Made of the code. Each process answers `GET /metrics` in the Prometheus text format; its own page tells of
labels, and of what is worth an alert. Dashboard and alerts: [monitoring](../howto-monitoring.md).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """title: of its section. about: its address, and the page that says more. exposition: its text."""

    title: str
    about: str
    exposition: str


_FAMILY = re.compile(r"^# HELP (\S+) ((?!Deprecated: ).*)\n# TYPE \S+ (\w+)$", re.MULTILINE)


def metrics_page() -> str:
    """Return every family of every process, with its type."""
    return "\n".join([HEAD, *map(_section, processes())])


def processes() -> tuple[Process, ...]:
    """Return each with all families that it can have, which are there without samples as well."""
    return (
        Process(
            title="Node",
            about="Port 54005; [agent reference](../agent.md#metrics).",
            exposition=_of_a_node(),
        ),
        Process(
            title="Extender",
            about="Port 8888; [scheduler extender](../extender-troubleshooting.md#metrics).",
            exposition=asyncio.run(_of_an_extender()),
        ),
        Process(
            title="Device plugin",
            about="Port 54006; [device plugin](../device-plugin-reference.md#metrics).",
            exposition=asyncio.run(_of_a_device_plugin()),
        ),
        Process(
            title="Webhook",
            about="Port 54007; [injection](../injection.md#metrics).",
            exposition=WebhookApp(Injection.configured(WebhookConfig())).metrics(),
        ),
    )


def _section(process: Process) -> str:
    kinds: dict[str, str] = {}
    texts: dict[str, dict[str, None]] = {}
    for name, text, kind in _FAMILY.findall(process.exposition):
        kinds[name] = kind
        texts.setdefault(name, {})[text] = None
    rows = [[code(name), kind, " ".join(texts[name])] for name, kind in kinds.items()]
    return f"## {process.title}\n\n{process.about}\n\n{table(('metric', 'type', 'meaning'), rows)}"


def _of_a_node() -> str:
    """Return the metrics of a node without PFs."""
    report = NodeReport(node="w1", generation="0.0", ledger="ok", pfs=())
    scans = ScanCounts(total=0, failed=0, seconds=0)
    counters = Counters(node="w1", age_s=0, failed_samples=0, scans=scans)
    return b"".join([render_metrics(report), render_traffic(counters), render_age(counters, 0)]).decode()


async def _of_an_extender() -> str:
    """Return those of extenders without an API server: one asks nodes, one reads their objects."""
    published = Metrics()
    extender = Extender(ExtenderConfig(source="http"), AbsentApi())
    async with extender.running():
        nobody = cast("PublishedApi", AbsentApi())  # it is not entered, and so sends no request
        states = RdmaNodeInformer(extender.cache.state, nobody, float, stale_s=1, namespace="")
        published.add(states.readings())
        return extender.metrics.render() + published.render()


async def _of_a_device_plugin() -> str:
    """Return those of a device plugin on a machine without devices, and without a kubelet."""
    with TemporaryDirectory() as nothing:
        host = ScannedHost(sysfs=Path(nothing), dev=Path(nothing))
        async with DeviceMonitor(DevicePluginConfig(run_dir=nothing), host=host) as looking:
            silent = cast("SlicesApi", AbsentApi())  # the driver is not run, and so sends no request
            driver = DraDriver(DevicePluginConfig(run_dir=nothing), ClaimsConfig(), silent)
            return device_plugin.render_metrics((), looking, driver)
