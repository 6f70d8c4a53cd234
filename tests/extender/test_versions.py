"""A bind is of one version of its pod: the effect of others' writes, and how that settles doubts."""

from __future__ import annotations

import asyncio
from math import inf

import pytest
from msgspec import structs

from extender.world import interfaces, until, world
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, decode

pytestmark = pytest.mark.anyio

CONDITION = {"status": {"conditions": [{"type": "PodScheduled", "status": "False"}]}}


async def rates(w, name: str) -> list[int]:
    pod = await w.read_pod(name)
    text = pod["metadata"]["annotations"][PLACEMENT_ANNOTATION]
    uid, node = PodUid(pod["metadata"]["uid"]), NodeName(pod["spec"]["nodeName"])
    return [each.min_tx_rate_mbps for each in decode(text, uid=uid, node=node, keys=None).interfaces]


def asking(*reservations: int) -> dict:
    return {"metadata": {"annotations": {"rdma_interfaces_required": interfaces(*reservations)}}}


async def test_binding_has_the_version_of_the_watch():
    async with world("w1") as w:
        p = await w.create_pod("p", 3_000)
        await until(lambda: w.extender.cache.pods.latest(p["metadata"]["uid"]) is not None)
        assert await w.bind("p", "w1") == ""
        assert [b.version for b in w.api.started] == [p["metadata"]["resourceVersion"]]
        assert w.api.reads == 0


async def test_bind_of_a_pod_that_the_scheduler_wrote_to_since_is_tried_of_its_new_version():
    async with world("w1") as w:
        await w.create_pod("p", 3_000)
        w.api.writing.clear()
        bind = asyncio.create_task(w.bind("p", "w1"))
        await w.api.begun.wait()
        await w.patch_pod("p", CONDITION, "/status")
        w.api.writing.set()
        assert await bind == ""
        assert len({b.version for b in w.api.started}) == len(w.api.started) == 2


async def test_bind_uses_the_request_of_the_bound_version():
    async with world("w1") as w:
        await w.create_pod("p", 3_000)
        await w.filter("p")
        w.api.writing.clear()
        bind = asyncio.create_task(w.bind("p", "w1"))
        await w.api.begun.wait()
        await w.patch_pod("p", asking(7_000, 1_000))
        w.api.writing.set()
        assert await bind == ""
        assert await rates(w, "p") == [7_000, 1_000]
        assert (
            sum(
                i.min_tx_rate_mbps
                for i in w.extender.cache.state.reservation("w1", w.pods["p"]["metadata"]["uid"]).interfaces
            )
            == 8_000
        )


async def test_bind_says_that_the_annotation_changed_when_the_pod_does_not_fit_any_more():
    async with world("w1") as w:
        await w.create_pod("p", 3_000)
        await w.filter("p")
        w.api.writing.clear()
        bind = asyncio.create_task(w.bind("p", "w1"))
        await w.api.begun.wait()
        await w.patch_pod("p", asking(70_000))
        w.api.writing.set()
        assert "since the pod was filtered its rdma_interfaces_required or its policy changed" in await bind
        assert await w.node_of("p") is None
        assert w.metric("pods_promised") == 0


async def test_second_bind_of_a_pod_to_another_node_reports_the_first_node():
    """The scheduler timed out, scheduled the pod again, and the first bind was still under way."""
    async with world("w1", "w2") as w:
        w.api.writing.clear()
        await w.create_pod("p", 6_000)
        await w.create_pod("q", 6_000)
        first = asyncio.create_task(w.bind("p", "w1"))
        await w.api.begun.wait()
        second = asyncio.create_task(w.bind("p", "w2"))
        w.api.writing.set()
        assert await first == ""
        assert "already bound to node w1" in await second
        assert len(w.api.started) == 1
        assert await w.bind("q", "w2") == ""


async def test_bind_of_a_version_read_before_the_last_renewal_needs_no_read():
    questions = []

    async def confirm(since: float) -> str:
        questions.append(since)
        return ""

    async with world("w1") as w:
        p = await w.create_pod("p", 3_000)
        await until(lambda: w.extender.cache.pods.latest(p["metadata"]["uid"]) is not None)
        pod = w.extender.cache.pods.latest(p["metadata"]["uid"])
        taken_at = w.extender.cache.pods.taken_at(pod)
        assert taken_at < inf
        assert w.extender.cache.pods.taken_at(structs.replace(pod, version="9999999")) == inf
        w.extender.binder.confirm = confirm
        assert await w.bind("p", "w1") == ""
    assert questions == [taken_at]
