"""Binds that take long, or fail."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from cluster.extenders import registration
from cluster.front import front, late
from cluster.world import cluster, placement
from k8s_rdma_demo.cluster.http_server import Response

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


async def test_bind_whose_answer_comes_too_late_has_bound_the_pod_once(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1") as c:
        extender = await c.running_extender()
        async with front(extender) as service:
            service.after["bind"] = partial(late, 3)
            async with c.plane.scheduler(registration(service.url, httpTimeout="1s")):
                await c.create_pod("slow", 6_000)
                bound = await c.bound("slow")
                await c.create_pod("other", 4_000)  # the rest, if `slow` is counted once
                await c.bound("other")
                assert placement(await c.pod("slow")) == placement(bound)
                assert set((await c.placed()).values()) == {10_000}


async def test_bind_that_begins_when_the_scheduler_has_given_up_binds_once(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1", "w2") as c:
        extender = await c.running_extender()
        async with front(extender) as service:
            service.before["bind"] = partial(late, 3)
            async with c.plane.scheduler(registration(service.url, httpTimeout="1s")):
                await c.create_pod("slow", 6_000)
                await c.event("slow", "FailedScheduling", "/bind")
                bound = await c.bound("slow")
                while len(service.pods("bind")) < 2 or service.pending:
                    await late(0.05)
                assert (await c.pod("slow"))["spec"]["nodeName"] == bound["spec"]["nodeName"]
                assert set((await c.placed()).values()) == {6_000}


async def test_failed_bind_is_reported_and_tried_again(kind: str, tmp_path: Path):
    async def broken() -> Response:
        return Response(status=500, body=b"out of order", content_type="text/plain")

    async with cluster(kind, tmp_path, "w1") as c:
        extender = await c.running_extender()
        async with front(extender) as service:
            service.instead["bind"] = broken
            async with c.plane.scheduler(registration(service.url)):
                await c.create_pod("p", 1_000)
                assert "code 500" in await c.event("p", "FailedScheduling", "bind")
                await c.bound("p")


async def test_bind_to_a_node_that_has_filled_up_since_filter_reports_the_shortage(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1") as c:
        extender = await c.running_extender()
        async with front(extender) as service:
            node = c.nodes["w1"]

            async def fill() -> None:
                node.server.holds(somebody=9_000)

            service.before["bind"] = fill
            async with c.plane.scheduler(registration(service.url)):
                await c.create_pod("p", 2_000)
                told = await c.event("p", "FailedScheduling", "since")
                assert "9000" in told or "1000" in told
                assert await c.node_of("p") is None
                node.server.holds()
                await c.bound("p")
