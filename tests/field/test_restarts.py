"""Pods that a scheduler counts after its restart: users of other schedulers found them missing."""

from __future__ import annotations

import pytest

from extender.node_server import PF0, PF1, pf, report
from extender.world import World, cluster, extending, until
from k8s_rdma.core.types import NodeName
from k8s_rdma.wire.placement_keys import PlacementKeys

pytestmark = pytest.mark.anyio

KEY = PlacementKeys.shared(b"a key that agents share")


async def fits(w: World, name: str) -> bool:
    return await w.fitting(name) == ["w1"]


async def test_terminating_pod_counts_after_a_restart():
    """github.com/Project-HAMi/HAMi/pull/2812: it came as new and terminating, and was not counted.

    A pod with a long grace period still has its interfaces.
    """
    async with cluster("w1") as c:
        await c.create_pod("p", 6_000)
        await c.create_pod("q", 6_000)
        async with extending(c, KEY) as w:
            assert await w.bind("p", "w1") == ""
        path = "/api/v1/namespaces/default/pods/p"
        assert (await c.http.delete(path, params={"gracePeriodSeconds": 3600})).status_code == 200
        assert (await c.read_pod("p"))["metadata"]["deletionTimestamp"]
        async with extending(c, KEY) as w:
            await until(lambda: bool(w.extender.cache.pods.terminating(NodeName("w1"))))
            assert not await fits(w, "q")


async def test_pods_that_ask_alike_count_alike_before_and_after_a_restart():
    """github.com/Project-HAMi/HAMi/issues/2876: the number of parts was not in the annotation.

    Allocations of several parts then counted as one.
    """
    sizes = {"two": (1_000, 1_000), "first": (1_500,), "second": (1_500,), "rest": (5_000,), "more": (5_001,)}
    async with cluster("w1") as c:
        c.nodes["w1"].report = report("w1", pf(vfs=8))
        for name, rates in sizes.items():
            await c.create_pod(name, *rates)
        async with extending(c, KEY) as w:
            for name in ("two", "first", "second"):
                assert await w.bind(name, "w1") == ""
            assert (await fits(w, "rest"), await fits(w, "more")) == (True, False)
        async with extending(c, KEY) as w:
            assert (await fits(w, "rest"), await fits(w, "more")) == (True, False)


async def test_pod_counts_on_a_device_that_the_node_reports_only_later():
    """github.com/Project-HAMi/HAMi/issues/2592: an allocation of an unknown device was left out silently."""
    async with cluster("w1") as c:
        node = c.nodes["w1"]
        node.report = report("w1", pf(PF1))
        for name in ("p", "other", "third"):
            await c.create_pod(name, 6_000)
        async with extending(c, KEY) as w:
            assert await w.bind("p", "w1") == ""
        node.report = report("w1", pf(PF0), generation=2)
        async with extending(c, KEY) as w:
            assert await w.bind("other", "w1") == ""
            node.report = report("w1", pf(PF0), pf(PF1), generation=3)
            assert not await fits(w, "third")
            await w.delete_pod("p")
            while not await fits(w, "third"):  # which also shows that the last report was read
                pass
