"""Questions over one connection that is kept: each has its own answer, within bounds."""

from __future__ import annotations

import pytest

from extender.test_http_poller import W1, asking
from k8s_rdma.extender import http_client, http_poller

pytestmark = pytest.mark.anyio


async def test_late_answer_is_not_taken_for_the_answer_to_the_next_question():
    async with asking("w1", timeout_s=1.0) as (clock, state, states, nodes):
        await states.request_report(W1)
        nodes["w1"].answering.clear()
        clock.now = 1.0
        await states.request_report(W1)
        assert "no answer" in state.why_unreadable(W1)
        nodes["w1"].answering.set()
        clock.now = 2.0
        await states.request_report(W1)
        assert W1 in state.snapshots
        assert nodes["w1"].connections == 2


async def test_question_is_put_again_when_the_node_closed_the_connection_at_that_moment():
    async with asking("w1") as (clock, state, states, nodes):
        await states.request_report(W1)
        nodes["w1"].hang_up = True
        clock.now = 1.0
        await states.request_report(W1)
        assert W1 in state.snapshots
        assert nodes["w1"].connections == 2


async def test_question_is_not_put_again_when_the_connection_broke_in_the_answer():
    async with asking("w1") as (clock, state, states, nodes):
        await states.request_report(W1)
        nodes["w1"].raw = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"
        clock.now = 1.0
        await states.request_report(W1)
        assert "before the answer's end" in state.why_unreadable(W1)
        assert nodes["w1"].asked == 2


async def test_answer_is_cut_off_when_it_is_too_long():
    async with asking("w1") as (_, state, states, nodes):
        size = http_client.MAX_ANSWER + 1
        nodes["w1"].raw = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (size, b" " * size)
        await states.request_report(W1)
        assert "answers more than" in state.why_unreadable(W1)


async def test_answer_is_cut_off_when_its_head_does_not_end():
    async with asking("w1") as (_, state, states, nodes):
        nodes["w1"].raw = b"HTTP/1.1 200 OK\r\nX-Endless: %b" % (b" a" * http_client.MAX_ANSWER)
        await states.request_report(W1)
        assert "answers more than" in state.why_unreadable(W1)


@pytest.mark.parametrize(
    "end", [b"Content-Length: 2\r\n\r\n{}", b"no field\r\n\r\n"], ids=["whole", "broken"]
)
async def test_headers_of_an_answer_count_as_well_as_its_content(end):
    async with asking("w1") as (clock, _, states, nodes):
        nodes["w1"].raw = b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * (http_poller.BYTES_AT_ONCE // 7) + end
        for second in range(20):
            clock.now = float(second)
            await states.refresh([W1], newer_than=clock.now)
        assert nodes["w1"].asked <= 3


async def test_very_long_etag_is_not_sent_back():
    async with asking("w1") as (clock, state, states, nodes):
        node = nodes["w1"]
        node.etag = b'"%b"' % (b"9" * 300)
        for second in range(3):
            clock.now = float(second)
            await states.refresh([W1], newer_than=clock.now)
        assert (node.asked, node.conditions, list(state.snapshots)) == (3, [], [W1])


async def test_second_answer_to_a_question_is_not_taken_for_that_to_the_next_one():
    async with asking("w1") as (clock, state, states, nodes):
        nodes["w1"].twice = True
        await states.request_report(W1)
        clock.now = 1.0
        nodes["w1"].twice = False
        nodes["w1"].holds(p=1000)
        await states.request_report(W1)
        assert state.facts(W1).generation == "epoch.2"
        assert nodes["w1"].connections == 2


async def test_node_that_goes_on_in_another_protocol_is_unreadable():
    async with asking("w1") as (_, state, states, nodes):
        nodes[
            "w1"
        ].raw = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: other\r\n\r\n0"
        await states.request_report(W1)
        assert "HTTP 101" in state.why_unreadable(W1)
