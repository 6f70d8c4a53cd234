"""Who is evicted for whom, and who gets the room, beside a scheduler with priority classes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from cluster.extenders import registration
from cluster.test_preemption import VFS, classes, pod, preempting
from cluster.test_refusals import LEGACY
from cluster.world import cluster
from extender.node_server import pf, report

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

TWO = {VFS: "2"}


async def test_pod_that_has_the_bandwidth_goes_and_not_the_one_that_the_scheduler_would_take(
    kind: str, tmp_path: Path
):
    async with cluster(kind, tmp_path, "w1", **TWO) as c:
        await classes(c)
        extender = await c.running_extender(vfResource=VFS)
        async with c.plane.scheduler(preempting(extender)):
            await pod(c, "much", "low", 8_000)
            await c.bound("much")
            await pod(c, "little", "low", 1_000)
            await c.bound("little")
            uid = (await c.pod("much"))["metadata"]["uid"]
            c.nodes["w1"].keeps.add(uid)
            await pod(c, "high", "high", 7_000)
            await c.gone("much")
            named = await c.when("high", lambda pod: bool(pod["status"].get("nominatedNodeName")))
            assert named["status"]["nominatedNodeName"] == "w1"
            assert "nodeName" not in named["spec"]
            c.nodes["w1"].release(uid)
            await c.bound("high")
            assert "deletionTimestamp" not in (await c.pod("little"))["metadata"]


async def test_pods_of_equal_priority_do_not_take_the_room_of_evicted_pods(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1", **TWO) as c:
        await classes(c)
        node = c.nodes["w1"]
        extender = await c.running_extender(vfResource=VFS)
        async with c.plane.scheduler(preempting(extender)):
            victim = (await pod(c, "low", "low", 6_000, 1_000))["metadata"]["uid"]
            await c.bound("low")
            node.keeps.add(victim)
            await pod(c, "high", "high", 6_000)
            await c.gone("low")
            for index in range(3):
                await pod(c, f"equal{index}", "high", 5_000)
                await c.event(f"equal{index}", "FailedScheduling")
            node.release(victim)
            await c.bound("high")
            await asyncio.sleep(1)
            assert [await c.node_of(f"equal{index}") for index in range(3)] == [None] * 3


async def test_pod_that_may_not_evict_waits_for_room(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1", **TWO) as c:
        await classes(c)
        patient = {"metadata": {"name": "patient"}, "value": 1000, "preemptionPolicy": "Never"}
        await c.create({"kind": "PriorityClass", "apiVersion": "scheduling.k8s.io/v1", **patient})
        extender = await c.running_extender(vfResource=VFS)
        async with c.plane.scheduler(preempting(extender)):
            await pod(c, "low", "low", 6_000, 1_000)
            await c.bound("low")
            await pod(c, "high", "patient", 6_000)
            await c.event("high", "FailedScheduling", "preemptionPolicy=Never")
            await asyncio.sleep(1)
            assert "deletionTimestamp" not in (await c.pod("low"))["metadata"]
            await c.delete_pod("low")
            await c.bound("high")


async def test_slow_victim_is_awaited_and_no_other_pod_is_evicted(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1", "w2", **TWO) as c:
        await classes(c)
        extender = await c.running_extender(vfResource=VFS)
        async with c.plane.scheduler(preempting(extender)):
            names = [f"low{index}" for index in range(4)]
            for name in names:
                made = await pod(c, name, "low", 5_000)
                for node in c.nodes.values():
                    node.lingering.add(made["metadata"]["uid"])
                await c.bound(name)
            await pod(c, "high", "high", 5_000)
            named = await c.when("high", lambda pod: bool(pod["status"].get("nominatedNodeName")))
            await pod(c, "middle", "middle", 500)  # wakes up the scheduler, and may evict as well
            await asyncio.sleep(3)
            pods = [await c.pod(name) for name in names]
            going = [each["metadata"]["name"] for each in pods if "deletionTimestamp" in each["metadata"]]
            assert len(going) == 2, going  # one for each
            for name in going:
                await c.end_pod(name)
            high = await c.bound("high")
            assert high["spec"]["nodeName"] == named["status"]["nominatedNodeName"]
            await c.bound("middle")
            left = [name for name in names if await c.pod(name)]
            assert len(left) == 2


async def test_pod_with_a_gate_reserves_no_room_until_the_gate_is_gone(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1") as c:
        extender = await c.running_extender()
        async with c.plane.scheduler(registration(extender.url)):
            await c.create_pod("gated", 8_000, schedulingGates=[{"name": "example.com/not-yet"}])
            await c.create_pod("first", 8_000)
            await c.bound("first")
            await c.patch("/api/v1/namespaces/default/pods/gated", {"spec": {"schedulingGates": []}})
            await c.event("gated", "FailedScheduling", "RDMA Scheduler Extension")
            await c.delete_pod("first")
            await c.bound("gated")


async def test_pod_that_was_given_its_node_by_hand_counts_there(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1") as c:
        extender = await c.running_extender()
        async with c.plane.scheduler(registration(extender.url)):
            await c.create_pod("by-hand", 8_000, nodeName="w1")
            await asyncio.sleep(1)  # until the extender's watch has shown it
            await c.create_pod("much", 5_000)
            await c.event("much", "FailedScheduling", "best PF has 2000 Mb/s")
            await c.create_pod("little", 2_000)
            await c.bound("little")
            await c.delete_pod("by-hand")
            await c.bound("much")


async def test_two_schedulers_share_the_bandwidth(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1", "w2", "w3") as c:
        extender = await c.running_extender()
        ours = registration(extender.url)
        second = {**ours, "profiles": [{"schedulerName": "second"}]}
        async with c.plane.scheduler(ours), c.plane.scheduler(second):
            for index in range(16):
                name = "second" if index % 2 else "default-scheduler"
                await c.create_pod(f"p{index}", 2_500, schedulerName=name)
            await c.some_bound(12)
            await asyncio.sleep(1)
            assert len(await c.some_bound(0)) == 12
            assert set((await c.placed()).values()) == {10_000}


@pytest.mark.parametrize(
    ("detail", "told"),
    [
        (
            "numbers",
            [
                "best PF has 1000 Mb/s and 3 VFs free",
                "best PF has 2000 Mb/s and 3 VFs free",
                "best PF has 5000 Mb/s and 4 VFs when empty",
            ],
        ),
        ("cause", ["no PF has 8000 Mb/s even when empty", "no PF has 8000 Mb/s free"]),
    ],
)
async def test_event_counts_equal_refusals_and_says_whom_evictions_would_not_help(
    kind: str, tmp_path: Path, detail: str, told: list[str]
):
    async with cluster(kind, tmp_path, "w1", "w2", "w3") as c:
        c.nodes["w3"].server.report = report("w3", pf(mbps=5_000))
        c.nodes["w2"].server.holds(somebody=9_000)
        extender = await c.running_extender(refusalDetail=detail)
        async with c.plane.scheduler(registration(extender.url)):
            await c.create_pod("big", 8_000)
            await c.bound("big")  # on w1
            await c.create_pod("other", 8_000)
            said = await c.event("other", "FailedScheduling")
            numbers = [1, 1, 1] if detail == "numbers" else [1, 2]
            refusals = [
                f"{number} {LEGACY} (needs 1 interface of 8000 Mb/s; {each})"
                for number, each in zip(numbers, told, strict=True)
            ]
            assert said.startswith(f"0/3 nodes are available: {', '.join(refusals)}. ")
            assert (
                "preemption: 0/3 nodes are available: 1 Preemption is not helpful for scheduling, 2 " in said
            )
