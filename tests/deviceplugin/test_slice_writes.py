"""How often a node's slices are written, whatever becomes of its links and of the slices."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from deviceplugin.offered_pf import offer
from deviceplugin.test_dra import SLICE
from fakes.slices import FakeSlices
from k8s_rdma.core.types import NodeName
from k8s_rdma.deviceplugin.resource_slices import SlicePublisher, WriteLimit
from k8s_rdma.kube.errors import ApiRefusedError
from k8s_rdma.wire.claims import Offers
from k8s_rdma_demo.kubelet.device_manager import in_background

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Specs = tuple[dict[str, str], ...]
UP, DOWN = ({"link": "up"},), ({"link": "down"},)


def written_at(offers: Iterable[tuple[float, Specs]]) -> list[float]:
    """The times at which slices are written. offers: each with its time."""
    limit, times, slices = WriteLimit(), [], None
    for now_s, specs in offers:
        if specs == slices:
            limit.note_equal(now_s)
        elif not limit.left_s(specs, now_s, absent=False):
            limit.note_write(specs, now_s)
            times.append(now_s)
            slices = specs
    return times


def flapping(until_s: int) -> list[tuple[float, Specs]]:
    return [(float(now_s), DOWN if now_s % 2 else UP) for now_s in range(until_s)]


def test_flapping_link_is_written_ever_more_rarely_and_at_once_when_it_was_steady() -> None:
    times = written_at(flapping(600))
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps[:5] == [1, 3, 5, 9, 17]
    assert set(gaps[5:]) == {31}
    assert written_at([*flapping(600), (700, UP), (701, UP), (740, DOWN), (741, UP)])[-2:] == [740, 741]


def test_change_is_written_at_once_after_others_far_apart() -> None:
    assert written_at([(0, UP), (100, DOWN), (200, UP), (300, DOWN)]) == [0, 100, 200, 300]


def test_slice_that_another_writer_keeps_changing_is_written_ever_more_rarely() -> None:
    limit, times = WriteLimit(), []
    for now_s in range(4000):
        if not limit.left_s(UP, float(now_s), absent=False):
            limit.note_write(UP, float(now_s))
            times.append(now_s)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps == [1, 2, 4, 8, 16, 32, 64, 128, 256, *[300] * 11]


def test_two_writers_that_differ_for_hours_write_ever_more_rarely() -> None:
    limits, specs, writes, latest = (WriteLimit(), WriteLimit()), (UP, DOWN), [], -1
    for now_s in range(4 * 3600):
        for writer, limit in enumerate(limits):
            if writer == latest:
                limit.note_equal(float(now_s))
            elif not limit.left_s(specs[writer], float(now_s), absent=False):
                limit.note_write(specs[writer], float(now_s))
                writes.append(now_s)
                latest = writer
    assert len([at for at in writes if at >= 3600]) <= 2 * (3 * 3600 / 300 + 1)


def test_deleted_slices_are_back_within_two_seconds_of_the_last_write() -> None:
    limit = WriteLimit()
    for now_s in (0.0, 1.0, 3.0, 7.0):
        limit.note_write(UP, now_s)
    assert limit.left_s(UP, 7.5, absent=False) == 7.5
    assert limit.left_s(UP, 7.5, absent=True) == 1.5
    assert limit.left_s(DOWN, 60.0, absent=False) == 0.0


@pytest.mark.anyio
async def test_flaps_of_three_seconds_are_four_writes_at_most_of_which_the_last_is_right() -> None:
    api = FakeSlices()
    publisher = SlicePublisher(api, NodeName("w1"))
    async with in_background(publisher.run()):
        ends, up = time.monotonic() + 3, True
        while time.monotonic() < ends:
            up = not up
            publisher.offer(Offers(node="w1", pfs=(offer(link_up=up),)))
            await asyncio.sleep(0.05)
        publisher.offer(Offers(node="w1", pfs=(offer(mtu=9000),)))
        await until(
            lambda: api.specs()[SLICE]["devices"][0]["attributes"]["mtu"] == {"int": 9000}, within_s=8
        )
        assert 2 <= publisher.writes <= 4


@pytest.mark.anyio
async def test_slices_that_are_deleted_while_a_change_waits_are_back_at_once() -> None:
    api = FakeSlices()
    publisher = SlicePublisher(api, NodeName("w1"))
    async with in_background(publisher.run()):
        for mtu in range(1500, 1504):
            publisher.offer(Offers(node="w1", pfs=(offer(mtu=mtu),)))
            await until(lambda: publisher.writes > mtu - 1500, within_s=8)  # noqa: B023
        publisher.offer(Offers(node="w1", pfs=(offer(mtu=9000),)))
        await asyncio.sleep(0.1)
        assert publisher.writes == 4
        await api.delete_slice(SLICE)
        await until(lambda: SLICE in api.slices, within_s=2)


class WithoutLists(FakeSlices):
    """An API server without the feature gate DRAListTypeAttributes, which drops lists before it validates."""

    async def create_slice(self, *arguments: Any, **options: Any) -> NoReturn:
        raise ApiRefusedError(
            'create resourceslice s: ResourceSlice.resource.k8s.io "s" is invalid: spec.devices[0].attributes'
            '[resource.kubernetes.io/numaNode]: Invalid value: "": exactly one value must be specified',
            status=422,
        )


@pytest.mark.anyio
@pytest.mark.parametrize("lists", [True, False])
async def test_slices_that_are_refused_for_their_lists_name_the_feature_gate(*, lists: bool) -> None:
    """As kube-apiserver 1.36.2 refuses them: tests/cluster/test_numa_node_lists.py."""
    publisher = SlicePublisher(
        WithoutLists(), NodeName("w1"), near_nodes=(lambda node: (node,)) if lists else None
    )
    async with in_background(publisher.run()):
        publisher.offer(Offers(node="w1", pfs=(offer(),)))
        await until(lambda: "exactly one value" in publisher.problem, within_s=8)
    advice = "numaNodeList needs the feature gate DRAListTypeAttributes of kube-apiserver: create"
    assert publisher.problem.startswith(advice) is lists


async def until(holds: Callable[[], object], *, within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)
