"""The nodes' metrics in a real Prometheus, by the chart's ServiceMonitors, and the pages made of them."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import yaml

from cluster.control_plane import free_port
from cluster.processes import running
from deploy.rendering.chart import documents, render
from k8s_rdma.config.web import PrometheusEndpoint
from k8s_rdma.http_server import Answer
from k8s_rdma.web.traffic import PrometheusTraffic
from web.cases import EXAMPLE
from web.serving import listening, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from k8s_rdma.http_server.asgi import Receive, Scope, Send

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus: needs Debian's package of this name"),
]

NODE_POD = "k8s-rdma-node-x7k2p"
OPEN = {"config": {"openPaths": ["/metrics"]}}
MONITORED = {
    "monitoring": {"serviceMonitor": {"enabled": True}},
    "node": {"server": OPEN, "devicePlugin": OPEN},
}


@asynccontextmanager
async def prometheus(directory: Path, scraped: list[dict[str, Any]]) -> AsyncIterator[httpx2.AsyncClient]:
    """Run it on a directory with its data; a client of its HTTP API."""
    port = free_port()
    config = directory / "prometheus.yaml"
    config.write_text(yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": scraped}))
    options = {
        "config.file": config,
        "storage.tsdb.path": directory / "data",
        "web.listen-address": f"127.0.0.1:{port}",
    }
    arguments = (f"--{name}={value}" for name, value in options.items())
    async with (
        running(directory / "prometheus.log", str(PROMETHEUS), *arguments) as program,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=20) as client,
    ):

        async def is_ready() -> bool:
            try:
                return (await client.get("/-/ready")).status_code == 200
            except httpx2.TransportError:
                return False

        await program.until(is_ready)
        yield client


def in_snake_case(rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rules of a ServiceMonitor, as the operator writes them for Prometheus."""
    return [
        {re.sub("[A-Z]", lambda letter: "_" + letter[0].lower(), key): value for key, value in rule.items()}
        for rule in rules
    ]


METRICS = """\
k8s_rdma_problems{node="a-node-that-lies"} 0
k8s_rdma_vf_reserved_bits_per_second{node="a-node-that-lies",namespace="research",pod="train-0",vf="1"} 1
k8s_rdma_vf_cap_bits_per_second{node="w1",namespace="research",pod="train-0",job="kubelet",vf="1"} 1
"""


async def test_series_are_of_the_pod_that_holds_the_vf_and_of_the_node_that_was_scraped(tmp_path: Path):
    async def metrics(scope: Scope, receive: Receive, send: Send) -> None:
        await Answer(METRICS, content_type="text/plain")(scope, receive, send)

    monitors = [each for each in documents(render(MONITORED)) if each["kind"] == "ServiceMonitor"]
    [node_monitor] = [each for each in monitors if each["metadata"]["name"] == "k8s-rdma-node"]
    endpoint = node_monitor["spec"]["endpoints"][0]
    async with listening(metrics) as url:
        target = {
            "targets": [url.removeprefix("http://")],
            "labels": {
                "namespace": "k8s-rdma",
                "pod": NODE_POD,
                "__meta_kubernetes_pod_node_name": "w1",
            },
        }
        scraped = {
            "job_name": "k8s-rdma-node",
            "static_configs": [target],
            "relabel_configs": in_snake_case(endpoint["relabelings"]),
            "metric_relabel_configs": in_snake_case(endpoint["metricRelabelings"]),
        }
        async with prometheus(tmp_path, [scraped]) as client:
            found: dict[str, dict[str, str]] = {}
            deadline = time.monotonic() + 30
            while len(found) < 3 and time.monotonic() < deadline:
                reply = await client.get("/api/v1/query", params={"query": '{__name__=~"k8s_rdma_.*"}'})
                found = {
                    each["metric"]["__name__"]: each["metric"] for each in reply.json()["data"]["result"]
                }
    reserved = found["k8s_rdma_vf_reserved_bits_per_second"]
    assert (reserved["namespace"], reserved["pod"], reserved["node"]) == ("research", "train-0", "w1")
    assert found["k8s_rdma_vf_cap_bits_per_second"]["job"] == "k8s-rdma-node"
    problems = found["k8s_rdma_problems"]
    assert (problems["namespace"], problems["pod"], problems["node"]) == ("k8s-rdma", NODE_POD, "w1")
    assert not [label for series in found.values() for label in series if label in {"exported_node"}]


def write_history(directory: Path, mbps: dict[tuple[str, str, str, str], tuple[float, float]]) -> None:
    """Write five minutes of counters, by node, PF, namespace and pod, for these rates of both directions."""
    now = time.time()
    lines = []
    for index, metric in enumerate(("transmitted", "received")):
        name = f"k8s_rdma_vf_{metric}_bytes"
        lines.append(f"# TYPE {name} counter")
        for (node, pf, namespace, pod), rates in mbps.items():
            labels = f'node="{node}",pf="{pf}",namespace="{namespace}",pod="{pod}",vf="1"'
            lines += [
                f"{name}_total{{{labels}}} {rates[index] * (300 - ago) * 1e6 / 8:.0f} {now - ago:.3f}"
                for ago in range(300, -1, -15)
            ]
    history = directory / "history.txt"
    history.write_text("\n".join([*lines, "# EOF", ""]))
    create = (str(PROMTOOL), "tsdb", "create-blocks-from", "openmetrics", history, directory / "data")
    subprocess.run(create, check=True, capture_output=True)


async def test_pages_show_traffic_beside_reservations(tmp_path: Path):
    pod = ("worker-1", "enp65s0f0np0", "research", "llama-pretrain-worker-7")
    write_history(tmp_path, {pod: (1_500.0, 250.0), ("worker-2", "other", "team-b", "x"): (0.0, 0.0)})
    async with prometheus(tmp_path, []) as client:
        endpoint = PrometheusEndpoint(url=str(client.base_url))
        async with serving(EXAMPLE, prometheus=endpoint) as site:
            assert site.traffic.failure == ""
            overview = (await site.http.get("/")).text
            node = (await site.http.get("/nodes/worker-1")).text
            namespace = (await site.http.get("/namespaces/research")).text
    assert overview.count("pods send") == 1
    assert "pods send 1.5 Gb/s" in overview
    assert overview.count('class="measured"') == 2  # the bar's, and the legend's
    for page in (node, namespace):
        assert "sends 1.5 Gb/s, receives 250 Mb/s" in page
        assert '<td data-label="sends">unknown</td>' in page, "unknown is not zero"


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://127.0.0.1:1/prefix/"])
async def test_without_prometheus_traffic_is_not_known(url: str):
    async with serving(EXAMPLE, prometheus=PrometheusEndpoint(url=url)) as site:
        page = (await site.http.get("/")).text
        assert (await site.http.get("/nodes/worker-1")).status_code == 200
    assert "Traffic is not known: no Prometheus answers at http://127.0.0.1:1" in page
    assert "pods send" not in page


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"<html>", "the Prometheus's answer cannot be read"),
        (b'{"data": {"result": [{"metric": {}, "value": [1, "many"]}]}}', "'many' is no number"),
        (b'{"data": {"result": [{"metric": {"node": 1}, "value": [1, "1"]}]}}', "node"),
    ],
)
async def test_answer_that_is_not_of_prometheus_is_no_traffic(body: bytes, why: str):
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await Answer(body, content_type="application/json")(scope, receive, send)

    async with listening(answer) as url:
        traffic = PrometheusTraffic(PrometheusEndpoint(url=url), poll_s=60)
        await traffic.poll()
    assert why in traffic.failure
    assert traffic.sent_mbps == {}
