"""Two extenders as processes, of which the one that binds is killed in the middle of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import uuid
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from extender.node_server import PF0, PF1, pf, report
from extender.test_main import MAIN
from extender.world import World, cluster
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION
from k8s_rdma_demo.cluster.command import write_kubeconfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


pytestmark = pytest.mark.anyio

NODES = ("w1", "w2")
PODS, MBPS = 40, 10_000
POOL = "tencent.com/rdma"


@dataclass
class Process:
    process: asyncio.subprocess.Process
    http: httpx2.AsyncClient

    async def ready(self) -> bool:
        return (await self.http.get("/readyz")).status_code == 200

    async def bind(self, c: World, name: str, node: str) -> str | None:
        """Return the error's text, or None if the replica died."""
        try:
            answer = await self.http.post("/scheduler/bind", content=c.bind_args(name, node))
        except httpx2.TransportError:
            return None
        return answer.json()["Error"]


@asynccontextmanager
async def process(path: Path, **config: Any) -> AsyncIterator[Process]:
    file = path / f"{uuid.uuid4()}.yaml"
    file.write_text(json.dumps(config))
    started = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        MAIN,
        str(file),
        env={**os.environ, "PORT": "0"},
        stderr=asyncio.subprocess.PIPE,
    )
    port = None
    while port is None:
        event = json.loads(await started.stderr.readline())
        port = event.get("port") if event["event"] == "extender_ready" else None
    reading = asyncio.create_task(started.stderr.read())
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as http:
        yield Process(started, http)
    if started.returncode is None:
        started.send_signal(signal.SIGKILL)
    await started.wait()
    await reading


async def reserved(c: World) -> dict[str, int]:
    result = dict.fromkeys(NODES, 0)
    for pod in (await c.http.get("/api/v1/pods")).json()["items"]:
        if node := pod["spec"].get("nodeName"):
            text = pod["metadata"]["annotations"][PLACEMENT_ANNOTATION]
            result[node] += sum(each["min_tx_rate"] for each in json.loads(text)["interfaces"])
    return result


@pytest.mark.parametrize("devices", [{}, {POOL: 1}], ids=["annotation", "pool"])
async def test_no_bandwidth_is_promised_twice_when_the_binder_is_killed_during_binds(
    tmp_path: Path, devices: dict[str, int]
):
    """Also if kubelet chooses the device: each pod counts on every PF that has one."""
    async with asyncio.timeout(120), cluster(*NODES) as c:
        for node in c.nodes.values():
            there = (PF0, PF1) if devices else (PF0,)
            pools = dict.fromkeys(devices, 50)
            node.report = report(node.name, *(pf(each, vfs=100, mbps=MBPS, pools=pools) for each in there))
        kubeconfig = str(write_kubeconfig(tmp_path / "kubeconfig", c.server.url))
        config = {
            "kubeconfig": kubeconfig,
            "source": "http",
            "nodePort": c.port,
            "leaseS": 5,
            "leaseName": "x",
        }
        names = [f"p{at}" for at in range(PODS)]
        for name in names:
            await c.create_pod(name, 700, devices=devices)
        async with process(tmp_path, **config) as first, process(tmp_path, **config) as second:
            while not (ready := [each for each in (first, second) if await each.ready()]):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            [leader] = ready
            other = second if leader is first else first
            binds = [
                asyncio.create_task(leader.bind(c, name, NODES[at % 2])) for at, name in enumerate(names)
            ]
            await asyncio.wait(binds, return_when=asyncio.FIRST_COMPLETED)
            leader.process.send_signal(signal.SIGKILL)
            await asyncio.wait(binds)
            assert None in [bind.result() for bind in binds]
            assert "starting" in (await other.bind(c, names[-1], "w1") or "")
            while not await other.ready():  # noqa: ASYNC110  that is the interface
                await asyncio.sleep(0.02)
            errors = [await other.bind(c, name, NODES[at % 2]) for at, name in enumerate(names)]
            assert await reserved(c) == dict.fromkeys(NODES, MBPS // 700 * 700)
            assert errors.count("") == len(NODES) * (MBPS // 700)
