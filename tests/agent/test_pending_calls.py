"""Calls under way: a DEL that overtakes an ADD of its attachment, and how many calls may wait."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from agent.machine import Machine, asks, call
from k8s_rdma.agent.cluster.no_cluster import NoCluster
from k8s_rdma.agent.pending_calls import PendingCalls, WaitingCalls
from k8s_rdma.errors import K8sRdmaError, Reason

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from k8s_rdma.core.ledger import Pod

ASKED = asks({"min_tx_rate": 5}, {})


class SlowCluster(NoCluster):
    """Answers when it may; until then ADDs wait for it, before and in their turn."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def annotations(self, pod: Pod) -> Mapping[str, str]:
        await self.wait_listed()
        return ASKED

    async def wait_listed(self) -> None:
        self.asked.set()
        await self.may_answer.wait()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("annotations", [None, ASKED], ids=["before its turn", "in its turn"])
def test_delete_that_overtakes_an_add_leaves_no_interface(
    machine: Machine, annotations: dict[str, str] | None
) -> None:
    async def scenario() -> None:
        machine.cluster = cluster = SlowCluster()
        with machine.running() as (node, verbs):
            netns, stdin = machine.hardware.create_namespace(), machine.stdin(annotations)
            adding = asyncio.create_task(verbs.add(call("ADD"), netns, stdin))
            await cluster.asked.wait()
            deleting = asyncio.create_task(verbs.delete(call("DEL"), "net", stdin))
            await asyncio.sleep(0)
            cluster.may_answer.set()
            await deleting
            with pytest.raises(K8sRdmaError) as refused:
                await adding
            assert refused.value.reason is Reason.AGENT_UNREACHABLE
            assert not node.ledger.receipts
            assert machine.is_pristine()
            assert machine.markers() == set()

    asyncio.run(scenario())


def test_add_succeeds_when_it_comes_after_the_delete_of_one_that_was_given_up(machine: Machine) -> None:
    async def scenario() -> None:
        machine.cluster = cluster = SlowCluster()
        with machine.running() as (node, verbs):
            netns, stdin = machine.hardware.create_namespace(), machine.stdin(None)
            given_up = asyncio.create_task(verbs.add(call("ADD"), netns, stdin))
            await cluster.asked.wait()
            await verbs.delete(call("DEL"), "net", stdin)
            again = asyncio.create_task(verbs.add(call("ADD"), netns, stdin))
            cluster.may_answer.set()
            with pytest.raises(K8sRdmaError):
                await given_up
            given = await again
            assert given is not None
            assert set(node.ledger.receipts) == {given.receipt.attachment}
            assert machine.markers() == {"c1"}

    asyncio.run(scenario())


def test_container_is_marked_before_its_add_chooses_anything(machine: Machine) -> None:
    """The executable asks the agent about a DEL only if there is a marker."""

    async def scenario() -> None:
        machine.cluster = cluster = SlowCluster()
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            adding = asyncio.create_task(verbs.add(call("ADD"), netns, machine.stdin(ASKED)))
            await cluster.asked.wait()
            assert machine.markers() == {"c1"}
            assert not node.ledger.receipts
            cluster.may_answer.set()
            await adding
            assert machine.markers() == {"c1"}

    asyncio.run(scenario())


def test_marker_of_a_pending_add_stays_when_another_attachment_of_the_container_ends(
    machine: Machine,
) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            first = machine.stdin(asks({}))
            await verbs.add(call("ADD"), netns, first)
            await machine.worker.run(node.ledger_store.begin_add, call("ADD").container_id)
            await verbs.delete(call("DEL"), "net", first)
            assert machine.markers() == {"c1"}
            await machine.worker.run(node.ledger_store.end_add, call("ADD").container_id)
            assert machine.markers() == set()

    asyncio.run(scenario())


def test_add_does_not_begin_if_its_caller_ended_before_the_container_was_marked(
    machine: Machine,
) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            with pytest.raises(K8sRdmaError):
                await verbs.add(call("ADD"), netns, machine.stdin(ASKED), lambda: False)
            assert not node.ledger.receipts
            assert machine.kernel.applied == []
            assert machine.markers() == set()

    asyncio.run(scenario())


def test_cancelled_call_is_not_waited_for_and_leaves_when_it_ends() -> None:
    calls: PendingCalls[str] = PendingCalls()
    waits = True
    with calls.register("a", lambda: waits) as first, calls.register("b", lambda: waits) as second:
        assert "a" in calls
        calls.cancel("a")
        assert (first.still_waiting(), second.still_waiting()) == (False, True)
        waits = False
        assert not second.still_waiting()
    assert "a" not in calls
    calls.cancel("a")


def test_waiting_calls_are_full_at_their_limit_alone() -> None:
    calls = WaitingCalls(1)
    with calls.waiting():
        assert calls.full
    assert not calls.full
