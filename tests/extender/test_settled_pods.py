"""Pods that end while a verb is under way: no state of them stays."""

from __future__ import annotations

import asyncio

import pytest

from extender.caches import scheduler_cache
from extender.node_server import pf, report
from extender.world import until, world
from k8s_rdma.core.placement import PlacedInterface
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.core.types import NodeName, PciAddress, PodUid
from k8s_rdma.extender.nominated_pods import NominatedRoom
from k8s_rdma.extender.pod_requests import PendingPod
from k8s_rdma.extender.requeue import Limited, UnschedulablePods
from k8s_rdma.extender.settled_pods import SettledPods

W1, P, Q = NodeName("w1"), PodUid("p"), PodUid("q")
REQUEST = Request(interfaces=(InterfaceRequest(min_tx_rate_mbps=1),))


def pending(uid: PodUid) -> PendingPod:
    return PendingPod(uid=uid, namespace="default", name=uid, priority=0, request=REQUEST)


def test_pod_does_not_wait_when_it_has_settled():
    settled = SettledPods()
    waiting = UnschedulablePods(settled)
    waiting.refuse(P, REQUEST, [W1], 0.0, "default")
    settled.add(P)
    waiting.refuse(P, REQUEST, [W1], 1.0, "default")
    waiting.limit(Limited(namespace="default", uid=P, request=REQUEST), 1.0)
    assert (len(waiting), waiting.nodes()) == (0, [])


def test_no_room_is_reserved_for_a_pod_that_has_settled():
    settled = SettledPods()
    cache = scheduler_cache(lambda: 0.0, settled=settled)
    room = NominatedRoom((PlacedInterface(pf=PciAddress("0000:03:00.0"), min_tx_rate_mbps=1),))
    cache.nominations.answered(pending(P), {W1: room})
    settled.add(P)
    cache.nominations.answered(pending(P), {W1: room})
    cache.nominations.nominated(pending(P), W1)
    cache.assumed_pods.assume(pending(P), [W1])
    assert len(cache.nominations) == 0
    assert not cache.assumed_pods.has_assumed_except(Q)


def test_settled_pods_are_as_many_as_the_limit_and_the_latest():
    settled = SettledPods(max_pods=2)
    for uid in "abc":
        settled.add(PodUid(uid))
    assert [uid in settled for uid in "abc"] == [False, True, True]


GHOSTLESS = {"longest_wait_seconds": 0, "pods_waiting": 0, "pods_assumed": 0}


@pytest.mark.anyio
async def test_pod_that_is_deleted_while_it_is_filtered_does_not_wait_afterwards():
    async with world("w1") as w:
        w.nodes["w1"].report = report("w1", pf())
        await w.create_pod("p", 20_000)
        await until(lambda: w.extender.cache.pods.unbound_count == 1)
        w.nodes["w1"].answering.clear()
        w.nodes["w1"].heard.clear()
        filtering = asyncio.create_task(w.filter("p"))
        await w.nodes["w1"].heard.wait()
        await w.delete_pod("p")
        await until(lambda: w.extender.cache.pods.unbound_count == 0)
        w.nodes["w1"].answering.set()
        assert (await filtering)["NodeNames"] == []
        assert w.expect(**GHOSTLESS)()


@pytest.mark.anyio
async def test_pod_that_is_deleted_while_it_is_bound_does_not_wait_afterwards():
    async with world("w1") as w:
        await w.create_pod("p", 1_000)
        assert await w.fitting("p") == ["w1"]
        w.api.writing.clear()
        binding = asyncio.create_task(w.bind("p", "w1"))
        await w.api.begun.wait()
        await w.delete_pod("p")
        await until(lambda: w.extender.cache.pods.unbound_count == 0)
        w.api.writing.set()
        assert "does not exist any more" in await binding
        assert w.expect(**GHOSTLESS)()


@pytest.mark.anyio
async def test_pod_ends_when_its_bind_is_answered_404_before_the_watch_shows_its_end():
    async with world("w1") as w:
        await w.create_pod("p", 1_000)
        await until(lambda: w.extender.cache.pods.unbound_count == 1)
        assert await w.fitting("p") == ["w1"]
        w.api.streaming.clear()
        await w.delete_pod("p")
        assert "does not exist any more" in await w.bind("p", "w1")
        assert w.extender.cache.pods.unbound_count == 0
        w.nodes["w1"].report = report("w1", pf(mbps=100), generation=2)
        assert await w.fitting("p") == []  # the scheduler has not seen its end either
        assert w.expect(**GHOSTLESS)()


@pytest.mark.anyio
async def test_plain_pod_does_not_wait_when_its_bind_is_answered_404():
    async with world("w1") as w:
        await w.create_pod("p")
        await w.filter("p")
        await w.delete_pod("p")
        assert "does not exist any more" in await w.bind("p", "w1")
        assert w.expect(**GHOSTLESS)()


@pytest.mark.anyio
async def test_bind_of_a_wrong_name_ends_no_pod_that_is_bound():
    async with world("w1") as w:
        await w.create_pod("p", 1_000)
        assert await w.fitting("p") == ["w1"]
        assert await w.bind("p", "w1") == ""
        await until(lambda: w.extender.cache.pods.unbound_count == 0)
        w.pods["other"] = w.pods["p"]
        assert "does not exist" not in await w.bind("other", "w1")
        assert w.metric("pods_promised") == 1
