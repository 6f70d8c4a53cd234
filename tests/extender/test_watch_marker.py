"""A write by which a process knows how far its watch has come."""

from __future__ import annotations

import asyncio

import pytest

from k8s_rdma.core.types import PodUid
from k8s_rdma.extender.watch_marker import WatchMarker

pytestmark = pytest.mark.anyio

P, Q = PodUid("p"), PodUid("q")


@pytest.mark.parametrize("shown_first", [True, False], ids=["watch-first", "answer-first"])
async def test_write_is_shown_whether_the_watch_or_its_answer_comes_first(shown_first: bool):
    marker = WatchMarker()
    with marker.expecting(P):
        if shown_first:
            marker.on_update(P, "7")
        waiting = asyncio.create_task(marker.wait_shown("7"))
        await asyncio.sleep(0)
        assert waiting.done() == shown_first
        marker.on_update(P, "7")
        assert await waiting


async def test_versions_of_other_pods_and_of_earlier_writes_do_not_count():
    marker = WatchMarker()
    marker.on_update(P, "7")
    with marker.expecting(P):
        marker.on_update(P, "8")
    with marker.expecting(P):
        waiting = asyncio.create_task(marker.wait_shown("8"))
        marker.on_update(Q, "8")
        marker.on_update(P, "9")
        await asyncio.sleep(0)
        assert not waiting.done()
        marker.on_update(P, "8")
        assert await waiting


async def test_list_that_begins_meanwhile_is_waited_for_instead():
    marker = WatchMarker()
    assert not marker.on_list_begun()
    with marker.expecting(P):
        waiting = asyncio.create_task(marker.wait_shown("7"))
        await asyncio.sleep(0)
        assert marker.on_list_begun()
        assert not await waiting
    with marker.expecting(P):
        waiting = asyncio.create_task(marker.wait_shown("8"))
        await asyncio.sleep(0)
        marker.on_update(P, "8")
        assert await waiting
