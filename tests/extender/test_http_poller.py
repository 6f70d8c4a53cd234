"""How nodes are asked: once for everyone, never twice at a time, and each failure reported by its kind."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from extender.node_server import node_servers
from extender.world import until
from k8s_rdma.core.types import NodeName
from k8s_rdma.extender import http_poller
from k8s_rdma.extender.http_poller import HttpPoller, NodePollConfig
from k8s_rdma.extender.node_cache import ClusterState

pytestmark = pytest.mark.anyio

W1, W2 = NodeName("w1"), NodeName("w2")


class Clock:
    """Time that passes only by the test."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def asking(*names: str, **how: float):
    clock, state = Clock(), ClusterState()
    async with asyncio.timeout(120), node_servers(*names) as (port, nodes):
        how = {"timeout_s": 5.0, **how}
        async with HttpPoller(state, NodePollConfig(port=port, **how), clock) as states:
            for node in nodes.values():
                states.learn(NodeName(node.name), (node.address,))
            yield clock, state, states, nodes


async def test_node_is_polled_once_for_all_simultaneous_requests():
    async with asking("w1") as (_, state, states, nodes):
        nodes["w1"].answering.clear()
        waiting = [asyncio.create_task(states.refresh([W1], newer_than=0.0)) for _ in range(5)]
        waiting.append(asyncio.create_task(states.request_report(W1)))
        await nodes["w1"].heard.wait()
        nodes["w1"].answering.set()
        await asyncio.gather(*waiting)
        assert nodes["w1"].asked == 1
        assert W1 in state.snapshots


async def test_state_is_not_requested_again_while_it_is_recent_enough():
    async with asking("w1") as (clock, _, states, nodes):
        await states.refresh([W1], newer_than=-1.0)
        clock.now = 1.0
        await states.refresh([W1], newer_than=0.0)
        assert nodes["w1"].asked == 1
        await states.refresh([W1], newer_than=0.5)
        assert nodes["w1"].asked == 2


async def test_earlier_poll_does_not_satisfy_a_request_for_a_later_report():
    async with asking("w1") as (clock, _, states, nodes):
        nodes["w1"].answering.clear()
        early = asyncio.create_task(states.refresh([W1], newer_than=0.0))
        await nodes["w1"].heard.wait()
        clock.now = 1.0
        late = asyncio.create_task(states.request_report(W1))
        nodes["w1"].answering.set()
        await asyncio.gather(early, late)
        assert nodes["w1"].asked == 2


async def test_caller_that_gives_up_leaves_the_poll_to_the_others():
    async with asking("w1") as (_, state, states, nodes):
        nodes["w1"].answering.clear()
        first, second = (asyncio.create_task(states.refresh([W1], newer_than=0.0)) for _ in range(2))
        await nodes["w1"].heard.wait()
        first.cancel()
        nodes["w1"].answering.set()
        await second
        assert nodes["w1"].asked == 1
        assert W1 in state.snapshots


async def test_silent_node_is_given_up_alone_and_left_alone_until_its_retry_time():
    async with asking("w1", "w2", timeout_s=1.0, retry_s=10.0) as (clock, state, states, nodes):
        nodes["w1"].answering.clear()
        await states.refresh([W1, W2], newer_than=0.0)
        assert set(state.snapshots) == {W2}
        assert "no answer in 1 s" in state.why_unreadable(W1)
        clock.now = 10.0
        await states.refresh([W1, W2], newer_than=9.0)
        assert (nodes["w1"].asked, nodes["w2"].asked) == (1, 2)
        nodes["w1"].answering.set()
        clock.now = 11.0
        await states.refresh([W1], newer_than=10.5)
        assert set(state.snapshots) == {W1, W2}


async def test_node_that_takes_long_to_answer_is_left_alone_for_several_times_as_long():
    """Every filter waits for the slowest node; one that answers late enough would keep all pods waiting."""
    async with asking("w1") as (clock, state, states, nodes):
        waits = []
        for _ in range(50):
            nodes["w1"].answering.clear()
            began, asked = clock.now, nodes["w1"].asked
            refreshing = asyncio.create_task(states.refresh([W1], newer_than=clock.now - 1.0))
            await until(lambda asked=asked, task=refreshing: task.done() or nodes["w1"].asked > asked)
            clock.now += 0.0 if refreshing.done() else 1.4
            nodes["w1"].answering.set()
            await refreshing
            waits.append(clock.now - began)
            clock.now += 0.2
        assert W1 in state.snapshots
        assert 0 < sum(waits) < 0.25 * clock.now


async def test_node_that_refused_the_connection_is_polled_again_at_once():
    async with asking("w1", retry_s=1000.0) as (clock, state, states, nodes):
        states.learn(W1, ("127.0.9.9",))
        await states.refresh([W1], newer_than=0.0)
        assert "127.0.9.9" in state.why_unreadable(W1)
        clock.now = 1.0
        states.learn(W1, ("127.0.9.9", nodes["w1"].address))
        await states.refresh([W1], newer_than=1.0)
        assert W1 in state.snapshots


async def test_whole_report_is_requested_after_a_failure_in_between():
    async with asking("w1") as (clock, state, states, nodes):
        await states.request_report(W1)
        nodes["w1"].raw = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
        clock.now = 1.0
        await states.request_report(W1)
        assert W1 not in state.snapshots
        nodes["w1"].raw = None
        clock.now = 2.0
        await states.request_report(W1)
        assert W1 in state.snapshots
        assert nodes["w1"].conditions == []


async def test_address_that_answered_is_tried_first_from_then_on():
    async with asking("w1", "w2") as (clock, state, states, nodes):
        nodes["w2"].raw = b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"
        states.learn(W1, (nodes["w2"].address, nodes["w1"].address))
        for clock.now in (1.0, 2.0, 3.0):
            await states.request_report(W1)
        assert W1 in state.snapshots
        assert (nodes["w2"].asked, nodes["w1"].asked) == (1, 3)


async def test_node_without_addresses_is_unreadable_for_that_reason():
    async with asking() as (_, state, states, _nodes):
        states.learn(W1, ())
        await states.refresh([W1], newer_than=0.0)
        assert "no InternalIP" in state.why_unreadable(W1)


async def test_unknown_node_is_not_polled():
    async with asking() as (_, state, states, _nodes):
        await states.refresh([W1], newer_than=0.0)
        await states.request_report(W1)
        assert W1 not in state.snapshots


async def test_suggested_addresses_do_not_replace_those_the_api_server_gave():
    async with asking("w1") as (_, state, states, nodes):
        states.suggest(W1, lambda: ("127.0.9.9",))
        states.suggest(W2, lambda: (nodes["w1"].address,))
        await states.refresh([W1, W2], newer_than=0.0)
        assert W1 in state.snapshots
        assert "answers for node 'w1'" in state.why_unreadable(W2)


async def test_answer_for_a_node_that_was_deleted_meanwhile_is_dropped():
    async with asking("w1") as (_, state, states, nodes):
        nodes["w1"].answering.clear()
        question = asyncio.create_task(states.refresh([W1], newer_than=0.0))
        await nodes["w1"].heard.wait()
        states.forget(W1)
        await question
        assert W1 not in state.snapshots
        assert W1 not in state.unreadable


async def test_limited_number_of_nodes_is_polled_at_once_and_all_are_answered():
    names = [f"w{i}" for i in range(6)]
    async with asking(*names, parallel=2) as (_, state, states, nodes):
        for node in nodes.values():
            node.answering.clear()
        everyone = asyncio.create_task(states.refresh([NodeName(n) for n in names], newer_than=0.0))
        await until(lambda: sum(node.asked for node in nodes.values()) == 2)
        for node in nodes.values():
            node.answering.set()
        await everyone
        assert len(state.snapshots) == 6


async def test_node_is_left_alone_for_as_long_as_its_answers_are_more_than_it_may_send():
    async with asking("w1") as (clock, state, states, nodes):
        much = b'{"x":[' + b"[]," * (http_poller.BYTES_AT_ONCE // 3 - 100) + b"[]]}"
        nodes["w1"].raw = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(much), much)
        asked = []
        for second in range(40):
            clock.now = float(second)
            await states.refresh([W1], newer_than=clock.now)
            asked.append(nodes["w1"].asked)
        assert asked[-1] == 4
        assert "node report" in state.why_unreadable(W1)
        nodes["w1"].raw = None
        states.learn(W1, (nodes["w1"].address, "127.0.9.9"))
        await states.refresh([W1], newer_than=clock.now)
        assert nodes["w1"].asked == 4
        clock.now += 20.0
        await states.refresh([W1], newer_than=clock.now)
        assert W1 in state.snapshots


async def test_node_with_many_addresses_is_polled_only_at_the_first_ones():
    async with asking() as (_, state, states, _):
        addresses = tuple(f"127.0.9.{at}" for at in range(1, 100))
        states.learn(W1, addresses)
        await states.refresh([W1], newer_than=0.0)
        assert [each in state.why_unreadable(W1) for each in addresses[:6]] == [True] * 4 + [False] * 2
        assert states.addresses(W1) == addresses[:4]
        states.forget(W1)
        assert states.addresses(W1) == ()


async def test_questions_under_way_end_when_the_asking_ends():
    async with node_servers("w1") as (port, nodes):
        nodes["w1"].answering.clear()
        async with HttpPoller(ClusterState(), NodePollConfig(port=port), Clock()) as states:
            states.learn(W1, (nodes["w1"].address,))
            question = asyncio.create_task(states.refresh([W1], newer_than=0.0))
            await nodes["w1"].heard.wait()
        question.cancel()
        nodes["w1"].answering.set()
