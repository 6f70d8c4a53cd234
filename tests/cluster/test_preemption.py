"""Room is made for pods of higher priority if VFs are an extended resource that the scheduler counts."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from cluster.extenders import Extender, registration
from cluster.world import Cluster, cluster
from extender.node_server import pf, report

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.control_plane import Json

pytestmark = pytest.mark.anyio

VFS = "k8s-rdma.io/vf"
FOUR = {VFS: "4"}
LOW = 24


async def classes(c: Cluster) -> None:
    for name, value in (("low", 10), ("middle", 100), ("high", 1000)):
        await c.create(
            {
                "kind": "PriorityClass",
                "apiVersion": "scheduling.k8s.io/v1",
                "metadata": {"name": name},
                "value": value,
            }
        )


async def pod(c: Cluster, name: str, priority: str, *rates: int, **more: Any) -> Json:
    """A pod that asks for its VFs by number, too."""
    resources = {VFS: str(len(rates))}
    return await c.create_pod(name, *rates, resources=resources, priorityClassName=priority, **more)


async def pod_as_soon_as_taken(c: Cluster, name: str, priority: str, *rates: int) -> None:
    """Before the API server is ready: from then on it knows all roles."""
    while True:
        with suppress(httpx2.TransportError, AssertionError):
            await pod(c, name, priority, *rates)
            return
        await asyncio.sleep(0.02)


def preempting(extender: Extender, *, names_only: bool = True) -> Json:
    return registration(extender.url, preemptVerb="preempt", nodeCacheCapable=names_only)


@pytest.mark.parametrize("names_only", [True, False], ids=["names", "full-nodes"])
async def test_as_many_pods_go_as_the_bandwidth_needs(kind: str, tmp_path: Path, *, names_only: bool):
    async with cluster(kind, tmp_path, "w1", **FOUR) as c:
        await classes(c)
        extender = await c.running_extender(vfResource=VFS)
        async with c.plane.scheduler(preempting(extender, names_only=names_only)):
            for index in range(4):
                await pod(c, f"low{index}", "low", 2_500)
            for index in range(4):
                await c.bound(f"low{index}")
            await pod(c, "high", "high", 5_000)  # one VF: the scheduler alone would let one pod go
            await c.bound("high")
            left = [index for index in range(4) if await c.pod(f"low{index}")]
            assert len(left) == 2
            assert c.nodes["w1"].reserved() == {"0000:03:00.0": 10_000}


async def test_node_without_helpful_evictions_loses_no_pod(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1", "w2", **FOUR) as c:
        await classes(c)
        c.nodes["w1"].server.report = report("w1", pf(mbps=5_000))
        extender = await c.running_extender(vfResource=VFS)
        async with c.plane.scheduler(preempting(extender)):
            for index in range(8):
                await pod(c, f"low{index}", "low", 1_000)
            for index in range(8):
                await c.bound(f"low{index}")
            await pod(c, "high", "high", 8_000)
            assert (await c.bound("high"))["spec"]["nodeName"] == "w2"
            kept = [index for index in range(8) if await c.pod(f"low{index}")]
            assert {await c.node_of(f"low{index}") for index in kept} >= {"w1"}
            on_w1 = [index for index in kept if await c.node_of(f"low{index}") == "w1"]
            assert len(on_w1) == 4


async def test_room_of_evicted_pods_is_kept_from_pods_of_lower_priority(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1", **{VFS: "2"}) as c:
        await classes(c)
        node = c.nodes["w1"]
        extender = await c.running_extender(vfResource=VFS)
        async with c.plane.scheduler(preempting(extender)):
            victim = (await pod(c, "low", "low", 6_000, 1_000))["metadata"]["uid"]
            await c.bound("low")
            node.keeps.add(victim)
            await pod(c, "high", "high", 6_000)
            await c.gone("low")
            await c.event("high", "FailedScheduling", "RDMA")  # it came back before the room for it
            await pod(c, "middle", "middle", 5_000)
            await c.event("middle", "FailedScheduling")
            node.release(victim)
            await c.bound("high")
            await asyncio.sleep(1)
            assert await c.node_of("middle") is None


async def test_pods_under_a_budget_are_spared_if_others_can_be_evicted(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1", "w2", **{VFS: "1"}) as c:
        await classes(c)
        await budget(c)
        extender = await c.running_extender(vfResource=VFS)
        async with c.plane.scheduler(preempting(extender)):
            await pod(c, "guarded", "low", 6_000, labels={"guarded": "yes"})
            guarded = await c.bound("guarded")
            await pod(c, "open", "low", 6_000)
            other = await c.bound("open")
            assert guarded["spec"]["nodeName"] != other["spec"]["nodeName"]
            await pod(c, "high", "high", 6_000)
            assert (await c.bound("high"))["spec"]["nodeName"] == other["spec"]["nodeName"]
            assert await c.pod("guarded") is not None


async def test_pods_under_a_budget_are_spared_after_the_api_server_was_killed(kind: str, tmp_path: Path):
    """While it fills its caches of roles it answers 403, to who asks for budgets as well."""
    async with cluster(kind, tmp_path, "w1", "w2", **{VFS: "1"}) as c:
        if c.plane.restart_api is None:
            pytest.skip("the stand-in forgets its objects with its end")
        await classes(c)
        await budget(c)
        extender = await c.running_extender(vfResource=VFS)
        async with c.plane.scheduler(preempting(extender)):
            await pod(c, "guarded", "low", 6_000, labels={"guarded": "yes"})
            guarded = await c.bound("guarded")
            await pod(c, "open", "low", 6_000)
            other = await c.bound("open")
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(c.plane.restart_api(signal.SIGKILL))
                await pod_as_soon_as_taken(c, "high", "high", 6_000)
            assert (await c.bound("high"))["spec"]["nodeName"] == other["spec"]["nodeName"]
            assert (await c.bound("guarded"))["metadata"]["uid"] == guarded["metadata"]["uid"]


async def test_six_urgent_pods_evict_the_twelve_that_it_takes_and_no_more(kind: str, tmp_path: Path):
    """Of 24 pods on six full nodes two must go for each, wherever it goes."""
    async with cluster(kind, tmp_path, *(f"w{number}" for number in range(1, 7)), **FOUR) as c:
        await classes(c)
        extender = await c.running_extender(vfResource=VFS)
        async with c.plane.scheduler(preempting(extender)):
            for index in range(LOW):
                await pod(c, f"low{index}", "low", 2_500)
            for index in range(LOW):
                await c.bound(f"low{index}")
            for index in range(6):
                await pod(c, f"high{index}", "high", 5_000)
            for index in range(6):
                await c.bound(f"high{index}")
            spared = [index for index in range(LOW) if await c.pod(f"low{index}")]
            assert len(spared) == LOW - 12


async def budget(c: Cluster) -> None:
    """No pod with that label may go."""
    document = {
        "kind": "PodDisruptionBudget",
        "apiVersion": "policy/v1",
        "metadata": {"name": "guard", "namespace": "default"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"guarded": "yes"}}},
    }
    await c.create(document)
    if not c.plane.computes_budgets:
        path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/guard/status"
        counts = {"currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1, "disruptionsAllowed": 0}
        await c.patch(path, {"status": counts})
