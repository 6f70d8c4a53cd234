"""Preemption respects how a PodGroup's pods may be disrupted: each alone, or all together."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from extender.node_server import pf, report
from extender.preemption import counted, create, place, preempt
from extender.world import World, world

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

TOGETHER = [
    pytest.param("v1alpha2", "PodGroup", id="1.36"),
    pytest.param("v1alpha3", {"all": {}}, id="1.37-alpha"),
    pytest.param("v1beta1", {"all": {}}, id="1.37"),
]
ALONE = [
    pytest.param("v1alpha2", "Pod", id="1.36"),
    pytest.param("v1beta1", {"single": {}}, id="1.37"),
]


@asynccontextmanager
async def running(
    *places: tuple[str, str], version: str = "v1beta1", vfs: int = 4, **group: Any
) -> AsyncIterator[World]:
    """A group whose pods of 2,000 Mb/s run on these nodes of 10,000 each, and a PodGroup that says this."""
    async with world("w1", "w2", group_versions=(version,)) as w:
        for node in w.nodes.values():
            node.report = report(node.name, pf(vfs=vfs))
        await w.create_pod_group("a", 1, version=version, **group)
        for name, node in places:
            await place(w, name, node, 2_000, schedulingGroup={"podGroupName": "a"})
        yield w


@pytest.mark.parametrize(("version", "mode"), TOGETHER)
async def test_pods_of_a_group_go_together(version: str, mode: Any):
    places = (("a0", "w1"), ("a1", "w1"), ("a2", "w1"))
    async with running(*places, version=version, disruptionMode=mode) as w:
        await create(w, "high", 5_000, priority=9)
        assert sorted((await preempt(w, "high", w1=["a2"]))["w1"]) == ["a0", "a1", "a2"]


@pytest.mark.parametrize(("version", "mode"), ALONE)
async def test_pods_of_a_group_go_one_by_one(version: str, mode: Any):
    places = (("a0", "w1"), ("a1", "w1"), ("a2", "w1"))
    async with running(*places, version=version, disruptionMode=mode) as w:
        await create(w, "high", 5_000, priority=9)
        assert await preempt(w, "high", w1=["a2"]) == {"w1": ["a2"]}


async def test_pods_of_a_group_that_is_on_two_nodes_stay_and_another_goes():
    """An answer names pods of one node: this group could not go whole."""
    async with running(("a0", "w1"), ("a1", "w2"), disruptionMode={"all": {}}) as w:
        await place(w, "other", "w1", 6_000)
        await create(w, "high", 7_000, priority=9)
        assert await preempt(w, "high", w1=["a0"]) == {"w1": ["other"]}


async def test_node_is_dropped_if_only_a_part_of_a_group_could_be_evicted():
    async with running(("a0", "w1"), ("a1", "w2"), disruptionMode={"all": {}}) as w:
        await place(w, "low", "w2", 5_000)
        await create(w, "high", 9_000, priority=9)
        assert await preempt(w, "high", w1=["a0"], w2=["a1", "low"]) == {}


async def test_whole_group_is_spared_if_another_pod_suffices():
    async with running(("a0", "w1"), ("a1", "w1"), disruptionMode={"all": {}}) as w:
        await place(w, "other", "w1", 5_000)
        await create(w, "high", 5_000, priority=9)
        assert await preempt(w, "high", w1=["other"]) == {"w1": ["other"]}


async def test_group_of_higher_priority_than_its_pods_stays():
    async with running(("a0", "w1"), disruptionMode={"all": {}}, priority=100) as w:
        await create(w, "high", 9_000, priority=9)
        assert await preempt(w, "high", w1=["a0"]) == {}


async def test_pods_whose_group_cannot_be_read_stay():
    async with running(("a0", "w1"), ("a1", "w1")) as w:
        w.extender.cache.gangs._groups.clear()
        w.api.pod_groups_refused = True
        await create(w, "high", 9_000, priority=9)
        assert await preempt(w, "high", w1=["a1"]) == {}


async def test_pods_of_a_group_that_is_gone_go_one_by_one():
    async with running(("a0", "w1"), ("a1", "w1"), disruptionMode={"all": {}}) as w:
        w.extender.cache.gangs._groups.clear()
        path = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups/a"
        assert (await w.http.delete(path)).status_code == 200
        await create(w, "high", 7_000, priority=9)
        assert await preempt(w, "high", w1=["a1"]) == {"w1": ["a1"]}


async def test_no_pod_is_evicted_for_a_group_that_does_not_preempt():
    async with running(("a0", "w1"), disruptionMode={"single": {}}) as w:
        await w.create_pod_group("b", 1, version="v1beta1", preemptionPolicy="Never")
        await create(w, "high", 9_000, priority=9, schedulingGroup={"podGroupName": "b"})
        assert await preempt(w, "high", w1=["a0"]) == {}


async def test_priority_of_the_waiting_group_decides_whom_its_pods_evict():
    async with running(("a0", "w1"), disruptionMode={"single": {}}) as w:
        await place(w, "middle", "w1", 7_000, priority=5)
        await w.create_pod_group("b", 1, version="v1beta1", priority=3)
        await create(w, "high", 6_000, priority=9, schedulingGroup={"podGroupName": "b"})
        assert await preempt(w, "high", w1=["a0"]) == {}


async def test_budget_of_each_pod_that_goes_along_is_counted():
    places = (("a0", "w1"), ("a1", "w1"), ("a2", "w1"))
    async with running(*places, disruptionMode={"all": {}}) as w:
        url = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
        document = {
            "metadata": {"name": "b"},
            "spec": {"selector": {"matchLabels": {"name": "a0"}}},
            "status": {"disruptionsAllowed": 0},
        }
        assert (await w.http.post(url, json=document)).status_code == 201
        await create(w, "high", 9_000, priority=9)
        [(names, violations)] = (await counted(w, "high", w1=["a2"])).values()
        assert (sorted(names), violations) == (["a0", "a1", "a2"], 1)
