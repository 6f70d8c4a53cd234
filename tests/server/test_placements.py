"""Placements on their way from the extender through the server to the agent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.http_server.asgi import Access
from k8s_rdma.server.agent_link import MAX_DELIVERIES, MAX_DELIVERIES_OF_CLIENT, Deliveries
from k8s_rdma.wire.state_socket import (
    MAX_PLACEMENT_BYTES,
    MessageKind,
    PlacementVerdict,
    encode_message,
    encode_verdict,
)
from server.serving import report, run, serving, telling_agent, until_generation

if TYPE_CHECKING:
    from pathlib import Path

PATH = "/v1/placements"


def verdict(**fields: str) -> bytes:
    return encode_message(MessageKind.VERDICT, encode_verdict(PlacementVerdict(**fields)))


def test_placement_goes_to_the_agent_and_its_verdict_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            serving(tmp_path) as client,
            telling_agent(tmp_path, report(takes_placements=True)) as agent,
        ):
            await until_generation(client, "e.1")
            first = asyncio.ensure_future(client.post(PATH, content=b"one"))
            assert await agent.placement() == b"one"
            await agent.send_bytes(verdict())
            assert (await first).status_code == 204
            second = asyncio.ensure_future(client.post(PATH, content=b"two"))
            assert await agent.placement() == b"two"
            await agent.send_bytes(verdict(reason="stale_placement", message="of another pod"))
            answer = await second
            assert answer.status_code == 409
            assert answer.json() == {"error": {"reason": "stale_placement", "message": "of another pod"}}

    run(scenario())


def test_placement_is_refused_if_the_agent_takes_none(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as client, telling_agent(tmp_path, report()):
            await until_generation(client, "e.1")
            answer = await client.post(PATH, content=b"one")
            assert answer.status_code == 409
            assert "takes no placements from elsewhere" in answer.json()["error"]["message"]

    run(scenario())


def test_placement_is_not_delivered_without_an_agent_and_ends_with_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as client:
            answer = await client.post(PATH, content=b"one")
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            async with telling_agent(tmp_path, report(takes_placements=True)) as agent:
                await until_generation(client, "e.1")
                sent = asyncio.ensure_future(client.post(PATH, content=b"one"))
                assert await agent.placement() == b"one"
                agent.hang_up()
                assert (await sent).status_code == 503

    run(scenario())


def test_method_and_length_of_placements_are_bounded(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as client:
            answer = await client.get(PATH)
            assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
            assert (await client.post("/v1/node", content=b"{}")).status_code == 405
            answer = await client.post(PATH, content=b"x" * (MAX_PLACEMENT_BYTES + 1))
            assert answer.status_code == 413

    run(scenario())


def test_placements_need_the_access_of_their_path(tmp_path: Path) -> None:
    async def scenario() -> None:
        access = Access(open_paths=frozenset({"/v1/node"}))
        async with serving(tmp_path, access=access) as client:
            assert (await client.post(PATH, content=b"one")).status_code == 403

    run(scenario())


@pytest.mark.anyio
async def test_verdicts_go_to_the_placements_that_they_are_about_also_after_a_time_out() -> None:
    sent: list[bytes] = []
    deliveries = Deliveries(timeout_s=0.01)
    deliveries.connected(sent.append)
    deliveries.takes_placements = True
    assert await deliveries.deliver(b"slow", client="c") is None
    next_one = asyncio.ensure_future(deliveries.deliver(b"next", client="c"))
    await asyncio.sleep(0)
    deliveries.judged(PlacementVerdict(reason="r", message="on the slow one"))
    deliveries.judged(PlacementVerdict())
    assert await next_one == PlacementVerdict()
    deliveries.judged(PlacementVerdict())  # nobody asked
    assert len(sent) == 2


@pytest.mark.anyio
async def test_no_more_placements_wait_for_the_agent_than_fit() -> None:
    sent: list[bytes] = []
    deliveries = Deliveries(timeout_s=0.001)
    deliveries.connected(sent.append)
    deliveries.takes_placements = True
    for _ in range(MAX_DELIVERIES_OF_CLIENT + 5):
        assert await deliveries.deliver(b"x", client="greedy") is None
    assert len(sent) == MAX_DELIVERIES_OF_CLIENT
    for _ in range(MAX_DELIVERIES):
        assert await deliveries.deliver(b"y", client="another") is None
    assert len(sent) == MAX_DELIVERIES, "another client finds room"


@pytest.mark.anyio
async def test_client_whose_placements_were_answered_may_send_others() -> None:
    sent: list[bytes] = []
    deliveries = Deliveries(timeout_s=60)
    deliveries.connected(sent.append)
    deliveries.takes_placements = True
    for _ in range(3):
        waiting = [
            asyncio.ensure_future(deliveries.deliver(b"x", client="c"))
            for _ in range(MAX_DELIVERIES_OF_CLIENT)
        ]
        await asyncio.sleep(0)
        for _ in waiting:
            deliveries.judged(PlacementVerdict())
        assert [await each for each in waiting] == [PlacementVerdict()] * MAX_DELIVERIES_OF_CLIENT
    deliveries.disconnected()
    assert len(sent) == 3 * MAX_DELIVERIES_OF_CLIENT
