"""Pods that arrive together see each other, though none of them is bound yet."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from itertools import count

import pytest

from extender.node_server import PF0, PF1, pf, report
from extender.serving import served
from extender.world import cluster, extending, world
from k8s_rdma_demo.cluster.extender_client import ExtenderConfig
from k8s_rdma_demo.cluster.scheduler import SchedulerConfig, scheduling

pytestmark = pytest.mark.anyio

HELD = "held for a moment for pods on their way: default/"


def room_for(w, vfs: int, *pcis: str) -> None:
    for node in w.nodes.values():
        node.report = report(node.name, *(pf(pci, vfs=vfs) for pci in pcis or (PF0,)))


def decided(text: str, verb: str) -> dict[str, int]:
    """How many decisions of a verb there were, by reason."""
    found = re.findall(rf'decisions_total{{reason="(\w+)",verb="{verb}"}} (\d+)', text)
    return {reason: int(count) for reason, count in found}


def scheduler(port: int, *, bind: bool, seed: int | None) -> SchedulerConfig:
    extender = ExtenderConfig(
        url_prefix=f"http://127.0.0.1:{port}/scheduler",
        filter_verb="rdma_scheduling",
        prioritize_verb="prioritize",
        bind_verb="bind" if bind else "",
        node_cache_capable=True,
    )
    return SchedulerConfig(extenders=(extender,), initial_backoff_s=0.01, max_backoff_s=0.05, seed=seed)


@pytest.mark.parametrize(("nodes", "vfs", "seed"), [(100, 1, 7), (20, 5, None), (4, 25, 7)])
async def test_gang_that_just_fits_is_bound_without_a_bind_that_is_refused(nodes, vfs, seed):
    """Each bind has to wait for its node while others are filtered; with a seed, any of equals is chosen.

    It does not matter how fast this machine is: pods are waited for, and nodes answer, as long as it takes.
    """
    pods, patient = nodes * vfs, {"max_age_s": 3600.0, "assume_s": 3600.0, "node_timeout_s": 900.0}
    async with cluster(*(f"w{i:03}" for i in range(nodes))) as c, served(c, **patient) as s:
        room_for(c, vfs)
        for node in c.nodes.values():
            node.late_s = 0.3
        await s.ready()
        for index in range(pods):
            await c.create_pod(f"p{index}", 100)
        async with scheduling(c.server.url, scheduler(s.port, bind=True, seed=seed)):
            bound = {}
            while bound.get("bound", 0) < pods:
                bound = decided((await s.http.get("/metrics")).text, "bind")
                await asyncio.sleep(0.02)
        assert bound == {"bound": pods}


async def test_gang_is_not_sent_to_a_node_beyond_its_room_if_the_scheduler_binds():
    """There is no bind that would refuse it: what was filtered is counted until the pod is seen bound."""
    async with cluster(*(f"w{i}" for i in range(10))) as c, served(c, binder="scheduler") as s:
        room_for(c, 5)
        await s.ready()
        for index in range(50):
            await c.create_pod(f"p{index}", 100)
        async with scheduling(c.server.url, scheduler(s.port, bind=False, seed=7)):
            nodes = [None]
            while None in nodes:
                pods = (await c.http.get("/api/v1/pods")).json()["items"]
                nodes = [pod["spec"].get("nodeName") for pod in pods]
                await asyncio.sleep(0.02)
        assert Counter(nodes) == dict.fromkeys(c.nodes, 5)


async def test_node_that_a_pod_is_going_to_is_left_to_it_while_there_is_another():
    async with world("w1", "w2") as w:
        room_for(w, 1)
        await w.create_pod("first", 0)
        await w.create_pod("second", 0)
        assert await w.fitting("first", "w1") == ["w1"]
        result = await w.filter("second")
        assert result["NodeNames"] == ["w2"]
        assert result["FailedNodes"]["w1"].endswith(f"({HELD}first)")
        assert await w.prioritize("second") == {"w1": 0, "w2": 10}


async def test_place_is_held_however_little_of_the_time_was_the_processes_own():
    """Each look at the clock finds it further than holding places may take, as on a machine with others."""
    async with cluster("w1", "w2") as c:
        room_for(c, 1)
        seconds = count(step=1.0)
        async with extending(c, clock=lambda: next(seconds), assume_s=1e6):
            await c.create_pod("first", 0)
            await c.create_pod("second", 0)
            assert await c.fitting("first", "w1") == ["w1"]
            assert await c.fitting("second") == ["w2"]


async def test_refusals_name_no_pods_if_they_have_only_the_cause():
    async with world("w1", "w2", refusal_detail="cause") as w:
        room_for(w, 1)
        await w.create_pod("first", 0)
        await w.create_pod("second", 0)
        assert await w.fitting("first", "w1") == ["w1"]
        refused = (await w.filter("second"))["FailedNodes"]["w1"]
        assert refused.endswith("(held for a moment for pods on their way)")


async def test_pod_is_not_kept_from_the_only_node_that_fits():
    async with world("w1") as w:
        room_for(w, 1)
        await w.create_pod("first", 0)
        await w.create_pod("second", 0)
        assert await w.fitting("first") == ["w1"]
        assert await w.fitting("second") == ["w1"]
        assert (await w.prioritize("second"))["w1"] > 0
        assert await w.bind("second", "w1") == ""


async def test_refusal_is_the_nodes_own_if_the_pod_does_not_fit_anyway():
    async with world("w1", "w2") as w:
        room_for(w, 1)
        w.nodes["w1"].holds(other=0)
        await w.create_pod("first", 0)
        await w.create_pod("second", 0)
        assert await w.fitting("first", "w2") == ["w2"]
        refused = (await w.filter("second", "w1"))["FailedNodes"]["w1"]
        assert HELD not in refused
        assert "0 of 1 VF free" in refused


async def test_pod_is_expected_on_the_node_with_the_best_score():
    async with world("w1", "w2", "w3") as w:
        room_for(w, 2)
        w.nodes["w2"].holds(other=0)
        await w.create_pod("first", 0)
        await w.create_pod("second", 0)
        assert len(await w.fitting("first")) == 3
        scores = await w.prioritize("first")
        assert scores["w2"] > scores["w1"] == scores["w3"]
        assert await w.fitting("second") == ["w1", "w3"]


async def test_one_of_equals_is_preferred_only_while_others_are_on_their_way():
    async with world("w1", "w2", "w3", "w4", "w5") as w:
        room_for(w, 2)
        await w.create_pod("first", 0)
        await w.create_pod("second", 0)
        await w.filter("first")
        assert len(set((await w.prioritize("first")).values())) == 1
        await w.filter("second")
        scores = await w.prioritize("second")
        assert sorted(scores.values())[-2:] == [scores["w1"], scores["w1"] + 1]


async def test_pod_counts_on_the_node_that_bind_names_and_on_no_other():
    async with world("w1", "w2") as w:
        room_for(w, 1)
        await w.create_pod("first", 0)
        await w.create_pod("second", 0)
        await w.filter("first")
        await w.prioritize("first")
        w.nodes["w2"].answering.clear()
        bind = asyncio.create_task(w.bind("first", "w2"))
        await asyncio.sleep(0)
        w.extender.scheduling.max_age_s = 60.0
        assert await w.fitting("second") == ["w1"]
        w.nodes["w2"].answering.set()
        assert await bind == ""
        assert await w.fitting("second") == ["w1"]


async def test_pod_counts_no_more_when_its_bind_was_refused():
    async with world("w1", "w2") as w:
        room_for(w, 1)
        await w.create_pod("first", 0)
        await w.create_pod("second", 0)
        assert await w.fitting("first", "w1") == ["w1"]
        w.nodes["w1"].holds(other=0)
        assert await w.bind("first", "w1") != ""
        w.nodes["w1"].holds()
        assert await w.fitting("second") == ["w1", "w2"]


async def test_pod_counts_no_more_when_its_bind_did_not_come_in_time():
    async with world("w1", "w2", assume_s=1e-9) as w:
        room_for(w, 1)
        await w.create_pod("first", 0)
        await w.create_pod("second", 0)
        assert await w.fitting("first", "w1") == ["w1"]
        assert await w.fitting("second") == ["w1", "w2"]


async def test_pod_does_not_count_against_itself_and_is_expected_anew_when_it_is_filtered_again():
    async with world("w1", "w2") as w:
        room_for(w, 1)
        await w.create_pod("first", 0)
        await w.create_pod("second", 0)
        assert await w.fitting("first", "w1") == ["w1"]
        assert await w.fitting("first", "w2") == ["w2"]
        assert await w.fitting("second") == ["w1"]


async def test_pods_that_go_to_one_node_are_counted_together_pf_by_pf():
    async with world("w1", "w2") as w:
        room_for(w, 4, PF0, PF1)
        for name, rate in (("first", 6_000), ("second", 6_000), ("third", 6_000), ("fourth", 4_000)):
            await w.create_pod(name, rate)
        assert await w.fitting("first", "w1") == ["w1"]
        assert await w.fitting("second", "w1") == ["w1"]
        assert await w.fitting("third") == ["w2"]
        assert await w.fitting("fourth") == ["w1", "w2"]
