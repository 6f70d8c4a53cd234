"""Nodes are touched if newly free resources help a pod that waits, and at no other time."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from msgspec import structs

from extender.node_server import pf, report
from extender.node_server import rates as driver_rates
from extender.world import cluster, extending, until, world
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.core.types import NodeName
from k8s_rdma.extender.extender import boottime_s
from k8s_rdma.extender.node_source import facts_of
from k8s_rdma.extender.requeue import ANNOTATION
from k8s_rdma.kube.errors import ApiRefusedError, ApiUncertainError
from k8s_rdma.kube.leader_election import LeaderElectionConfig, LeaderElector
from k8s_rdma.kube.published_api import LeaseView

pytestmark = pytest.mark.anyio


async def touched_at(w, node: str) -> str | None:
    found = (await w.http.get(f"/api/v1/nodes/{node}")).json()
    return (found["metadata"].get("annotations") or {}).get(ANNOTATION)


async def asked_again(w, node: str) -> None:
    """The node was asked twice more: whatever its answers led to has been led to."""
    asked = w.nodes[node].asked
    await until(lambda: w.nodes[node].asked >= asked + 2)


async def test_node_is_touched_when_its_report_shows_room_for_a_refused_pod():
    async with world("w1", "w2") as w:
        w.nodes["w1"].holds(a=9_000)
        w.nodes["w2"].holds(a=9_000)
        await w.create_pod("p", 5_000)
        assert await w.fitting("p") == []
        assert w.metric("pods_waiting") == 1
        w.nodes["w1"].holds()
        await until(lambda: w.api.touched == ["w1"])
        assert await touched_at(w, "w1")
        assert await touched_at(w, "w2") is None


async def test_node_is_touched_by_a_label_if_the_scheduler_heeds_no_annotation():
    async with world("w1", requeue_by="label") as w:
        w.nodes["w1"].holds(a=9_000)
        await w.create_pod("p", 5_000)
        assert await w.fitting("p") == []
        w.nodes["w1"].holds()
        await until(lambda: w.api.touched == ["w1"])
        meta = (await w.http.get("/api/v1/nodes/w1")).json()["metadata"]
        assert re.fullmatch(r"[0-9A-Za-z][-0-9A-Za-z_.]{0,61}[0-9A-Za-z]", meta["labels"][ANNOTATION])
        assert "annotations" not in meta


async def test_node_is_touched_when_the_pod_that_held_it_ends():
    async with world("w1") as w:
        await w.create_pod("q", 6_000)
        assert await w.bind("q", "w1") == ""
        await w.create_pod("p", 6_000)
        assert await w.fitting("p") == []
        await w.delete_pod("q")
        await until(lambda: w.api.touched == ["w1"])


async def test_node_is_touched_when_a_bind_that_held_it_failed():
    async with world("w1", "w2") as w:
        w.api.writing.clear()
        await w.create_pod("q", 6_000)
        await w.create_pod("p", 6_000)
        bind = asyncio.create_task(w.bind("q", "w1"))
        await w.api.begun.wait()
        assert await w.fitting("p", "w1") == []
        await w.bind_by_hand("q", "w2")
        w.api.writing.set()
        assert "already bound" in await bind
        await until(lambda: w.api.touched == ["w1"])


async def test_node_is_touched_when_it_can_be_read_again():
    async with world("w1", node_timeout_s=0.05, retry_s=0.01) as w:
        w.nodes["w1"].answering.clear()
        await w.create_pod("p", 5_000)
        assert await w.fitting("p") == []
        w.nodes["w1"].answering.set()
        await until(lambda: w.api.touched == ["w1"])


@pytest.mark.parametrize("rates", ["min_tx_rate", "max_tx_rate"])
async def test_node_is_touched_when_the_link_comes_up_that_a_refused_pod_needs(rates: str):
    takes = structs.replace(driver_rates(), needs_link=True)
    request = json.dumps([{rates: 5_000, "enforce": "hardware"}])
    async with world("w1") as w:
        w.nodes["w1"].report = report("w1", pf(mbps=None, rates=takes), generation=2)
        await w.create_pod("p", annotation=request)
        assert await w.fitting("p") == []
        assert w.metric("pods_waiting") == 1
        w.nodes["w1"].report = report("w1", pf(rates=takes), generation=3)
        await until(lambda: w.api.touched == ["w1"])


async def test_no_pod_waits_for_room_that_no_node_will_ever_have():
    async with world("w1") as w:
        await w.create_pod("p", 20_000)
        assert await w.fitting("p") == []
        assert w.metric("pods_waiting") == 0


async def test_node_is_not_touched_when_the_free_room_is_not_enough():
    async with world("w1") as w:
        w.nodes["w1"].holds(a=9_000)
        await w.create_pod("p", 5_000)
        assert await w.fitting("p") == []
        w.nodes["w1"].holds(a=6_000)
        await asked_again(w, "w1")
        assert w.api.touched == []
        w.nodes["w1"].holds(a=5_000)
        await until(lambda: w.api.touched == ["w1"])


async def test_node_is_not_touched_for_a_request_that_it_fitted_before_as_well():
    async with world("w1", "w2") as w:
        w.nodes["w1"].holds(a=8_000)
        w.nodes["w2"].holds(a=10_000)
        await w.create_pod("large", 5_000)
        await w.create_pod("small", 1_000)
        assert await w.fitting("large", "w1") == []
        assert await w.fitting("small", "w2") == []
        w.nodes["w1"].holds(a=7_000)
        await asked_again(w, "w1")
        assert w.api.touched == []


async def test_node_is_not_touched_when_no_pod_waits():
    async with world("w1", "w2") as w:
        w.nodes["w1"].holds(a=9_000)
        await w.create_pod("p", 5_000)
        assert await w.fitting("p") == ["w2"]
        assert w.metric("pods_waiting") == 0
        w.nodes["w1"].holds()
        assert await w.fitting("p") == ["w1", "w2"]
        assert w.api.touched == []


async def test_nodes_are_not_polled_when_no_pod_waits_any_more():
    async with world("w1") as w:
        w.nodes["w1"].holds(a=9_000)
        await w.create_pod("p", 5_000)
        assert await w.fitting("p") == []
        await asked_again(w, "w1")
        await w.delete_pod("p")
        await until(w.expect(pods_waiting=0))
        w.nodes["w1"].holds()
        await w.create_pod("q", 9_999_999)  # refused for good: no pod waits for that
        result = await w.filter("q")
        assert result["FailedAndUnresolvableNodes"]
        assert w.metric("pods_waiting") == 0
        assert w.api.touched == []


async def test_pod_waits_no_more_when_it_is_bound_by_another_scheduler():
    async with world("w1") as w:
        w.nodes["w1"].holds(a=9_000)
        await w.create_pod("p", 5_000)
        assert await w.fitting("p") == []
        await w.bind_by_hand("p", "w1")
        await until(w.expect(pods_waiting=0))


async def test_pod_waits_no_more_when_it_is_bound_here():
    async with world("w1", "w2") as w:
        w.nodes["w1"].holds(a=9_000)
        await w.create_pod("p", 5_000)
        assert await w.fitting("p", "w1") == []
        assert await w.bind("p", "w2") == ""
        assert w.metric("pods_waiting") == 0


async def test_node_is_touched_again_only_when_it_refused_again():
    async with world("w1") as w:
        w.nodes["w1"].holds(a=9_000)
        await w.create_pod("p", 5_000)
        assert await w.fitting("p") == []
        w.nodes["w1"].holds()
        await until(lambda: len(w.api.touched) == 1)
        first = await touched_at(w, "w1")
        w.nodes["w1"].holds(a=9_000)
        assert await w.fitting("p") == []
        w.nodes["w1"].holds()
        await until(lambda: len(w.api.touched) == 2)
        assert await touched_at(w, "w1") != first


async def test_touch_is_repeated_when_the_api_server_did_not_answer():
    async with world("w1") as w:
        w.api.touch_faults.append(ApiUncertainError("annotate node: no answer"))
        w.nodes["w1"].holds(a=9_000)
        await w.create_pod("p", 5_000)
        assert await w.fitting("p") == []
        w.nodes["w1"].holds()
        await until(lambda: w.api.touched == ["w1"])


async def test_touch_is_given_up_when_the_api_server_refuses_it():
    async with world("w1") as w:
        w.api.touch_faults.append(ApiRefusedError("annotate node: forbidden", status=403))
        w.nodes["w1"].holds(a=9_000)
        await w.create_pod("p", 5_000)
        assert await w.fitting("p") == []
        w.nodes["w1"].holds()
        await until(lambda: not w.api.touch_faults)
        w.nodes["w1"].holds(a=9_000)
        assert await w.fitting("p") == []
        w.nodes["w1"].holds()
        await until(lambda: w.api.touched == ["w1"])


async def test_one_node_of_many_that_refused_is_touched_for_the_request_it_now_fits():
    async with world("w1", "w2") as w:
        for node in w.nodes.values():
            node.report = report(node.name, pf(vfs=2), held={"a": 0, "b": 0})
        await w.create_pod("p", 0)
        await w.create_pod("q", 0, 0)
        assert await w.fitting("p") == await w.fitting("q") == []
        assert w.metric("pods_waiting") == 2
        w.nodes["w2"].holds(a=0)
        await until(lambda: w.api.touched == ["w2"])


async def test_node_is_touched_without_a_poll_when_the_state_learns_its_capacity():
    """As if the states come by watch."""
    async with world("w1", poll_s=3600.0) as w:
        w.nodes["w1"].holds(a=9_000)
        await w.create_pod("p", 5_000)
        assert await w.fitting("p") == []
        verdicts = w.extender.scheduling.feasibility
        verdicts.cache.state.observe(
            NodeName("w1"), facts_of(report("w1", generation=3), "w1"), verdicts.clock()
        )
        await until(lambda: w.api.touched == ["w1"])


async def test_no_node_is_touched_by_a_replica_that_does_not_lead():
    lease = LeaseView(namespace="kube-system", name="held", holder="other", duration_s=3600)
    async with cluster("w1") as c:
        await c.api.real.write_lease(lease)
        terms = LeaderElectionConfig(namespace="kube-system", name="held", holder="me", lease_s=15)
        await c.create_pod("p", 5_000)
        async with extending(c, lease=LeaderElector(c.api.real, terms, boottime_s)) as w:
            uid = w.pods["p"]["metadata"]["uid"]
            w.extender.scheduling.requeuer.refused(
                uid, Request((InterfaceRequest(),)), [NodeName("w1")], "default"
            )
            await until(w.expect(pods_waiting=1))
            await asked_again(w, "w1")
            assert w.api.touched == []


async def test_node_touched_for_unknown_pods_has_no_taint_against_them():
    """Schedulers before 1.34 try a pod again only if the touched node takes it: one with a taint does not."""
    async with cluster("w1") as c:
        await c.create_node("control")
        await c.create_pod("p", 5_000)
        async with extending(c, node_watches=1024) as w:
            await until(lambda: w.api.touched != [])
            assert w.api.touched == ["w1"]
