"""Pods come to nodes: with nodes in full and by name, and without requests."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from cluster.extenders import registration
from cluster.world import cluster, placement
from extender.node_server import PF0, PF1, pf, report

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("names_only", [True, False], ids=["names", "full-nodes"])
async def test_pods_come_to_nodes_that_keep_every_promise(kind: str, tmp_path: Path, *, names_only: bool):
    async with cluster(kind, tmp_path, "w1", "w2", "w3") as c:
        for name, node in c.nodes.items():
            node.server.report = report(name, pf(PF0), pf(PF1))
        extender = await c.running_extender()
        async with c.plane.scheduler(registration(extender.url, nodeCacheCapable=names_only)):
            for index in range(9):
                await c.create_pod(f"p{index}", 4_000, 3_000)
            pods = await c.some_bound(6)  # whichever the scheduler took first
            assert all(len(placement(pod)) == 2 for pod in pods)
            assert max((await c.placed()).values()) <= 10_000
            for pod in pods:
                where = f"default/{pod['metadata']['name']} to {pod['spec']['nodeName']}"
                told = await c.event(pod["metadata"]["name"], "Scheduled")
                assert told == f"Successfully assigned {where}"


async def test_pod_without_requests_is_bound_plainly(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1") as c:
        extender = await c.running_extender()
        async with c.plane.scheduler(registration(extender.url)):
            await c.create_pod("plain")
            pod = await c.bound("plain")
            assert "annotations" not in pod["metadata"]


async def test_binding_is_one_write_of_node_and_placement(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1") as c:
        extender = await c.running_extender()
        async with (
            c.http.stream("GET", "/api/v1/pods?watch=1", timeout=None) as changes,
            c.plane.scheduler(registration(extender.url)),
        ):
            await c.create_pod("p", 1_000)
            async for line in changes.aiter_lines():
                pod = json.loads(line)["object"]
                assert "spec" in pod, line
                assert bool(placement(pod)) == ("nodeName" in pod["spec"])
                if placement(pod):
                    break
