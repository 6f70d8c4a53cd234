"""Recorded exchanges with kube-scheduler, replayed over a raw socket; answers as its decoder takes them."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from extender.node_server import pf, report
from extender.serving import FILTER, served
from extender.world import World, cluster
from k8s_rdma.wire.extender import MALFORMED_ANNOTATION, NOT_ENOUGH_FREE, UNREADABLE_NODE
from k8s_rdma.wire.report import NodeReport

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

RECORDINGS = sorted((Path(__file__).parents[1] / "recordings" / "extender").glob("*.json"))
NODES = ("node-1", "node-2", "node-3")
FAST = pf(mbps=100_000, vfs=8)
SCENARIOS = ("filter-full", "filter-node", "managed", "preempt-full", "preempt-node", "refusal")
"""Each with an extender of its own: in one of them a pod is nominated, which counts against later ones."""

WRITES = pytest.mark.parametrize("writes", [1, 2])
SENTENCES = (UNREADABLE_NODE, NOT_ENOUGH_FREE, MALFORMED_ANNOTATION)


class GoFilterResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="pascal"):
    """`ExtenderFilterResult`: maps of strings, a `NodeList`, no key that the type does not have."""

    nodes: GoNodeList | None
    node_names: list[str] | None
    failed_nodes: dict[str, str]
    failed_and_unresolvable_nodes: dict[str, str]
    error: str


class GoNodeList(msgspec.Struct, frozen=True):
    items: list[msgspec.Raw]
    metadata: dict[str, str]


@dataclass
class Exchange:
    """A recording. It was made readable: its body is that of the wire without white space."""

    name: str
    request_line: str
    headers: list[list[str]]
    body: dict[str, Any]
    reply_status: int
    reply: Any

    def sent(self) -> bytes:
        return compact(self.body)

    def head(self) -> bytes:
        """Return the head, with the right length if an identifier in the body was replaced."""
        length = str(len(self.sent()))
        fields = [[name, length if name == "Content-Length" else value] for name, value in self.headers]
        lines = [self.request_line, *(f"{name}: {value}" for name, value in fields)]
        return "".join(f"{line}\r\n" for line in [*lines, ""]).encode()


def recorded(verb: str, prefix: str = "") -> list[Exchange]:
    found = [path for path in RECORDINGS if path.stem.endswith(f"-{verb}") and path.stem.startswith(prefix)]
    assert found
    return [Exchange(path.stem, **json.loads(path.read_text())) for path in found]


def compact(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


@dataclass
class Scheduler:
    """A client as Go's: its connection is kept alive until an answer says that it ends."""

    port: int
    reader: asyncio.StreamReader | None = None
    writer: asyncio.StreamWriter | None = None

    async def connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.reader is None or self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self.reader, self.writer

    async def send(self, head: bytes, body: bytes, *, writes: int = 1) -> tuple[int, bytes]:
        reader, writer = await self.connected()
        if writes == 1:
            writer.write(head + body)
        else:
            writer.write(head)
            await writer.drain()
            await asyncio.sleep(0.01)  # so that it comes alone, as with Nagle's algorithm
            writer.write(body)
        answered = await reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"(?i)content-length: (\d+)", answered)[1])
        assert b"transfer-encoding" not in answered.lower()
        answer = await reader.readexactly(length)
        if b"\r\nconnection: close\r\n" in answered.lower():
            self.close()
        return int(answered.split()[1]), answer

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None

    async def replay(self, exchange: Exchange, *, writes: int = 1) -> bytes:
        status, body = await self.send(exchange.head(), exchange.sent(), writes=writes)
        assert status == exchange.reply_status == 200, (exchange.name, body)
        return body


@asynccontextmanager
async def scheduler(port: int) -> AsyncIterator[Scheduler]:
    client = Scheduler(port)
    try:
        yield client
    finally:
        client.close()


@asynccontextmanager
async def recorded_world() -> AsyncIterator[tuple[World, Scheduler]]:
    """Several recordings one after the other: no pod of the one before is still on the way to a bind."""
    async with cluster(*NODES) as c, served(c, assume_s=1e-9) as s:
        await s.ready()
        async with scheduler(s.port) as client:
            yield c, client


def arrange(c: World, exchange: Exchange) -> None:
    """Arrange nodes that are refused for the same reasons: too much taken, or no PFs."""
    generation = max(int(node.report.generation.partition(".")[2]) for node in c.nodes.values()) + 1
    for name, node in c.nodes.items():
        taken = {"other": 90_000} if name in exchange.reply["FailedNodes"] else {}
        node.report = report(name, FAST, generation=generation, held=taken)
        if name in exchange.reply["FailedAndUnresolvableNodes"]:
            node.report = NodeReport(node=name, generation=f"e.{generation}", ledger="ok", pfs=())


@WRITES
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_recorded_filters_get_the_recorded_answers_byte_for_byte_but_for_the_words_of_refusals(
    scenario, writes
):
    async with recorded_world() as (c, client):
        for exchange in recorded("filter", scenario):
            arrange(c, exchange)
            answer = await client.replay(exchange, writes=writes)
            told = msgspec.json.decode(answer, type=GoFilterResult)
            refused = {
                "FailedNodes": told.failed_nodes,
                "FailedAndUnresolvableNodes": told.failed_and_unresolvable_nodes,
            }
            for key, words in refused.items():
                assert set(words) == set(exchange.reply[key]), exchange.name
                assert all(text.startswith(SENTENCES) for text in words.values())
            expected = {**exchange.reply, **refused}
            assert answer == compact(expected), exchange.name


@WRITES
@pytest.mark.parametrize("scenario", ["filter-full", "preempt-full", "refusal"])
async def test_recorded_node_objects_come_back_as_the_very_bytes_that_were_sent(scenario, writes):
    async with recorded_world() as (c, client):
        for exchange in recorded("filter", scenario):
            arrange(c, exchange)
            answer = msgspec.json.decode(await client.replay(exchange, writes=writes), type=GoFilterResult)
            back = {json.loads(bytes(raw))["metadata"]["name"]: bytes(raw) for raw in answer.nodes.items}
            sent = {node["metadata"]["name"]: compact(node) for node in exchange.body["Nodes"]["items"]}
            assert back == {name: sent[name] for name in back}
            assert len(back) == len(exchange.reply["Nodes"]["items"])


async def test_every_recording_is_of_a_scenario():
    assert all(path.stem.startswith(SCENARIOS) for path in RECORDINGS)


@WRITES
async def test_recorded_prioritizes_get_an_integer_for_every_node_in_order(writes):
    async with recorded_world() as (c, client):
        for node in c.nodes.values():
            node.report = report(node.name, FAST, generation=2)
        for exchange in recorded("prioritize"):
            answer = await client.replay(exchange, writes=writes)
            hosts = [entry["Host"] for entry in exchange.reply]
            one = r'\{"Host":"([^"]+)","Score":(?:10|[0-9])\}'
            assert re.fullmatch(rf"\[{','.join([one] * len(hosts))}\]".encode(), answer), answer
            assert re.findall(rb'"Host":"([^"]+)"', answer) == [host.encode() for host in hosts]


@WRITES
async def test_recorded_binds_get_the_recorded_answers_byte_for_byte(writes):
    async with recorded_world() as (c, client):
        for exchange in recorded("bind"):
            pod = await c.create_pod(exchange.body["PodName"], 100)
            exchange.body["PodUID"] = pod["metadata"]["uid"]
            assert len(exchange.sent()) == int(dict(exchange.headers)["Content-Length"])
            assert await client.replay(exchange, writes=writes) == compact(exchange.reply), exchange.name
            assert await c.node_of(exchange.body["PodName"]) == exchange.body["Node"]
            await c.delete_pod(exchange.body["PodName"])


@WRITES
async def test_recorded_preemption_gets_the_recorded_answer_when_its_victims_are_in_the_way(writes):
    async with recorded_world() as (c, client):
        [exchange] = recorded("preempt", "preempt-full")
        for name, victims in exchange.body["NodeNameToVictims"].items():
            [victim] = victims["Pods"]
            held = {victim["metadata"]["uid"]: 90_000}
            c.nodes[name].report = report(name, FAST, generation=2, held=held)
        assert await client.replay(exchange, writes=writes) == compact(exchange.reply)


ODD = [
    b'{"metadata":{"name":"node-1"},"n":123456789012345678901234567890,"f":1.0E+2,"z":-0.0}',
    b'{ "metadata" : {  "name":"node-2"  } ,\t"text":"\\u00e9\\ud83d\\ude00\\/ \xc3\xa9", "empty":{ } }',
    b'{"metadata":{"labels":{"a":"1","a":"2"},"name":"node-\\u0033"},"deep":'
    + b"[" * 200
    + b"]" * 200
    + b"}",
]


async def test_odd_but_valid_node_objects_come_back_as_they_came():
    async with recorded_world() as (c, client):
        pod = compact(await c.create_pod("p", 1))
        body = b'{"Pod":%b, "Nodes":{"metadata":{},"items":[ %b ]},"NodeNames":null}' % (
            pod,
            b" , ".join(ODD),
        )
        head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (FILTER.encode(), len(body))
        status, answer = await client.send(head, body)
        assert status == 200
        told = msgspec.json.decode(answer, type=GoFilterResult)
        assert [bytes(raw) for raw in told.nodes.items] == ODD
        assert answer == (
            b'{"Nodes":{"metadata":{},"items":[%b]},"NodeNames":null,"FailedNodes":{},'
            b'"FailedAndUnresolvableNodes":{},"Error":""}' % b",".join(ODD)
        )


async def test_requests_that_come_together_end_their_connection():
    """kube-scheduler (Go's net/http) never sends one before the answer to that before."""
    async with recorded_world() as (c, client):
        for node in c.nodes.values():
            node.report = report(node.name, FAST, generation=2)
        several = recorded("filter", "filter-node-names")
        reader, writer = await client.connected()
        writer.write(b"".join(each.head() + each.sent() for each in several))
        assert await reader.read() == b""
