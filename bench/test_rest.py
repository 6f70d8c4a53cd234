"""The cost of a node's processes while the node is idle: processor time of each, and memory together.

Budget: 0.2 % of a processor each, and 150 MiB for agent, server and device plugin (with the DRA driver). The
agent publishes its node and renews its Lease. Memory is PSS (proc_pid_smaps_rollup(5)): of pages that several
processes map, each counts its part; the benchmark's own process, which maps the same libraries, takes its
part of these, some MiB in all. The floor is three interpreters that have loaded the libraries of the three
processes, and no code of ours.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2

from bench.cni_plugin import PLUGINS, PROGRAM, needs_root
from bench.test_cni_add import processor_ms
from e2e.node import PFS, Node
from k8s_rdma.wire.claims import DRIVER
from k8s_rdma_demo.cluster.api import ApiConfig, serving_api
from k8s_rdma_demo.cluster.command import write_kubeconfig
from k8s_rdma_demo.cluster.objects import parse_resource_type

if TYPE_CHECKING:
    from conftest import Record

VFS = 120
RDMA_NODES = parse_resource_type("k8s-rdma.io/v1alpha1/rdmanodes/RdmaNode")
SETTLED_S, REST_S = 15.0, 60.0
"""Bridges report their uplinks once more some 10 s after they were made."""

BUDGET_PERCENT, BUDGET_MIB = 0.2, 150
PART = {"vfs": VFS // 2, "mbps": 500}

EVERYWHERE = ("msgspec.inspect", "structlog", "yaml")
SERVING = ("httptools", "prometheus_client", "uvicorn", "uvloop")
LIBRARIES = {
    "agent": (*EVERYWHERE, "lightkube", "httpcore2", "sqlite3"),
    "device-plugin": (*EVERYWHERE, *SERVING, "lightkube", "httpcore2", "google.protobuf.message", "grpc.aio"),
    "server": (*EVERYWHERE, *SERVING),
}
LOAD = """
import sys
sys.modules |= {"h2": None, "rich": None}  # as in our processes
for module in sys.argv[1:]:
    __import__(module)
print("loaded", flush=True)
sys.stdin.read()
"""


def libraries_mib() -> float:
    """Return the memory of processes that have loaded the libraries of a node's processes, side by side."""
    with ExitStack() as running:
        processes = [
            running.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", LOAD, *modules], stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
            )
            for modules in LIBRARIES.values()
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"loaded\n"
        return sum(shared_mib(process.pid) for process in processes)


def shared_mib(process: int) -> float:
    """Return the process's part of the memory that it maps."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


async def start(node: Node, url: str) -> dict[str, int]:
    """Start the node's processes; return their PIDs."""
    directory = node.directory
    kubeconfig = str(write_kubeconfig(directory / "kubeconfig", url))
    node.settings = {
        "kubeconfig": kubeconfig,
        "publish": {"rdmaNode": True},
        "cdiDir": str(directory / "cdi"),
        "hardware": {"pfs": [{"names": [PFS[0]], "claims": PART}, {}]},
    }
    await asyncio.to_thread(node.start_agent)
    claims = {
        "registryDir": str(directory / "registry"),
        "pluginsDir": str(directory / "plugins"),
        "uid": "rest",
    }
    plugin = {
        "resources": [],
        "runDir": str(node.run_dir),
        "port": 0,
        "node": "w1",
        "kubeconfig": kubeconfig,
        "claims": claims,
    }
    server = {"runDir": str(node.run_dir), "port": 0}
    started = {
        name: node.start(name, node.config(name, document))
        for name, document in {"device-plugin": plugin, "server": server}.items()
    }
    socket = directory / "plugins" / DRIVER / "dra-rest.sock"
    async with asyncio.timeout(node.deadline_s):
        while not socket.exists():  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.05)
    assert node.agent is not None
    return {"agent": node.agent.pid} | {name: process.pid for name, process in started.items()}


async def measured(node: Node) -> tuple[dict[str, float], dict[str, float]]:
    """Return processor time in percent, and memory in MiB, of each process."""
    config = ApiConfig(custom_resources=(RDMA_NODES,))
    async with serving_api(config) as api, httpx2.AsyncClient(base_url=api.url, trust_env=False) as http:
        await http.post("/api/v1/nodes", json={"metadata": {"name": "w1"}})
        pids = await start(node, api.url)
        await asyncio.sleep(SETTLED_S)
        before = {name: processor_ms(pid) for name, pid in pids.items()}
        await asyncio.sleep(REST_S)
        used = {name: (processor_ms(pid) - before[name]) / REST_S / 10 for name, pid in pids.items()}
        published = api.store.get(RDMA_NODES, ("", "w1")) or {}
        assert published["status"]["pfs"]
        return used, {name: shared_mib(pid) for name, pid in pids.items()}


@needs_root
def test_rest(record: Record) -> None:
    with Node(vfs=VFS, plugins=PLUGINS, shim=PROGRAM) as node:
        used, memory = asyncio.run(measured(node))
    for name, percent in used.items():
        record(
            f"{name} of 2 x {VFS} VFs at rest, processor", budget=BUDGET_PERCENT, measured=percent, unit="%"
        )
    record(
        f"processes of a node of 2 x {VFS} VFs at rest, memory (PSS)",
        budget=BUDGET_MIB,
        measured=sum(memory.values()),
        unit="MiB",
        note=", ".join(f"{name} {mib:.0f}" for name, mib in memory.items()),
    )
    record(
        f"processes of a node of 2 x {VFS} VFs at rest, memory beside that of their libraries alone",
        budget=None,
        measured=sum(memory.values()) / libraries_mib(),
        unit="times",
    )
