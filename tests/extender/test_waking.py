"""A refused pod beside a scheduler gets its place when what it waits for comes free, whatever that is."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from extender.node_server import pf, report
from extender.serving import served
from extender.world import World, cluster, interfaces
from k8s_rdma.extender.config import NamespaceLimit
from k8s_rdma.sim.cluster.extender_client import ExtenderConfig
from k8s_rdma.sim.cluster.scheduler import SchedulerConfig, scheduling

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def scheduled(*nodes: str, **settings: Any) -> AsyncIterator[tuple[World, Any]]:
    """A cluster with extender and scheduler; the pace is the default one."""
    async with cluster(*nodes) as c, served(c, poll_s=1.0, touch_s=1.0, **settings) as s:
        await s.ready()
        extender = ExtenderConfig(
            url_prefix=f"http://127.0.0.1:{s.port}/scheduler",
            filter_verb="rdma_scheduling",
            prioritize_verb="prioritize",
            bind_verb="bind",
            node_cache_capable=True,
        )
        async with scheduling(c.server.url, SchedulerConfig(extenders=(extender,), initial_backoff_s=0.01)):
            yield c, s


async def waiting(s: Any, pods: int = 1) -> None:
    while f"pods_waiting {pods}\n" not in (await s.http.get("/metrics")).text:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def placed(c: World, name: str) -> str:
    while (node := await c.node_of(name)) is None:  # noqa: ASYNC110  the world's deadline ends it
        await asyncio.sleep(0.01)
    return node


async def test_pod_is_placed_when_its_node_has_given_devices_back_after_their_pod_is_gone():
    async with scheduled("w1") as (c, s):
        first = await c.create_pod("first", 8_000)
        assert await placed(c, "first") == "w1"
        c.nodes["w1"].holds(**{first["metadata"]["uid"]: 8_000})
        await c.create_pod("second", 8_000)
        await waiting(s)
        await c.delete_pod("first")
        c.nodes["w1"].holds()
        assert await placed(c, "second") == "w1"


async def test_pod_is_placed_when_a_link_comes_up():
    async with scheduled("w1") as (c, s):
        c.nodes["w1"].report = report("w1", pf(mbps=None), generation=2)
        await c.create_pod("p", 8_000)
        await waiting(s)
        c.nodes["w1"].report = report("w1", pf(), generation=3)
        assert await placed(c, "p") == "w1"


async def test_pod_is_placed_when_its_namespaces_limit_comes_free():
    limit = NamespaceLimit(namespace="default", reserved_mbps=10_000)
    async with scheduled("w1", "w2", limits=(limit,)) as (c, s):
        await c.create_pod("first", 8_000)
        at = await placed(c, "first")
        await c.create_pod("second", annotation=interfaces(5_000))
        await waiting(s)
        await c.delete_pod("first")
        assert await placed(c, "second") in {"w1", "w2", at}


async def test_pod_is_placed_when_what_was_held_for_a_nominated_pod_is_released():
    async with scheduled("w1") as (c, s):
        await c.create_pod("known", 0)
        await placed(c, "known")
        nominated = {
            "metadata": {"name": "first", "annotations": {"rdma_interfaces_required": interfaces(8_000)}},
            "spec": {"schedulerName": "another", "priority": 5, "containers": [{"name": "c", "image": "i"}]},
        }
        url = "/api/v1/namespaces/default/pods"
        assert (await c.http.post(url, json=nominated)).status_code == 201
        await c.patch_pod("first", {"status": {"nominatedNodeName": "w1"}}, "/status")
        await c.create_pod("second", 8_000)
        await waiting(s)
        await c.delete_pod("first")
        assert await placed(c, "second") == "w1"
