"""The process with the DRA driver, beside an API server, kubelet's calls and a scripted agent."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from deviceplugin.plugin_process import DEADLINE_S, LOOK_S, Plugin, World
from deviceplugin.test_dra import DEVICE, Agent
from k8s_rdma.core.node_paths import CLAIMS_SOCKET
from k8s_rdma.kube.grpc_calls import call, connect
from k8s_rdma.wire.claims import DRIVER, ClaimAnswer, ClaimName
from k8s_rdma.wire.dra import GET_INFO, NOTIFY, PREPARE, UNPREPARE, RegistrationStatus
from process_status import status
from resource_claims import api_with_node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

pytestmark = pytest.mark.anyio

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
UID = "11111111-2222-4333-8444-555555555555"
PREPARES = 100
BUDGET_KIB = 60 << 10
"""Of anonymous memory; programs and libraries are 25 MiB more, which processes share."""


class Node:
    """A node whose device plugin has the DRA driver; kubelet's calls."""

    def __init__(self, world: World, plugin: Plugin, http: httpx2.AsyncClient) -> None:
        self.plugin = plugin
        self.http = http
        self.registry = world.directory / "registry"

    async def register(self) -> Path:
        """Register as kubelet does; the driver's socket."""
        registration = self.registry / f"{DRIVER}-{UID}-reg.sock"
        await self.plugin.until(registration.exists)
        async with connect(registration) as channel:
            info = await call(channel, GET_INFO, None, timeout_s=5)
            await call(channel, NOTIFY, RegistrationStatus(registered=True), timeout_s=5)
        return Path(info.endpoint)

    async def until_slices(self, count: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while len((await self.http.get(SLICES)).json()["items"]) != count:  # noqa: ASYNC110 - no event
                await asyncio.sleep(LOOK_S)

    async def create_claim(self, name: str) -> ClaimName:
        request = {"name": "a", "exactly": {"deviceClassName": "rdma"}}
        document = {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}
        made = await self.http.post(CLAIMS, json=document)
        assert made.status_code == 201, made.text
        return ClaimName(namespace="default", name=name, uid=made.json()["metadata"]["uid"])

    async def figures(self) -> dict[tuple[str, ...], float]:
        text = (await self.plugin.get("/metrics")).text
        return {
            (sample.name.removeprefix("k8s_rdma_device_plugin_"), *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


@asynccontextmanager
async def node_beside(world: World, kubeconfig: Path, http: httpx2.AsyncClient) -> AsyncIterator[Node]:
    """The process with a scripted agent, beside the API server of a kubeconfig."""
    agent = Agent(world.run_dir / CLAIMS_SOCKET)
    world.run_dir.mkdir()
    await agent.start()
    plugin = world.plugin(
        resources=[],
        node="w1",
        kubeconfig=str(kubeconfig),
        claims={
            "registryDir": str(world.directory / "registry"),
            "pluginsDir": str(world.directory / "plugins"),
            "uid": UID,
        },
    )
    try:
        yield Node(world, plugin, http)
    finally:
        await agent.stop()


@asynccontextmanager
async def node_of(world: World) -> AsyncIterator[Node]:
    async with (
        asyncio.timeout(DEADLINE_S),
        api_with_node(world.directory) as (http, kubeconfig),
        node_beside(world, kubeconfig, http) as node,
    ):
        yield node


async def test_process_serves_kubelet_and_reports_its_state(world: World) -> None:
    async with node_of(world) as node:
        await node.plugin.logged("device_plugin_ready")
        ready = await node.plugin.get("/readyz")
        assert ready.status_code == 503
        assert "claims: kubelet has not registered the driver yet" in ready.text
        socket = await node.register()
        await node.until_slices(1)
        await node.plugin.logged("slices_published")
        ready = await node.plugin.get("/readyz")
        assert (ready.status_code, ready.text) == (200, "ok\nclaims: kubelet uses the driver\n")
        claim = await node.create_claim("c")
        async with connect(socket) as channel:
            assert await call(channel, PREPARE, (claim,), timeout_s=50) == {
                claim.uid: ClaimAnswer(devices=(DEVICE,))
            }
            assert set(await call(channel, UNPREPARE, (claim,), timeout_s=50)) == {claim.uid}
        figures = await node.figures()
        for name in ("claims_up", "claims_registered", "claims_agent_up", "slices", "slice_writes_total"):
            assert figures[name,] == 1, name
        assert figures["claims_total", "prepare", "done"] == figures["claims_total", "unprepare", "done"] == 1
        for command in ("prepare", "unprepare"):
            assert figures["claims_duration_seconds_count", command] == 1
            assert figures["claims_duration_seconds_sum", command] > 0
        assert await node.plugin.stop() == 0
        assert list(node.registry.iterdir()) == []
        await node.until_slices(1)


async def test_process_stays_within_its_memory(world: World) -> None:
    world.enter = ("env",)  # with the memory of its own start
    async with node_of(world) as node:
        socket = await node.register()
        await node.until_slices(1)
        claims = [await node.create_claim(f"c{index}") for index in range(60)]
        async with connect(socket) as channel:
            for _ in range(PREPARES):
                assert len(await call(channel, PREPARE, tuple(claims), timeout_s=50)) == 60
        anonymous = status(node.plugin.process.pid)["RssAnon"]
        assert int(anonymous.split()[0]) < BUDGET_KIB
