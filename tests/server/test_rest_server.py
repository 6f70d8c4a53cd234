"""The node's REST server over real sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.errors import KernelError
from k8s_rdma.wire.getpfs import encode_getpfs
from k8s_rdma.wire.report import NodeReport, decode_report
from server.serving import report, run, serving, telling_agent, until, until_generation

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
