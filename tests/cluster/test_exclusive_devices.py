"""Pods whose VFs kubelet chooses, beside pods whose VFs the extender chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cluster.extenders import registration
from cluster.world import cluster, placement
from extender.node_server import PF0, PF1, pf, report

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio
RDMA = "tencent.com/rdma"


async def test_pods_with_exclusive_devices_are_bound_for_the_worst_choice_and_counted_on_their_pfs(
    kind: str, tmp_path: Path
):
    async with cluster(kind, tmp_path, "w1", **{RDMA: "4"}) as c:
        node = c.nodes["w1"]
        node.server.report = report("w1", pf(PF0, pools={RDMA: 2}), pf(PF1, pools={RDMA: 2}))
        extender = await c.running_extender()
        async with c.plane.scheduler(registration(extender.url)):
            await c.create_pod("first", 5_000, 4_000, resources={RDMA: "2"})
            first = await c.bound("first")
            assert [each["min_tx_rate"] for each in placement(first)] == [5_000, 4_000]
            await c.create_pod("second", 5_000, 4_000, resources={RDMA: "2"})
            await c.bound("second")
            await c.create_pod("third", 2_000)
            await c.event("third", "FailedScheduling", "needs 1 interface of 2000 Mb/s")
            assert node.reserved() == {PF0: 9_000, PF1: 9_000}
            await c.delete_pod("first")
            third = await c.bound("third")
            assert [each["pf"] for each in placement(third)] == [PF0]


async def test_pod_that_may_come_to_want_too_much_of_a_pf_waits_until_no_choice_is_too_much(
    kind: str, tmp_path: Path
):
    async with cluster(kind, tmp_path, "w1", **{RDMA: "4"}) as c:
        c.nodes["w1"].server.report = report("w1", pf(PF0, pools={RDMA: 2}), pf(PF1, pools={RDMA: 2}))
        extender = await c.running_extender()
        async with c.plane.scheduler(registration(extender.url)):
            await c.create_pod("plain", 6_000)
            await c.bound("plain")
            await c.create_pod("pooled", 5_000, resources={RDMA: "1"})
            await c.event(
                "pooled", "FailedScheduling", "may come to carry 5000 Mb/s of that, and has 4000 of"
            )
            await c.delete_pod("plain")
            await c.bound("pooled")


async def test_pod_that_asks_both_pools_comes_nowhere(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1", **{RDMA: "4"}) as c:
        c.nodes["w1"].server.report = report("w1", pf(PF0, pools={RDMA: 4}))
        extender = await c.running_extender()
        async with c.plane.scheduler(registration(extender.url)):
            await c.create_pod("both", 1_000, resources={RDMA: "2"})
            told = await c.event("both", "FailedScheduling", "asks both pools")
            assert f"request 2 of {RDMA}" in told
            assert "has 1 interface, not 2" in told
