"""Processes end and begin again: promises are kept, and who waits is not forgotten."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from cluster.extenders import registration
from cluster.front import front, late
from cluster.world import cluster

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


async def test_scheduler_that_begins_again_binds_who_waited(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1") as c:
        extender = await c.running_extender()
        async with c.plane.scheduler(registration(extender.url)):
            await c.create_pod("first", 8_000)
            await c.bound("first")
            await c.create_pod("second", 8_000)
            await c.event("second", "FailedScheduling")
        await c.create_pod("third", 1_000)
        async with c.plane.scheduler(registration(extender.url)):
            await c.bound("third")
            await c.delete_pod("first")
            await c.bound("second")
            assert max((await c.placed()).values()) <= 10_000


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["ended", "killed"])
async def test_restarted_extender_keeps_promises_that_no_node_reports_yet(
    kind: str, tmp_path: Path, number: int
):
    async with cluster(kind, tmp_path, "w1") as c:
        node = c.nodes.pop("w1")  # its kubelet starts no pod
        extender = await c.running_extender()
        async with c.plane.scheduler(registration(extender.url)):
            await c.create_pod("first", 8_000)
            await c.bound("first")
            await extender.end(number)
            await c.create_pod("second", 8_000)
            await c.create_pod("third", 2_000)
            await c.event("second", "FailedScheduling")
            await extender.start()
            await c.again(extender)
            await c.bound("third")
            await c.event("second", "FailedScheduling", "RDMA Scheduler Extension")
            assert await c.node_of("second") is None
            assert max((await c.placed()).values()) == 10_000
        assert node.reserved() == {}


async def test_other_replica_takes_over_when_the_leader_is_killed(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1", "w2") as c:
        leader, standby = c.extender("one"), c.extender("two")
        await leader.start()
        await leader.ready()
        await standby.start()
        async with front(leader, standby) as service, c.plane.scheduler(registration(service.url)):
            for index in range(4):
                await c.create_pod(f"before{index}", 4_000)
            await c.bound("before0")
            await leader.end(signal.SIGKILL)
            for index in range(2):
                await c.create_pod(f"after{index}", 1_000)
            await c.again(standby)
            await c.some_bound(6)
            await c.create_pod("much", 3_000)
            await c.event("much", "FailedScheduling", "RDMA Scheduler Extension")
            assert max((await c.placed()).values()) <= 10_000


async def test_leader_that_was_paused_in_a_bind_does_not_promise_bandwidth_of_the_other(
    kind: str, tmp_path: Path
):
    async with cluster(kind, tmp_path, "w1") as c:
        leader, standby = c.extender("one"), c.extender("two")
        await leader.start()
        await leader.ready()
        await standby.start()
        async with front(leader, standby) as service:

            async def pause() -> None:
                leader.program.process.send_signal(signal.SIGSTOP)

            service.before["bind"] = pause
            async with c.plane.scheduler(registration(service.url, httpTimeout="3s")):
                await c.create_pod("first", 8_000)
                while service.before:
                    await late(0.05)
                await c.delete_pod("first")  # so that the other sells the bandwidth that the paused one binds
                await c.again(standby)
                await c.create_pod("second", 8_000)
                await c.bound("second")
                leader.program.process.send_signal(signal.SIGCONT)
                while service.pending:
                    await late(0.05)
                await c.create_pod("third", 8_000)
                await c.event("third", "FailedScheduling", "RDMA Scheduler Extension")
                assert set((await c.placed()).values()) == {8_000}
