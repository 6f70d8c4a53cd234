"""The link to the agent: placements go to it, and its state is shown while it is there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.http_server.asgi import Access
from k8s_rdma.server.agent_link import MAX_DELIVERIES, MAX_DELIVERIES_OF_CLIENT, Deliveries
from k8s_rdma.wire.report import encode_report
from k8s_rdma.wire.state_socket import (
    HEADER,
    MAX_BODY_BYTES,
    MAX_PLACEMENT_BYTES,
    MessageKind,
    PlacementVerdict,
    encode_message,
    encode_verdict,
)
from server.serving import (
    THEN,
    framed,
    played_agent,
    report,
    run,
    serving,
    telling_agent,
    until,
    until_generation,
)

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
    deliveries.judged(PlacementVerdict())  # without a request
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


def test_no_old_state_is_shown_when_the_agent_went_away(tmp_path: Path) -> None:
    times = iter([THEN, THEN, THEN.replace(hour=9)])

    async def scenario() -> None:
        async with serving(tmp_path, clock=lambda: next(times)) as client:
            async with telling_agent(tmp_path, report("e.1")) as agent:
                await until_generation(client, "e.1")
                agent.hang_up()
                lost = await until(client, "/v1/node", lambda answer: answer.status_code == 503)
                assert "it closed the connection" in lost.json()["error"]["message"]
                assert lost.json()["error"]["since"] == "2026-01-02T09:04:05+00:00"
            headers = {"if-none-match": '"e.1"'}
            assert (await client.get("/v1/node", headers=headers)).status_code == 503
            assert (await client.get("/getpfs")).status_code == 503
            # The message about the outage follows the attempts; since when it lasts does not change.
            later = await until(client, "/v1/node", lambda answer: "closed" not in answer.text)
            assert later.json()["error"]["since"] == "2026-01-02T09:04:05+00:00"

    run(scenario())


def test_documents_come_back_when_the_agent_does(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as client:
            for generation in ("a.1", "b.1"):
                await until(client, "/getpfs", lambda answer: answer.status_code == 503)
                async with telling_agent(tmp_path, report(generation)):
                    await until_generation(client, generation)

    run(scenario())


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (framed(b"{}"), "missing required field `node`"),
        (framed(b"\xff"), "node report: "),
        (framed(b'{"node":"w1","generation":"a\\"b","ledger":"ok","pfs":[]}'), "$.generation"),
        (HEADER.pack(MessageKind.REPORT, MAX_BODY_BYTES + 1), f"at most {MAX_BODY_BYTES}"),
        (HEADER.pack(MessageKind.REPORT, 0), "ends too early"),
        (HEADER.pack(MessageKind.COUNTERS, 2) + b"{}", "counters: "),
        (HEADER.pack(9, 0), "unknown kind 9"),
    ],
)
def test_state_is_unknown_when_the_agent_sends_no_report(tmp_path: Path, sent: bytes, why: str) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as client, telling_agent(tmp_path, report("e.1")) as agent:
            await until_generation(client, "e.1")
            await agent.send_bytes(sent)
            lost = await until(client, "/v1/node", lambda answer: answer.status_code == 503)
            assert why in lost.json()["error"]["message"]
            await agent.accept()  # it is asked again
            await agent.send(report("e.2"))
            await until_generation(client, "e.2")

    run(scenario())


def test_state_is_unknown_when_a_report_is_cut_short(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as client, telling_agent(tmp_path, report("e.1")) as agent:
            await until_generation(client, "e.1")
            await agent.send_bytes(framed(encode_report(report("e.2")))[:-1])
            agent.hang_up()
            await until(client, "/v1/node", lambda answer: answer.status_code == 503)

    run(scenario())


def test_agent_is_called_again_when_it_is_silent(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with played_agent(tmp_path) as agent, serving(tmp_path, first_report_timeout_s=0.01) as client:
            await agent.accept()
            silent = await until(client, "/v1/node", lambda answer: "sends no report" in answer.text)
            assert silent.status_code == 503
            await agent.accept()

    run(scenario())


def test_agent_is_called_less_and_less_often_while_it_is_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        pauses: asyncio.Queue[float] = asyncio.Queue()
        over = asyncio.Semaphore(0)

        async def pause(seconds: float) -> None:
            pauses.put_nowait(seconds)
            await over.acquire()

        async def next_pause() -> float:
            over.release()
            return await pauses.get()

        async with serving(tmp_path, pause=pause) as client:
            asked = [await pauses.get()] + [await next_pause() for _ in range(7)]
            assert asked == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
            async with played_agent(tmp_path) as agent:
                over.release()
                await agent.accept()
                await agent.send(report("e.1"))
                await until_generation(client, "e.1")
                agent.hang_up()
                assert await pauses.get() == 0.1
                over.release()
                await agent.accept()
                agent.hang_up()  # before it reports, for which it would be waited
                assert await pauses.get() == 0.2

    run(scenario())
