"""The extender beside a scheduler: pods come to nodes, and refused ones are tried again when it helps."""

from __future__ import annotations

import json

import pytest

from extender.node_server import PF0, PF1, pf, report
from extender.serving import served
from extender.world import cluster, interfaces
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION
from k8s_rdma_demo.cluster.extender_client import ExtenderConfig
from k8s_rdma_demo.cluster.scheduler import SchedulerConfig, scheduling

pytestmark = pytest.mark.anyio


def scheduler(port: int, *, names_only: bool) -> SchedulerConfig:
    extender = ExtenderConfig(
        url_prefix=f"http://127.0.0.1:{port}/scheduler",
        filter_verb="rdma_scheduling",
        prioritize_verb="prioritize",
        bind_verb="bind",
        node_cache_capable=names_only,
    )
    return SchedulerConfig(extenders=(extender,), initial_backoff_s=0.01, max_backoff_s=0.05)


async def bound(c, name: str) -> str:
    """The node that the pod comes to."""
    async for line in _changes(c):
        pod = json.loads(line)["object"]
        if pod["metadata"]["name"] == name and pod["spec"].get("nodeName"):
            return pod["spec"]["nodeName"]
    raise AssertionError


async def _changes(c):
    async with c.http.stream("GET", "/api/v1/pods", params={"watch": "1"}) as stream:
        async for line in stream.aiter_lines():
            yield line


@pytest.mark.parametrize("names_only", [True, False], ids=["names", "full_nodes"])
async def test_pods_come_to_nodes_that_keep_every_promise(names_only):
    async with cluster("w1", "w2", "w3") as c, served(c) as s:
        for node in c.nodes.values():
            node.report = report(node.name, pf(PF0), pf(PF1))
        await s.ready()
        async with scheduling(c.server.url, scheduler(s.port, names_only=names_only)):
            for index in range(9):
                await c.create_pod(f"p{index}", 4_000, 3_000)
            for index in range(6):
                await bound(c, f"p{index}")
            used: dict[tuple[str, str], int] = {}
            placed = 0
            for item in (await c.http.get("/api/v1/pods")).json()["items"]:
                text = item["metadata"]["annotations"].get(PLACEMENT_ANNOTATION)
                for each in json.loads(text)["interfaces"] if text else ():
                    key = item["spec"]["nodeName"], each["pf"]
                    used[key] = used.get(key, 0) + each["min_tx_rate"]
                placed += text is not None
            assert placed >= 6
            assert max(used.values()) <= 10_000


async def test_refused_pod_is_bound_when_the_node_gives_its_capacity_back_after_the_pod_is_gone():
    async with cluster("w1") as c, served(c) as s:
        await s.ready()
        async with scheduling(c.server.url, scheduler(s.port, names_only=True)):
            first = await c.create_pod("first", 8_000)
            assert await bound(c, "first") == "w1"
            uid = first["metadata"]["uid"]
            c.nodes["w1"].holds(**{uid: 8_000})
            await c.create_pod("second", annotation=interfaces(8_000))
            while "pods_waiting 1" not in (await s.http.get("/metrics")).text:
                pass
            await c.delete_pod("first")
            c.nodes["w1"].heard.clear()
            await c.nodes["w1"].heard.wait()  # the node is asked and still holds it
            assert await c.node_of("second") is None
            c.nodes["w1"].holds()
            assert await bound(c, "second") == "w1"
