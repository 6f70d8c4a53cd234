"""Preemption from end to end: API server, scheduler, extender and nodes, over sockets."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import Any

import pytest

from extender.node_server import PF0, pf, report
from extender.preemption import create, uid
from extender.serving import served
from extender.world import MERGE, cluster
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION
from k8s_rdma_demo.cluster.extender_client import ExtenderConfig
from k8s_rdma_demo.cluster.scheduler import SchedulerConfig, scheduling

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def a_cluster(*names: str, vfs: int, names_only: bool = True, **settings: Any):
    """Nodes that tell how many VFs they have, a scheduler that counts them, and the extender."""
    async with cluster(*names) as c, served(c, **settings) as s:
        for node in c.nodes.values():
            node.report = report(node.name, pf(PF0, vfs=vfs, mbps=10_000))
            has = {"cpu": "64", "memory": "256Gi", "pods": "110", "k8s-rdma.io/vf": str(vfs)}
            patch = {"status": {"allocatable": has}}
            url = f"/api/v1/nodes/{node.name}/status"
            assert (await c.http.patch(url, json=patch, headers=MERGE)).status_code == 200
        await s.ready()
        extender = ExtenderConfig(
            url_prefix=f"http://127.0.0.1:{s.port}/scheduler",
            filter_verb="rdma_scheduling",
            prioritize_verb="prioritize",
            preempt_verb="preempt",
            bind_verb="bind",
            node_cache_capable=names_only,
        )
        config = SchedulerConfig(extenders=(extender,), initial_backoff_s=0.01, max_backoff_s=0.05)
        async with scheduling(c.server.url, config):
            yield c


async def until_pod(c, name: str, holds) -> dict[str, Any]:
    """The pod once something holds of it; an empty one when it is gone."""
    params = {"watch": "1", "fieldSelector": f"metadata.name={name}"}
    async with c.http.stream("GET", "/api/v1/pods", params=params) as stream:
        async for line in stream.aiter_lines():
            event = json.loads(line)
            pod = {} if event["type"] == "DELETED" else event["object"]
            if holds(pod):
                return pod
    raise AssertionError


async def bound(c, name: str) -> str:
    pod = await until_pod(c, name, lambda pod: bool(pod["spec"].get("nodeName")))
    return pod["spec"]["nodeName"]


async def start(c, name: str, *rates: int, **more: Any) -> str:
    """Create a pod, and have its node give it the promised interfaces."""
    await create(c, name, *rates, **more)
    node = await bound(c, name)
    report_held(c, node, **{uid(c, name): list(rates)})
    return node


def report_held(c, node: str, **more: list[int] | None) -> None:
    held = {a.pod.uid: [i.min_tx_rate for i in a.interfaces] for a in c.nodes[node].report.allocations}
    c.nodes[node].holds(**{pod: rates for pod, rates in {**held, **more}.items() if rates is not None})


async def gone(c, name: str) -> bool:
    return (await c.http.get(f"/api/v1/namespaces/default/pods/{name}")).status_code == 404


@pytest.mark.parametrize("names_only", [True, False], ids=["names", "full_nodes"])
async def test_urgent_pod_gets_the_bandwidth_of_the_pod_that_has_it_and_no_other_pod_goes(names_only):
    async with a_cluster("w1", vfs=2, names_only=names_only) as c:
        await start(c, "wide", 8_000)
        await start(c, "narrow", 1_000)
        await create(c, "urgent", 7_000, priority=1000)
        await until_pod(c, "wide", lambda pod: not pod)
        named = await until_pod(c, "urgent", lambda pod: pod["status"].get("nominatedNodeName"))
        assert named["status"]["nominatedNodeName"] == "w1"
        assert "nodeName" not in named["spec"]  # the victim is still in the node's report
        await create(c, "lesser", 6_000, priority=5)
        await until_pod(c, "lesser", lambda pod: "conditions" in pod["status"])
        report_held(c, "w1", **{uid(c, "wide"): None})
        assert await bound(c, "urgent") == "w1"
        pod = await c.read_pod("urgent")
        [interface] = json.loads(pod["metadata"]["annotations"][PLACEMENT_ANNOTATION])["interfaces"]
        assert (interface["pf"], interface["min_tx_rate"]) == (PF0, 7_000)
        assert not await gone(c, "narrow")
        assert await c.node_of("lesser") is None


async def test_pod_for_which_no_eviction_makes_room_evicts_no_pod():
    async with a_cluster("w1", vfs=1) as c:
        await start(c, "important", 8_000, priority=50)
        await create(c, "urgent", 7_000, priority=50)
        pod = await until_pod(c, "urgent", lambda pod: "conditions" in pod["status"])
        told = pod["status"]["conditions"][0]["message"]
        assert "1 Insufficient k8s-rdma.io/vf" in told
        assert not await gone(c, "important")


async def test_pods_are_evicted_from_the_node_with_the_least_harm():
    async with a_cluster("w1", "w2", vfs=1) as c:
        first = await start(c, "first", 9_000, priority=7)
        second = await start(c, "second", 9_000, priority=3)
        assert {first, second} == {"w1", "w2"}
        await create(c, "urgent", 9_000, priority=1000)
        await until_pod(c, "second", lambda pod: not pod)
        report_held(c, second, **{uid(c, "second"): None})
        assert await bound(c, "urgent") == second
        assert not await gone(c, "first")
