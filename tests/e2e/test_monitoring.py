"""Dashboard and alerts of a real Prometheus that scrapes a node and an extender."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from cluster.control_plane import free_port
from cluster.extenders import Extender
from cluster.nodes import node_object
from cluster.processes import Program, running
from e2e.node import Node, pod
from e2e.test_rest import URL, serve
from k8s_rdma_demo.cluster.api import serving_api
from k8s_rdma_demo.cluster.command import write_kubeconfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


Series = list[dict[str, str]]

PROMETHEUS = shutil.which("prometheus")
pytestmark = pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus: needs Debian's prometheus")

MONITORING = Path(__file__).parents[2] / "deploy" / "monitoring"
DEADLINE_S = 120
NOT_HERE = {
    *("What goes wrong on the wire", "Congestion"),
    *("Packets that the driver dropped", "Pause frames by priority"),
}
"""Counters of RDMA devices and drivers, which virtual SR-IOV has not."""
VALUES = {"$node": "w1", "$namespace": "default", "$pod": "a", "$workload": "a"}
DEVICES_PORT = 54006
WARNS = re.compile(r" (==|>) 0$")


class Prometheus:
    """A running Prometheus, and its answers."""

    def __init__(self, program: Program, http: httpx2.AsyncClient) -> None:
        self.program = program
        self._http = http

    async def get(self, path: str, **parameters: str) -> Any:
        answer = await self._http.get(f"/api/v1/{path}", params=parameters)
        assert answer.is_success, answer.text
        assert "warnings" not in answer.json()
        return answer.json()["data"]

    async def series(self, expression: str) -> Series:
        """Return the labels of an expression's current series."""
        return [each["metric"] for each in (await self.get("query", query=expression))["result"]]

    async def states(self) -> dict[str, str]:
        """Of each alert: `inactive`, `pending`, `firing`; `unknown` when its rule was not evaluated yet."""
        rules = [rule for group in (await self.get("rules"))["groups"] for rule in group["rules"]]
        assert not [rule for rule in rules if rule["health"] == "err"]
        return {rule["name"]: rule["state"] for rule in rules if rule["type"] == "alerting"}

    async def answers(self) -> bool:
        try:
            return (await self._http.get("/-/ready")).is_success
        except httpx2.TransportError:
            return False

    async def has(self, expression: str) -> bool:
        return bool(await self.series(expression))

    async def told(self, **alerts: str) -> bool:
        """Whether the alerts are in these states, and all others are silent."""
        states = await self.states()
        return states == dict.fromkeys(states, "inactive") | alerts


@asynccontextmanager
async def scraping(directory: Path, *targets: str) -> AsyncIterator[Prometheus]:
    """Prometheus, with our rules, each second; it has heard of all targets twice when this is entered."""
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(MONITORING / "alerts.yaml"), str(MONITORING / "usage.yaml")],
        "scrape_configs": [{"job_name": "k8s-rdma", "static_configs": [{"targets": targets}]}],
    }
    (directory / "prometheus.yaml").write_text(json.dumps(config))
    address = f"127.0.0.1:{free_port()}"
    options = {
        "config.file": directory / "prometheus.yaml",
        "storage.tsdb.path": directory / "prometheus",
        "web.listen-address": address,
    }
    command = [str(PROMETHEUS), *(f"--{name}={value}" for name, value in options.items())]
    async with (
        running(directory / "prometheus.log", *command) as program,
        httpx2.AsyncClient(base_url=f"http://{address}", trust_env=False) as http,
    ):
        prometheus = Prometheus(program, http)
        await program.until(prometheus.answers)
        await program.until(partial(prometheus.has, f"sum(sum_over_time(up[1m])) >= {2 * len(targets)}"))
        yield prometheus


async def decide(extender: Extender, http: httpx2.AsyncClient) -> None:
    """A pod is filtered and bound, as a scheduler does it."""
    wants = json.dumps([{"min_tx_rate": 100}])
    made = {
        "metadata": {"name": "b", "annotations": {"rdma_interfaces_required": wants}},
        "spec": {"containers": [{"name": "c", "image": "lab.local/busybox:1"}]},
    }
    created = (await http.post("/api/v1/namespaces/default/pods", json=made)).json()
    verbs, uid = f"{extender.url}/scheduler", created["metadata"]["uid"]
    candidates = {"Pod": created, "Nodes": None, "NodeNames": ["w1"]}
    fits = (await http.post(f"{verbs}/rdma_scheduling", json=candidates)).json()
    assert fits["NodeNames"] == ["w1"], fits
    there = {"PodName": "b", "PodNamespace": "default", "PodUID": uid, "Node": "w1"}
    assert (await http.post(f"{verbs}/bind", json=there)).json()["Error"] == ""


def start_devices(node: Node) -> None:
    """The device plugin, which no kubelet follows."""
    config: dict[str, object] = {
        "resources": [{"mode": "mount", "name": "rdma-sriov/dev-infiniband-mount"}],
        "kubeletDir": str(node.directory / "device-plugins"),
        "runDir": str(node.run_dir),
        "port": DEVICES_PORT,
    }
    (node.directory / "device-plugins").mkdir()
    node.start("device-plugin", node.config("device-plugin", config))


@asynccontextmanager
async def cluster_of(node: Node) -> AsyncIterator[tuple[Extender, httpx2.AsyncClient]]:
    """The node's processes, an API server, whose client this gives, and an extender that is ready."""
    node.start_agent()
    with httpx2.Client(base_url=URL, trust_env=False) as http:
        serve(node, http)
    start_devices(node)
    async with (
        asyncio.timeout(DEADLINE_S),
        serving_api() as api,
        httpx2.AsyncClient(base_url=api.url, trust_env=False) as http,
    ):
        assert (await http.post("/api/v1/nodes", json=node_object("w1", "127.0.0.1", {}))).is_success
        kubeconfig = write_kubeconfig(node.directory / "kubeconfig", api.url)
        extender = Extender(
            node.directory, "extender", {"kubeconfig": str(kubeconfig), "source": "http", "nodePort": 54005}
        )
        await extender.start()
        try:
            await extender.ready()
            yield extender, http
        finally:
            await extender.end()


def panels() -> list[tuple[str, str, set[str]]]:
    """Of every target of the dashboards: its panel's title, its expression, and the labels in its legend."""
    dashboards = [json.loads(path.read_text()) for path in sorted(MONITORING.glob("dashboards/*.json"))]
    return [
        (panel["title"], target["expr"], set(re.findall(r"{{(\w+)}}", target["legendFormat"])))
        for dashboard in dashboards
        for panel in dashboard["panels"]
        for target in panel["targets"]
    ]


async def shown(prometheus: Prometheus) -> None:
    """Each panel shows data with the labels of its legend; one that warns has data that it would warn of."""
    nodes = await prometheus.get("label/node/values", **{"match[]": "k8s_rdma_unreadable"})
    assert nodes == ["w1"]
    for title, template, legend in panels():
        expression = re.sub(r"\$\w+", lambda name: VALUES[name[0]], template)
        warned_of = WARNS.sub("", expression)
        if warned_of != expression or title in NOT_HERE:
            assert not await prometheus.series(expression)
        if title not in NOT_HERE:
            await prometheus.program.until(partial(prometheus.has, warned_of))
            found = await prometheus.series(warned_of)
            assert all(legend <= labels.keys() for labels in found), f"{title}: {found}"


def test_dashboard_shows_a_cluster_and_alerts_tell_of_an_agent_that_is_away(
    make_node: Callable[[int], Node],
) -> None:
    node = make_node(4)

    async def scenario() -> None:
        async with cluster_of(node) as (extender, http):
            sandbox = await node.runtime(chained=False).add(pod("a", {"min_tx_rate": 100}))
            targets = (URL, f"http://127.0.0.1:{DEVICES_PORT}", extender.url)
            async with scraping(node.directory, *(each.partition("//")[2] for each in targets)) as found:
                await decide(extender, http)
                await shown(found)
                await found.program.until(found.told)
                node.kill_agent()
                away = dict.fromkeys(("RdmaAgentAway", "RdmaNodeUnknownToExtender"), "pending")
                await found.program.until(partial(found.told, **away))
            node.start_agent()
            await node.runtime(chained=False).delete(sandbox)

    asyncio.run(scenario())
