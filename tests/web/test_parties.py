"""Shares of parties: a user who sends a lot takes no place of others."""

from __future__ import annotations

import asyncio

import pytest

from k8s_rdma.web.parties import FairTurns, Recent, party_of

pytestmark = pytest.mark.anyio


async def settle() -> None:
    """Let all that can go on do so."""
    for _ in range(20):
        await asyncio.sleep(0)


class Calls:
    """Calls that end when they are let, by their names."""

    def __init__(self, turns: FairTurns) -> None:
        self.turns = turns
        self.running: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}

    def start(self, party: str, name: str) -> asyncio.Task[None]:
        return asyncio.create_task(self._call(party, name))

    async def _call(self, party: str, name: str) -> None:
        async with self.turns.turn(party):
            self.running.append(name)
            self._ends[name] = asyncio.Event()
            try:
                await self._ends[name].wait()
            finally:
                self.running.remove(name)

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await settle()


async def test_party_with_many_calls_leaves_a_place_and_waits_by_turns_with_others():
    calls = Calls(FairTurns(3, of_party=2))
    tasks = [calls.start("greedy", f"g{index}") for index in range(5)]
    await settle()
    assert calls.running == ["g0", "g1"]
    tasks += [calls.start("a", "a0"), calls.start("a", "a1"), calls.start("b", "b0")]
    await settle()
    assert calls.running == ["g0", "g1", "a0"], "at once, though three calls wait"
    await calls.end("g0")
    assert calls.running == ["g1", "a0", "g2"], "it waits longest"
    await calls.end("g1")
    assert calls.running == ["a0", "g2", "a1"], "each party in its turn"
    await calls.end("g2")
    assert calls.running == ["a0", "a1", "b0"]
    await calls.end("a0")
    assert calls.running == ["a1", "b0", "g3"]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_calls_that_are_given_up_leave_their_places():
    calls = Calls(FairTurns(2, of_party=1))
    tasks = [calls.start("a", f"a{index}") for index in range(4)]
    await settle()
    for task in (tasks[1], tasks[2], tasks[0]):  # those that wait, and the one that runs
        task.cancel()
    await settle()
    assert calls.running == ["a3"]
    last = calls.start("b", "b0")
    await settle()
    assert calls.running == ["a3", "b0"]
    for task in (*tasks, last):
        task.cancel()
    await asyncio.gather(*tasks, last, return_exceptions=True)
    after = [calls.start("a", "x"), calls.start("b", "y")]
    await settle()
    assert calls.running == ["x", "y"], "all places are free again"
    for task in after:
        task.cancel()
    await asyncio.gather(*after, return_exceptions=True)


async def test_call_that_is_given_up_at_the_moment_of_its_turn_gives_it_back():
    calls = Calls(FairTurns(2, of_party=1))
    first, second = calls.start("a", "a0"), calls.start("a", "a1")
    await settle()
    first.cancel()
    await asyncio.sleep(0)  # its place is granted to the second, which has not run yet
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    third = calls.start("a", "a2")
    await settle()
    assert calls.running == ["a2"]
    third.cancel()
    await asyncio.gather(third, return_exceptions=True)


def test_values_of_a_party_with_many_make_room_for_others():
    recent: Recent[str, int] = Recent(lambda: 0.0, 10, lasts_s=60)
    for index in range(3):
        recent.put(f"a{index}", index, party="a")
    for index in range(100):
        recent.put(f"g{index}", index, party="greedy")
    assert [recent.get(f"a{index}") for index in range(3)] == [0, 1, 2]
    assert [recent.get(f"g{index}") for index in range(92, 100)] == [None, *range(93, 100)]
    recent.put("b", 1, party="b")
    assert (recent.get("b"), recent.get("g93"), recent.get("a0")) == (1, None, 0)
    recent.put("a0", 7, party="greedy")
    assert recent.get("a0") == 7


@pytest.mark.parametrize(
    ("username", "party"),
    [
        ("jane", "jane"),
        ("system:serviceaccount:team-a:robot-1", "system:serviceaccount:team-a"),
        ("system:serviceaccount:team-a:robot-2", "system:serviceaccount:team-a"),
        ("system:node:w1", "system:node:w1"),
    ],
)
def test_service_accounts_of_a_namespace_are_one_party(username: str, party: str):
    assert party_of(username) == party
