"""The scheduler binds by itself and calls only filter, as it did with the RIT extender."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from extender.serving import BIND, FILTER, Served, served
from extender.world import World, cluster, extending
from k8s_rdma.kube.api import AbsentApi
from k8s_rdma.kube.errors import API_ERRORS
from k8s_rdma.wire.placement_keys import PlacementKeys
from k8s_rdma_demo.cluster.command import load_scheduler_config
from k8s_rdma_demo.cluster.scheduler import scheduling

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


pytestmark = pytest.mark.anyio

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "scheduler"
NOT_ENOUGH = "RDMA Scheduler Extension: Node did not have enough free RDMA resources."


@asynccontextmanager
async def scheduled(c: World, **settings: object) -> AsyncIterator[Served]:
    """The extender, and a scheduler that it is registered with by the example's file."""
    async with served(c, binder="scheduler", **settings) as s:
        await s.ready()
        config = load_scheduler_config(EXAMPLES / "filter-only.yaml")
        [extender] = config.extenders
        here = replace(extender, url_prefix=extender.url_prefix.replace("8888", str(s.port)))
        config = replace(config, extenders=(here,), initial_backoff_s=0.01, max_backoff_s=0.05)
        async with scheduling(c.server.url, config):
            yield s


async def refusal(c: World, s: Served, name: str) -> str:
    """Why the extender refuses the pod on the node, asked with the whole node object; empty when it fits."""
    node = (await c.http.get("/api/v1/nodes/w1")).json()
    nodes = {"metadata": {}, "items": [node]}
    args = {"Pod": c.pods[name], "Nodes": nodes, "NodeNames": None}
    return (await s.post(FILTER, json.dumps(args))).json()["FailedNodes"].get("w1", "")


async def bound(c: World, name: str) -> None:
    while await c.node_of(name) is None:  # noqa: ASYNC110  the scheduler sends no event
        await asyncio.sleep(0.01)


async def test_pods_that_the_scheduler_bound_count_although_they_have_no_placement():
    async with cluster("w1") as c, scheduled(c) as s:
        p = await c.create_pod("p", 6_000)
        await bound(c, "p")
        await c.create_pod("q", 6_000)
        c.nodes["w1"].holds(**{p["metadata"]["uid"]: 6_000})
        assert (await refusal(c, s, "q")).startswith(NOT_ENOUGH)
        c.nodes["w1"].holds()  # the sandbox died; it will be made again
        assert (await refusal(c, s, "q")).startswith(NOT_ENOUGH)
        assert await c.node_of("q") is None
        await c.delete_pod("p")
        await bound(c, "q")
        assert c.api.started == []
        assert c.api.fenced == []


async def test_refusal_that_no_eviction_cures_is_in_the_map_that_older_schedulers_read():
    """kube-scheduler before 1.21, which `rit-policy.json` is for, has no `FailedAndUnresolvableNodes`."""
    async with cluster("w1") as c, scheduled(c) as s:
        await c.create_pod("p", 900_000)
        args = json.dumps({"Pod": c.pods["p"], "Nodes": None, "NodeNames": ["w1"]})
        reply = (await s.post(FILTER, args)).json()
    assert reply["FailedAndUnresolvableNodes"]["w1"].startswith(NOT_ENOUGH)
    assert reply["FailedNodes"] == reply["FailedAndUnresolvableNodes"]


async def test_pods_bound_before_the_extender_started_count_as_well():
    async with cluster("w1") as c:
        await c.create_pod("p", 6_000)
        await c.bind_by_hand("p", "w1")
        async with scheduled(c) as s:
            await c.create_pod("q", 6_000)
            assert (await refusal(c, s, "q")).startswith(NOT_ENOUGH)


async def test_without_an_api_server_nodes_reports_decide_and_the_request_has_their_addresses():
    async with cluster("w1") as c:
        c.api = AbsentApi()
        async with scheduled(c, api=False) as s:
            p = await c.create_pod("p", 6_000)
            await bound(c, "p")
            c.nodes["w1"].holds(**{p["metadata"]["uid"]: 6_000})
            await c.create_pod("q", 6_000)
            while not (await refusal(c, s, "q")).startswith(NOT_ENOUGH):  # noqa: ASYNC110  it has no event
                await asyncio.sleep(0.01)
            assert await c.node_of("q") is None
            c.nodes["w1"].holds()
            while await refusal(c, s, "q"):  # noqa: ASYNC110  it has no event
                await asyncio.sleep(0.01)
            await c.delete_pod("p")  # this makes the scheduler try again
            await bound(c, "q")


async def test_extender_that_does_not_bind_has_no_bind_verb():
    async with cluster("w1") as c, served(c, binder="scheduler") as s:
        await s.ready()
        await c.create_pod("p", 1)
        refused = await s.post(BIND, c.bind_args("p", "w1"))
        assert refused.status_code == 404
        assert "binder: scheduler" in refused.json()["error"]["message"]


async def test_pods_bound_by_hand_count_unless_agents_refuse_them():
    async with cluster("w1") as c:
        await c.create_pod("p", 6_000)
        await c.create_pod("q", 6_000)
        await c.bind_by_hand("p", "w1")
        async with extending(c) as w:
            assert await w.fitting("q") == []
        async with extending(c, key=PlacementKeys.shared(b"key")) as w:
            assert await w.fitting("q") == ["w1"]
        async with extending(c, key=PlacementKeys.shared(b"key"), allow_unplaced=True) as w:
            assert await w.fitting("q") == []


@pytest.mark.parametrize("call", ["get_pod", "follow_pods", "follow_nodes", "follow_budgets"])
async def test_absent_api_server_refuses_every_call(call):
    made = getattr(AbsentApi(), call)
    with pytest.raises(API_ERRORS, match="without an API server"):
        await made("n", "p") if call == "get_pod" else made()
