"""The load of nodes at rest on a real API server: the agents' own publishers, with their own intervals.

Budget for 5,000 nodes: 1 % of a processor of kube-apiserver, and 50 KB/s that etcd writes to its log. So many
agents as fit on this machine publish `RdmaNode` objects of 2 PFs and 20 allocations, each over connections of
its own; their load beyond that of the API server at rest, in the time of two renewals of each, is scaled.
Runs if `K8S_RDMA_KUBE_BIN` names a folder with kube-apiserver and etcd (`tests/cluster`).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import pytest
import yaml

from bench.test_cni_add import processor_ms
from cluster.control_plane import write_kubeconfig
from cluster.publishers import CRD
from cluster.real import obstacle, real
from k8s_rdma.agent.cluster.publisher import Publishing
from k8s_rdma.config.agent import AgentConfig, PublishConfig
from k8s_rdma.kube.client import connect
from k8s_rdma.wire.report import NodeReport
from large_cluster import node_name, report_of

if TYPE_CHECKING:
    from cluster.real import Real
    from conftest import Record

AGENTS, NODES, PODS = 500, 5_000, 20
RENEW_S = PublishConfig().renew_s
MEASURED_S = 2 * RENEW_S
APART_S = RENEW_S / AGENTS
"""The time between the starts of two agents: renewals are spread over the interval, as in a cluster."""

REST_S = 60.0
BUDGET_PERCENT, BUDGET_KB = 1, 50
_WAL = re.compile(r"^etcd_disk_wal_write_bytes_total ([0-9.e+]+)$", re.MULTILINE)
_HEAP = re.compile(r"^# (?:HeapInuse =|Stack =) ([0-9]+)", re.MULTILINE)
_ETCD = re.compile(r"--listen-client-urls=(\S+?)\x00")


@dataclass
class Unchanged:
    """`Reports` of a node without changes."""

    report: NodeReport

    def now(self) -> NodeReport:
        """Return the report."""
        return self.report

    async def wait_for_change(self, previous: NodeReport | None) -> NodeReport:
        """Wait for ever."""
        if previous is not self.report:
            return self.report
        await asyncio.Event().wait()
        return self.report


@dataclass(frozen=True)
class Load:
    """Counted since their start: processor time of both programs, ms, and bytes in etcd's log."""

    api_server_ms: float
    etcd_ms: float
    wal_bytes: float

    def per_second(self, since: Load, seconds: float) -> tuple[float, float, float]:
        """Return percent of a processor for both programs, and bytes."""
        return (
            (self.api_server_ms - since.api_server_ms) / seconds / 10,
            (self.etcd_ms - since.etcd_ms) / seconds / 10,
            (self.wal_bytes - since.wal_bytes) / seconds,
        )


class Programs:
    """The API server and etcd of a control plane."""

    def __init__(self, directory: Path) -> None:
        commands = {int(found.parent.name): found for found in Path("/proc").glob("[0-9]*/cmdline")}
        own = {pid: path.read_text() for pid, path in commands.items() if str(directory) in _text(path)}
        self.api_server = next(pid for pid, command in own.items() if "/kube-apiserver\0" in command)
        self.etcd, command = next(each for each in own.items() if "/etcd\0" in each[1])
        found = _ETCD.search(command)
        assert found is not None
        self._metrics = f"{found[1]}/metrics"

    def load(self) -> Load:
        """Return the load so far."""
        wal = _WAL.search(httpx2.get(self._metrics, trust_env=False).text)
        assert wal is not None
        return Load(processor_ms(self.api_server), processor_ms(self.etcd), float(wal[1]))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""  # it has ended


async def publish(index: int, kubeconfig: Path, stack: AsyncExitStack) -> asyncio.Task[None]:
    """Have a node's agent publish."""
    client = connect(str(kubeconfig))
    stack.push_async_callback(client.close)
    config = AgentConfig(node=node_name(index), in_cluster=True, publish=PublishConfig(rdma_node=True))
    reports = Unchanged(report_of(index, PODS, "alike"))
    return asyncio.create_task(Publishing(config, client, reports).run())


async def make_objects(plane: Real) -> None:
    """Create the nodes, the namespace of their Leases, and the kind that they publish."""
    await plane.add_crd(yaml.safe_load(CRD.read_text()))
    async with plane.client() as http:
        await http.post("/api/v1/namespaces", json={"metadata": {"name": "k8s-rdma"}})
        for index in range(AGENTS):
            await http.post("/api/v1/nodes", json={"metadata": {"name": node_name(index)}})


async def heap_mib(plane: Real) -> float:
    """Return the API server's heap and stacks, after a garbage collection."""
    async with plane.client() as http:
        profile = (await http.get("/debug/pprof/heap", params={"gc": "1", "debug": "1"})).text
    return sum(float(size) for size in _HEAP.findall(profile)) / 2**20


async def measured(directory: Path) -> tuple[float, float, float, float]:
    """Return percent of a processor of the API server and of etcd, bytes a second, and MiB, for all nodes."""
    async with real(directory) as plane, AsyncExitStack() as stack:
        await make_objects(plane)
        programs = Programs(directory)
        await asyncio.sleep(REST_S / 2)
        began = programs.load()
        await asyncio.sleep(REST_S)
        at_rest = programs.load().per_second(began, REST_S)
        heap = await heap_mib(plane)
        kubeconfig = write_kubeconfig(directory / "agents.kubeconfig", plane, plane.admin_token)
        tasks = []
        for index in range(AGENTS):
            tasks.append(await publish(index, kubeconfig, stack))
            await asyncio.sleep(APART_S)
        await asyncio.sleep(REST_S / 2)  # the first writes are over
        began = programs.load()
        await asyncio.sleep(MEASURED_S)
        publishing = programs.load().per_second(began, MEASURED_S)
        heap = await heap_mib(plane) - heap
        assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        api_server, etcd, wal = (
            (load - rest) * NODES / AGENTS for load, rest in zip(publishing, at_rest, strict=True)
        )
        return api_server, etcd, wal, heap * NODES / AGENTS


@pytest.mark.timeout(1_200)
def test_nodes_at_rest(record: Record, tmp_path: Path) -> None:
    if why := obstacle():
        pytest.skip(why)
    # A process of its own, because connections that are being made when the agents end are never closed.
    paths = os.pathsep.join(path for path in sys.path if path)
    command, environment = [sys.executable, __file__, str(tmp_path)], {**os.environ, "PYTHONPATH": paths}
    answer = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
    api_server, etcd, wal, heap = json.loads(answer)
    what, note = f"{NODES:,} nodes at rest", f"{AGENTS} agents, scaled"
    record(
        f"{what}, kube-apiserver's processor", budget=BUDGET_PERCENT, measured=api_server, unit="%", note=note
    )
    record(f"{what}, etcd's processor", budget=None, measured=etcd, unit="%", note=note)
    record(f"{what}, kube-apiserver's memory", budget=None, measured=heap, unit="MiB", note=note)
    record(f"{what}, etcd's log", budget=BUDGET_KB, measured=wal / 1e3, unit="KB/s", note=note)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measured(Path(sys.argv[1])))))
