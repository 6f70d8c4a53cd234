"""Statuses of claims whose preparation is refused, however many claims there are."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
import pytest

from deviceplugin.offered_pf import offer
from deviceplugin.test_dra import ATTACHED, prepared
from fakes.slices import FakeSlices
from k8s_rdma.core.types import NodeName
from k8s_rdma.deviceplugin.prepared_claims import MOST_REFUSED, MOST_REJECTIONS, ClaimStatuses
from k8s_rdma.deviceplugin.resource import Observable
from k8s_rdma.kube.informer import Time
from k8s_rdma.wire.claims import ClaimName, Offers
from k8s_rdma_demo.kubelet.device_manager import in_background
from resource_claims import claim, interface

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio


def name(index: int) -> ClaimName:
    return ClaimName(namespace="default", name=f"c{index}", uid=f"u{index}")


@dataclass
class Written:
    """The statuses, the API server that they go to, and a clock that the test turns."""

    api: FakeSlices = field(default_factory=FakeSlices)
    offers: Observable[Offers | None] = field(default_factory=lambda: Observable[Offers | None](None))
    now_s: float = 0.0

    def __post_init__(self) -> None:
        clock = Time(monotonic=lambda: self.now_s, now=lambda: datetime.now(UTC), pause=self.pause)
        self.statuses = ClaimStatuses(self.api, NodeName("w1"), self.offers, clock)

    async def pause(self, _seconds: float) -> None:
        await asyncio.sleep(0)

    def refuse(self, index: int) -> None:
        self.api.objects["claim", "default", f"c{index}"] = claim(
            interface("a"), uid=f"u{index}", name=f"c{index}"
        )
        self.statuses.refuse(name(index), "does not fit")

    def pass_time(self, seconds: float) -> None:
        """The clock goes on, and an offer that changes has the statuses look at it."""
        self.now_s += seconds
        self.offers.publish(Offers(node="w1", pfs=(offer(mtu=1500 + int(self.now_s)),)))

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(120):
            while not holds():  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.001)

    def is_written(self, index: int) -> bool:
        return "devices" in self.api.objects["claim", "default", f"c{index}"]["status"]


async def test_refusal_is_written_beside_any_number_of_prepared_claims() -> None:
    written = Written()
    claims = tuple(
        msgspec.structs.replace(prepared(**ATTACHED), claim=name(index)) for index in range(MOST_REFUSED + 4)
    )
    written.offers.publish(Offers(node="w1", claims=claims))
    async with in_background(written.statuses.run()):
        await written.until(lambda: written.api.reads == len(claims))
        written.refuse(1000)
        await written.until(lambda: written.is_written(1000))
        written.offers.publish(Offers(node="w1", claims=claims, pfs=(offer(),)))
        written.refuse(1001)
        await written.until(lambda: written.is_written(1001))
        assert written.api.reads == len(claims) + 2  # those of prepared claims are done


async def test_latest_refusals_are_written() -> None:
    written = Written()
    for index in (*range(MOST_REFUSED), 1, MOST_REFUSED, MOST_REFUSED + 1):
        written.refuse(index)
    async with in_background(written.statuses.run()):
        await written.until(lambda: len(written.api.applied) == MOST_REFUSED)
    assert [index for index in range(MOST_REFUSED + 2) if not written.is_written(index)] == [0, 2]


async def test_refusal_that_the_api_server_rejects_is_forgotten() -> None:
    written = Written()
    written.api.refused_status = "no such device"
    async with in_background(written.statuses.run()):
        written.refuse(0)
        for reads in range(1, MOST_REJECTIONS + 1):
            await written.until(lambda: written.api.reads == reads)  # noqa: B023
            written.pass_time(1000)
        for _ in range(10):
            written.pass_time(1000)
            await asyncio.sleep(0.001)
        assert written.api.reads == MOST_REJECTIONS
        written.api.refused_status = ""
        written.refuse(0)
        await written.until(lambda: written.is_written(0))


async def test_refusal_waits_for_an_api_server_that_is_away() -> None:
    written = Written()
    written.api.served = False
    async with in_background(written.statuses.run()):
        written.refuse(0)
        for reads in range(1, 3 * MOST_REJECTIONS):
            await written.until(lambda: written.api.reads == reads)  # noqa: B023
            written.pass_time(1000)
        written.api.served = True
        written.pass_time(1000)
        await written.until(lambda: written.is_written(0))
