"""A node with two running pods, whose owners change the rates that their annotations ask for."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from extender.node_server import PF0, pf, report
from extender.world import World, world
from k8s_rdma.core.types import PciAddress
from k8s_rdma.wire.placement_annotation import generation_in
from k8s_rdma.wire.placement_keys import PlacementKeys
from k8s_rdma.wire.rates_status import RATES_STATUS_ANNOTATION, RatesStatus, decode_rates_status, digest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

KEY = PlacementKeys.shared(b"a key of this test, long enough")
ANNOTATION = "rdma_interfaces_required"
LINK_MBPS = 1_000


def asked(*rates: tuple[int, int]) -> str:
    return json.dumps([{"min_tx_rate": least, "max_tx_rate": most} for least, most in rates])


async def annotations_of(c: World, name: str) -> dict[str, str]:
    return (await c.read_pod(name))["metadata"]["annotations"]


async def ask(c: World, name: str, *rates: tuple[int, int]) -> None:
    await edit(c, name, asked(*rates))


async def edit(c: World, name: str, text: str) -> None:
    await c.patch_pod(name, {"metadata": {"annotations": {ANNOTATION: text}}})


async def status(
    c: World, name: str, state: str, holds: Callable[[RatesStatus], bool] = lambda _: True
) -> RatesStatus:
    """Wait for the state of the annotation as it is now."""
    while True:
        found = await annotations_of(c, name)
        if text := found.get(RATES_STATUS_ANNOTATION):
            decoded = decode_rates_status(text)
            if decoded.state == state and decoded.request == digest(found[ANNOTATION]) and holds(decoded):
                return decoded
        await asyncio.sleep(0.01)


def programs(c: World, *pods: tuple[str, int, int]) -> None:
    """The node has programmed these: pod, generation, reservation."""
    node = c.nodes["w1"]
    number = int(node.report.generation.partition(".")[2]) + 1
    held = {c.pods[name]["metadata"]["uid"]: mbps for name, _, mbps in pods}
    found = report("w1", *node.report.pfs, generation=number, held=held)
    generations = {c.pods[name]["metadata"]["uid"]: generation for name, generation, _ in pods}
    node.report = replace(
        found,
        allocations=tuple(replace(each, generation=generations[each.pod.uid]) for each in found.allocations),
    )


async def used_mbps(c: World) -> int:
    await c.fitting("probe")  # reads the node
    return c.extender.cache.state.snapshots["w1"].used[PciAddress(PF0)].mbps


@pytest.fixture
async def c() -> AsyncIterator[World]:
    async with world("w1", key=KEY) as made:
        await start(made)
        yield made


async def start(made: World) -> None:
    """Gold runs with 500 Mb/s of 1,000, silver with 300."""
    made.nodes["w1"].report = report("w1", pf(PF0, mbps=LINK_MBPS))
    await made.create_pod("probe", 1)
    for name, rates in (("gold", (500, 600)), ("silver", (300, 0))):
        await made.create_pod(name, annotation=asked(rates))
        assert await made.bind(name, "w1") == ""
    programs(made, ("gold", 0, 500), ("silver", 0, 300))
    assert await used_mbps(made) == 800


async def delivered(c: World, generation: int) -> None:
    """Wait until the placement of that generation has come to the node."""
    while generation not in map(generation_in, c.nodes["w1"].delivered):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def takes_placements(c: World) -> None:
    """The node's agent has no credentials."""
    node = c.nodes["w1"]
    epoch, _, counter = node.report.generation.partition(".")
    node.report = replace(node.report, generation=f"{epoch}.{int(counter) + 1}", takes_placements=True)
