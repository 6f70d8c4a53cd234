"""The extender as a whole: it promises when it knows all, and wakes pods then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from extender.test_bind import NOT_ENOUGH
from extender.test_touch import asked_again
from extender.world import cluster, extending, until
from k8s_rdma.extender.extender import boottime_s
from k8s_rdma.kube.errors import ApiUncertainError
from k8s_rdma.kube.leader_election import LeaderElectionConfig, LeaderElector

if TYPE_CHECKING:
    from k8s_rdma.kube.published_api import LeaseView


pytestmark = pytest.mark.anyio


async def test_bind_makes_no_promise_until_all_pods_are_listed():
    async with cluster("w1") as c:
        c.api.watching.clear()
        async with extending(c) as w:
            await w.create_pod("p", 1)
            assert "is starting" in await w.bind("p", "w1")
            assert "is starting" in (await w.filter("p"))["Error"]
            assert await w.node_of("p") is None
            await w.create_pod("plain")
            assert await w.bind("plain", "w1") == ""
            w.api.watching.set()
            await until(lambda: not w.extender.missing())
            assert await w.bind("p", "w1") == ""


async def test_bind_counts_promises_from_before_the_extender_started():
    async with cluster("w1") as c:
        async with extending(c) as w:
            await w.create_pod("q", 6_000)
            assert await w.bind("q", "w1") == ""
        async with extending(c) as w:
            await w.create_pod("p", 6_000)
            assert await w.fitting("p") == []
            assert (await w.bind("p", "w1")).startswith(NOT_ENOUGH)


async def test_one_node_is_touched_when_the_extender_begins_while_pods_wait_whom_it_does_not_know():
    async with cluster("w1", "w2") as c:
        for node in c.nodes.values():
            node.holds(a=9_000)
        await c.create_pod("p", 5_000)
        async with extending(c) as w:
            await until(lambda: w.api.touched == ["w1"])
            assert await w.fitting("p") == []
            await asked_again(w, "w2")
            assert w.api.touched == ["w1"]


async def test_no_node_is_touched_when_the_extender_starts_and_no_pod_waits():
    async with cluster("w1") as c:
        await c.create_pod("bound", 1_000)
        await c.bind_by_hand("bound", "w1")
        await c.create_pod("ordinary")
        async with extending(c) as w:
            w.nodes["w1"].holds(a=9_000)
            await w.create_pod("p", 5_000)
            assert await w.fitting("p") == []
            w.nodes["w1"].holds()
            await until(lambda: w.api.touched != [])
            assert w.api.touched == ["w1"]


async def test_pods_are_woken_again_when_a_holder_that_was_deposed_has_had_time_to_notice():
    """Until then it refused pods that this one, which woke all when it began, has not heard of."""
    async with cluster("w1") as c:
        terms = LeaderElectionConfig(namespace="kube-system", name="held", holder="me", lease_s=1)
        await c.create_pod("p", 5_000)
        async with extending(c, lease=LeaderElector(c.api.real, terms, boottime_s)) as w:
            await until(lambda: w.api.touched == ["w1"] * 2)


class LeasesAway:
    """The Leases of an API server that does not answer while `away`."""

    def __init__(self, real):
        self._real = real
        self.away = False

    def _require_answers(self) -> None:
        if self.away:
            raise ApiUncertainError("lease: no answer")

    async def get_lease(self, namespace: str, name: str) -> LeaseView | None:
        self._require_answers()
        return await self._real.get_lease(namespace, name)

    async def write_lease(self, lease: LeaseView) -> LeaseView:
        self._require_answers()
        return await self._real.write_lease(lease)


async def test_pods_are_woken_when_the_holder_may_bind_again_after_an_outage():
    """Meanwhile it refused all of them, and kube-scheduler tries such pods only when something happens."""
    async with cluster("w1") as c:
        leases, terms = (
            LeasesAway(c.api.real),
            LeaderElectionConfig(namespace="kube-system", name="held", holder="me", lease_s=1),
        )
        await c.create_pod("p", 5_000)
        async with extending(c, lease=LeaderElector(leases, terms, boottime_s)) as w:
            await until(lambda: w.api.touched == ["w1"] * 2)
            leases.away = True
            await until(w.extender.missing)
            leases.away = False
            await until(lambda: w.api.touched == ["w1"] * 3)
