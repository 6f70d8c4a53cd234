"""Many pods at once, and pods that come and go while programs end and begin again, watched from outside."""

from __future__ import annotations

import asyncio
import random
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from cluster.extenders import registration
from cluster.front import front
from cluster.observing import LINK_MBPS, Crowd, Observer
from cluster.world import Cluster, cluster
from extender.node_server import pf, report

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


pytestmark = pytest.mark.anyio

MILLING_S = {"stand-in": 3, "real": 30}
DEADLINE_S = 115
NODES = tuple(f"w{number}" for number in range(1, 6))


@pytest.mark.parametrize("names_only", [True, False], ids=["names", "full-nodes"])
async def test_pods_of_one_owner_fill_all_nodes_to_the_last_vf(
    kind: str, tmp_path: Path, *, names_only: bool
):
    nodes, each = {"stand-in": (8, 5), "real": (20, 10)}[kind]
    async with cluster(kind, tmp_path, *(f"n{number}" for number in range(nodes))) as c:
        for name, node in c.nodes.items():
            node.server.report = report(name, pf(vfs=each))
        extender = await c.running_extender()
        registered = registration(extender.url, nodeCacheCapable=names_only)
        async with watched(c) as observer, c.plane.scheduler(registered):
            rate = LINK_MBPS // each
            await asyncio.gather(*(c.create_pod(f"p{number}", rate) for number in range(nodes * each)))
            await c.some_bound(nodes * each)
        assert observer.most == LINK_MBPS
        assert set((await c.placed()).values()) == {LINK_MBPS}


@pytest.mark.parametrize("upset", ["nothing", "scheduler", "extender", "leader", "api-server"])
async def test_no_bandwidth_is_given_twice_or_lost_while_pods_come_and_go(
    kind: str, tmp_path: Path, upset: str
):
    async with cluster(kind, tmp_path, *NODES, deadline_s=DEADLINE_S) as c:
        if upset == "api-server" and c.plane.restart_api is None:
            pytest.skip("what this API server stores ends with it")
        extenders = [c.extender(name) for name in (("one", "two") if upset == "leader" else ("one",))]
        await extenders[0].start()
        await extenders[0].ready()
        for standby in extenders[1:]:
            await standby.start()
        async with front(*extenders) as service, watched(c) as observer, AsyncExitStack() as schedulers:
            configuration = registration(service.url)
            await schedulers.enter_async_context(c.plane.scheduler(configuration))
            crowd = Crowd(c, random.Random(upset))
            await crowd.mill(MILLING_S[kind] / 2)
            match upset:
                case "scheduler":
                    await schedulers.aclose()
                    await crowd.mill(0.5)
                    await schedulers.enter_async_context(c.plane.scheduler(configuration))
                case "extender":
                    await extenders[0].end(signal.SIGKILL)
                    await crowd.mill(0.5)
                    await extenders[0].start()
                case "leader":
                    await extenders[0].end(signal.SIGKILL)
                case "api-server":
                    await asyncio.gather(c.plane.restart_api(), crowd.mill(MILLING_S[kind] / 2))
            await crowd.mill(MILLING_S[kind] / 2)
            await crowd.leave()
            await c.again(*extenders)
            for name in NODES:
                await c.create_pod(f"whole-{name}", LINK_MBPS)
            for name in NODES:
                await c.bound(f"whole-{name}")
        assert observer.seen > crowd.made


@asynccontextmanager
async def watched(c: Cluster) -> AsyncIterator[Observer]:
    """No sum may be too much as long as the block lasts."""
    observer = Observer(c)
    watching = asyncio.create_task(observer.run())
    try:
        yield observer
        assert not watching.done(), watching.exception()
    finally:
        watching.cancel()
    assert not observer.wrong
