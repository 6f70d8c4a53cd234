"""Writes to pods: one at a time, and settled if they were not answered."""

from __future__ import annotations

import asyncio

import pytest

from extender.faulty_api import Fault
from extender.test_versions import CONDITION
from extender.world import cluster, extending, until, world

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("fault", [Fault.DROPPED, Fault.LATE])
async def test_bind_without_an_answer_is_settled_at_once_by_touching_the_pod(fault):
    async with world("w1", api_request_timeout_s=3600.0) as w:
        w.api.faults.append(fault)
        await w.create_pod("p", 6_000)
        await w.create_pod("q", 6_000)
        assert "no answer" in await w.bind("p", "w1")
        assert w.extender.pod_writer.undecided() == []
        assert await w.bind("q", "w1") == ""
        w.api.late.set()
        await asyncio.gather(*w.api.late_writes)
        assert await w.node_of("p") is None


async def test_bind_whose_answer_was_lost_is_success_when_the_touch_shows_it():
    async with world("w1") as w:
        w.api.faults.append(Fault.LOST)
        await w.create_pod("p", 6_000)
        assert await w.bind("p", "w1") == ""
        assert w.api.fenced == ["p"]


async def test_doubt_stands_while_the_api_server_does_not_answer_and_the_next_bind_settles_it():
    async with world("w1", "w2", api_request_timeout_s=3600.0) as w:
        w.api.faults.append(Fault.DROPPED)
        w.api.untouched = 1
        await w.create_pod("p", 6_000)
        await w.create_pod("q", 6_000)
        assert "no answer" in await w.bind("p", "w1")
        assert w.extender.pod_writer.undecided() == ["default/p"]
        assert "enough free" in await w.bind("q", "w1")
        assert await w.bind("p", "w2") == ""
        assert await w.bind("q", "w1") == ""


async def test_without_the_right_to_touch_pods_a_newer_version_settles_the_doubt_as_well():
    async with world("w1", api_request_timeout_s=3600.0) as w:
        w.api.touchable = False
        w.api.faults.append(Fault.DROPPED)
        await w.create_pod("p", 6_000)
        assert "no answer" in await w.bind("p", "w1")
        assert w.extender.pod_writer.undecided() == ["default/p"]
        await w.patch_pod("p", CONDITION, "/status")
        assert await w.bind("p", "w1") == ""
        assert len({b.version for b in w.api.started}) == 2


async def test_bind_of_one_pod_waits_for_the_bind_of_it_that_is_under_way():
    async with world("w1") as w:
        w.api.writing.clear()
        await w.create_pod("p", 6_000)
        first = asyncio.create_task(w.bind("p", "w1"))
        await w.api.begun.wait()
        second = asyncio.create_task(w.bind("p", "w1"))
        w.api.writing.set()
        assert (await first, await second) == ("", "")
        assert len(w.api.started) == 1


async def test_binds_to_different_nodes_go_on_while_one_waits_for_the_api_server():
    async with world("w1", "w2") as w:
        w.api.writing.clear()
        await w.create_pod("p", 6_000)
        await w.create_pod("q", 6_000)
        slow = asyncio.create_task(w.bind("p", "w1"))
        other = asyncio.create_task(w.bind("q", "w2"))
        await until(lambda: len(w.api.started) == 2)
        w.api.writing.set()
        assert (await slow, await other) == ("", "")


@pytest.mark.parametrize("how", ["is read unbound", "is bound", "is deleted"])
async def test_finish_returns_when_the_pod_in_doubt_is_known_to_be_bound_or_not(how):
    api_request_timeout_s = 0.01 if how == "is read unbound" else 3600.0
    async with cluster("w1") as c, extending(c, api_request_timeout_s=api_request_timeout_s) as w:
        await until(lambda: not w.extender.missing())
        w.api.touchable = False
        w.api.faults.append(Fault.LATE)
        await w.create_pod("p", 6_000)
        assert "no answer" in await w.bind("p", "w1")
        w.api.reading.clear()  # when it is read again
        pod_writer = w.extender.pod_writer
        finish = asyncio.create_task(pod_writer.finish(3600.0))
        assert (await asyncio.wait([finish], timeout=0))[1]
        assert pod_writer.undecided() == ["default/p"]
        w.api.reading.set()
        if how == "is bound":
            w.api.late.set()
        if how == "is deleted":
            await w.delete_pod("p")
        await finish
        assert pod_writer.undecided() == []
        w.api.late.set()
        await asyncio.gather(*w.api.late_writes)
