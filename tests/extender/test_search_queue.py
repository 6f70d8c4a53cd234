"""Searches of namespaces share the processor; the searcher is counted, and not how long it took."""

from __future__ import annotations

import asyncio

import pytest

from k8s_rdma.extender.search_queue import SLICE_S, SearchQueue

pytestmark = pytest.mark.anyio


class Processor:
    """Time that passes as somebody searches."""

    def __init__(self) -> None:
        self.ran_s = 0.0
        self.searches: list[str] = []
        self.queue = SearchQueue(lambda: self.ran_s)

    async def search(self, namespace: str, costs: list[float], *, background: bool = False) -> float:
        async with self.queue.turn(namespace, background=background) as turn:
            for cost in costs:
                self.ran_s += cost
                self.searches.append(namespace)
                await turn.give_way()
        return turn.used_s


async def test_short_search_ends_first_when_others_take_long():
    """Eight tenants' pods of one namespace, 10 ms a node, beside a victim's of 30 us a node."""
    processor = Processor()
    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(processor.search("crowd", [0.01] * 100))
        await asyncio.sleep(0)
        victim = group.create_task(processor.search("victim", [0.00003] * 1000))
    assert victim.result() == pytest.approx(0.03)
    positions = [at for at, each in enumerate(processor.searches) if each == "victim"]
    assert processor.searches[positions[0] : positions[-1]].count("crowd") <= 4


async def test_namespaces_get_equal_shares_when_both_search_without_end():
    processor = Processor()
    async with asyncio.TaskGroup() as group:
        for _ in range(7):
            group.create_task(processor.search("crowd", [0.01] * 50))
        group.create_task(processor.search("other", [0.01] * 200))
    beginning = processor.searches[:300]
    assert abs(beginning.count("crowd") - beginning.count("other")) <= 2


async def test_fresh_namespaces_bring_no_time_of_their_own_when_one_of_before_searches():
    """A tenant may make as many as he likes."""
    processor = Processor()
    await processor.search("victim", [0.01] * 100)
    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(processor.search(f"fresh-{number}", [0.01] * 40))
        await asyncio.sleep(0)
        group.create_task(processor.search("victim", [0.01] * 5))
    last = max(at for at, each in enumerate(processor.searches) if each == "victim")
    assert last - 100 < 6 * 21


async def test_background_search_waits_while_a_caller_waits():
    processor = Processor()
    async with asyncio.TaskGroup() as group:
        group.create_task(processor.search("a", [SLICE_S] * 2))
        group.create_task(processor.search("b", [SLICE_S], background=True))
        group.create_task(processor.search("a", [SLICE_S] * 20))
    assert processor.searches == ["a"] * 22 + ["b"]


async def test_empty_slices_do_not_wait_without_searches():
    processor = Processor()
    assert await processor.search("a", [0.0] * 3) == 0.0
    assert processor.queue.used("a") == 0.0


async def test_turn_goes_on_when_one_that_waits_is_cancelled():
    processor = Processor()
    async with processor.queue.turn("a"):
        waiting = [asyncio.create_task(processor.search(each, [0.001])) for each in "bc"]
        await asyncio.sleep(0)
        waiting[0].cancel()
    assert await waiting[1] == pytest.approx(0.001)
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]


async def test_turn_goes_on_when_it_was_handed_to_one_that_is_cancelled():
    processor = Processor()
    async with processor.queue.turn("a"):
        waiting = [asyncio.create_task(processor.search(each, [0.001])) for each in "bc"]
        await asyncio.sleep(0)
    waiting[0].cancel()  # after it was granted, before it ran
    assert await waiting[1] == pytest.approx(0.001)
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]


async def test_bill_delays_only_the_searches_of_its_namespace():
    processor = Processor()
    processor.queue.bill("writer", 1.0)
    async with asyncio.TaskGroup() as group:
        group.create_task(processor.search("a", [0.01]))
        await asyncio.sleep(0)
        group.create_task(processor.search("writer", [0.01] * 5))
        group.create_task(processor.search("b", [0.01] * 20))
    assert processor.searches == ["a"] + ["b"] * 20 + ["writer"] * 5
