"""Limits of namespaces, and the places that a pod's interfaces may have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cluster.extenders import registration
from cluster.world import cluster, placement
from extender.node_server import PF0, PF1, pf, report

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


async def test_pod_beyond_its_namespaces_limit_waits_until_the_namespace_holds_less(
    kind: str, tmp_path: Path
):
    async with cluster(kind, tmp_path, "w1", "w2") as c:
        extender = await c.running_extender(limits=[{"namespace": "default", "reservedMbps": 5_000}])
        async with c.plane.scheduler(registration(extender.url)):
            await c.create_pod("first", 4_000)
            await c.bound("first")
            await c.create_pod("second", 3_000)
            told = await c.event("second", "FailedScheduling", "namespace default")
            assert "4000 of 5000" in told
            await c.delete_pod("first")
            await c.bound("second")


async def test_interfaces_are_spread_over_pfs_if_the_pod_requests_that(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1", "w2") as c:
        c.nodes["w2"].server.report = report("w2", pf(PF0), pf(PF1))
        extender = await c.running_extender()
        async with c.plane.scheduler(registration(extender.url)):
            policy = {"k8s-rdma.io/policy": "spread-pfs"}
            await c.create_pod("rails", 1_000, 1_000, annotations=policy)
            pod = await c.bound("rails")
            assert pod["spec"]["nodeName"] == "w2"
            assert {each["pf"] for each in placement(pod)} == {PF0, PF1}
            await c.create_pod("more", 1_000, 1_000, 1_000, annotations=policy)
            await c.event("more", "FailedScheduling", "RDMA Scheduler Extension")
