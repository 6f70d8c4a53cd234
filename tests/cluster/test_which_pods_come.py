"""Which pods an extender is asked about, and which of them its outage blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cluster.extenders import registration
from cluster.front import front
from cluster.world import MOUNT, cluster, placement

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

MANAGED = {"managedResources": [{"name": MOUNT, "ignoredByScheduler": False}]}
DEVICES = {MOUNT: "10000"}
"""As the device plugin has them: more than ever run out."""


async def test_pods_without_the_managed_resource_never_come(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1", **DEVICES) as c:
        extender = await c.running_extender()
        async with front(extender) as service, c.plane.scheduler(registration(service.url, **MANAGED)):
            await c.create_pod("plain")
            await c.create_pod("ours", 1_000, managed=True)
            await c.bound("plain")
            assert len(placement(await c.bound("ours"))) == 1
            assert {name for verb in ("rdma_scheduling", "bind") for name in service.pods(verb)} == {"ours"}


async def test_outage_blocks_only_pods_with_the_managed_resource(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1", **DEVICES) as c:
        extender = await c.running_extender()
        await extender.end()
        async with c.plane.scheduler(registration(extender.url, **MANAGED)):
            await c.create_pod("ours", 1_000, managed=True)
            await c.create_pod("plain")
            await c.bound("plain")
            assert "connection refused" in await c.event("ours", "FailedScheduling")
            await extender.start()
            await c.again(extender)
            await c.bound("ours")


async def test_outage_blocks_every_pod_without_a_managed_resource(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1") as c:
        extender = await c.running_extender()
        await extender.end()
        async with c.plane.scheduler(registration(extender.url)):
            await c.create_pod("plain")
            await c.event("plain", "FailedScheduling")
            await extender.start()
            await c.again(extender)
            await c.bound("plain")
