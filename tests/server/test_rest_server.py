"""The node's REST server over real sockets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.errors import KernelError
from k8s_rdma.wire.getpfs import encode_getpfs
from k8s_rdma.wire.report import NodeReport, decode_report, encode_report
from k8s_rdma.wire.state_socket import HEADER, MAX_BODY_BYTES, MessageKind
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


def test_documents_are_those_of_the_agents_report(tmp_path: Path) -> None:
    async def scenario() -> None:
        told = report("e.7")
        async with serving(tmp_path) as client, telling_agent(tmp_path, told):
            node = await until_generation(client, "e.7")
            assert node.headers["content-type"] == "application/json"
            assert "vfs" not in node.json()["pfs"][0]
            assert decode_report(node.content).allocations == told.allocations
            getpfs = await client.get("/getpfs")
            assert (getpfs.status_code, getpfs.content) == (200, encode_getpfs(told))
            assert getpfs.headers["content-type"] == "application/json"
            health = await client.get("/healthz")
            assert (health.status_code, health.text) == (200, "ok\nagent: answers\n")
            metrics = await client.get("/metrics")
            assert metrics.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
            assert "k8s_rdma_agent_reachable 1.0\n" in metrics.text

    run(scenario())


def test_every_document_follows_a_change_of_the_agent(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as client, telling_agent(tmp_path, report("e.1")) as agent:
            await until_generation(client, "e.1")
            bare = report("e.2", pfs=(), allocations=())
            await agent.send(bare)
            await until_generation(client, "e.2")
            assert (await client.get("/getpfs")).content == b"[]"
            assert 'k8s_rdma_allocations{node="w1"} 0' in (await client.get("/metrics")).text

    run(scenario())


def test_documents_are_unavailable_when_no_agent_was_ever_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as client:
            for path in ("/v1/node", "/getpfs"):
                answer = await until(client, path, lambda answer: "No such file" in answer.text)
                assert answer.status_code == 503
                assert "etag" not in answer.headers
                assert answer.headers["content-type"] == "application/json"
                assert answer.json() == {
                    "error": {
                        "reason": "agent_unreachable",
                        "message": "the agent has not answered since 2026-01-02T03:04:05+00:00: "
                        "state.sock: No such file or directory",
                        "since": "2026-01-02T03:04:05+00:00",
                    }
                }
            assert (await client.get("/healthz")).status_code == 200
            assert "does not answer since 2026-01-02" in (await client.get("/healthz")).text
            metrics = (await client.get("/metrics")).text
            assert "k8s_rdma_agent_reachable 0.0\n" in metrics
            assert "k8s_rdma_pf_vfs" not in metrics

    run(scenario())


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
            # What is said about the outage follows the attempts; since when it lasts does not change.
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


def test_scan_stands_in_for_the_agent_while_it_is_away(tmp_path: Path) -> None:
    seen = report("scan.1")

    async def scenario() -> None:
        async with serving(tmp_path, scan=lambda: seen) as client:
            node = await until_generation(client, "scan.1")
            assert node.status_code == 200
            assert (node.json()["ledger"], node.json()["allocations"]) == ("unavailable", [])
            assert (await client.get("/getpfs")).content == encode_getpfs(seen)
            assert "k8s_rdma_agent_reachable 0.0\n" in (await client.get("/metrics")).text
            assert "ledger is unavailable" in (await client.get("/healthz")).text
            async with telling_agent(tmp_path, report("e.1")):
                assert (await until_generation(client, "e.1")).json()["ledger"] == "ok"
            assert (await until_generation(client, "scan.1")).json()["ledger"] == "unavailable"

    run(scenario())


def test_documents_are_unavailable_when_the_scan_fails(tmp_path: Path) -> None:
    def scan() -> NodeReport:
        msg = "netlink says no"
        raise KernelError(msg)

    async def scenario() -> None:
        async with serving(tmp_path, scan=scan) as client:
            answer = await until(client, "/v1/node", lambda answer: "netlink says no" in answer.text)
            assert answer.status_code == 503
            assert "No such file or directory; and the hardware" in answer.text

    run(scenario())


def test_incomplete_scan_is_unavailable_and_never_less_hardware(tmp_path: Path) -> None:
    problems = ("PF enp4s0f0: no answer", "PF enp4s0f1: vanished")

    async def scenario() -> None:
        async with serving(tmp_path) as client, telling_agent(tmp_path, report("e.1")) as agent:
            await until_generation(client, "e.1")
            assert (await client.get("/readyz")).text == "ok\nledger: ok\n"
            await agent.send(report("e.2", unreadable=problems))
            await until(client, "/v1/node", lambda answer: answer.status_code == 503)
            for path in ("/v1/node", "/getpfs", "/readyz"):
                answer = await client.get(path, headers={"if-none-match": '"e.1", "e.2"'})
                assert answer.status_code == 503
                assert "etag" not in answer.headers
                assert answer.headers["retry-after"] == "1"
                error = answer.json()["error"]
                assert (error["reason"], error["problems"]) == ("unreadable_node", list(problems))
                assert error["message"].startswith("node w1: 2 of what it has")
            assert 'k8s_rdma_unreadable{node="w1"} 2.0\n' in (await client.get("/metrics")).text
            assert (await client.get("/healthz")).text == "ok\nagent: answers\n"
            await agent.send(report("e.3"))
            await until_generation(client, "e.3")

    run(scenario())
