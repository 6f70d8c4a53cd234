"""A reader of the agent's `state.sock`: the messages that it takes, and how it comes back to an agent."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from deviceplugin.played_agent import PlayedAgent, report
from k8s_rdma.state_reader import FIRST_RETRY_S, LAST_RETRY_S, AgentLink
from k8s_rdma.wire.state_socket import (
    HEADER,
    CapCounts,
    Counters,
    MessageKind,
    PlacementVerdict,
    ScanCounts,
    encode_counters,
    encode_message,
    encode_verdict,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from k8s_rdma.wire.report import NodeReport

pytestmark = pytest.mark.anyio

DEADLINE_S = 120
COUNTERS = Counters(
    node="w1",
    age_s=None,
    failed_samples=0,
    scans=ScanCounts(total=1, failed=0, seconds=0.5),
    caps=CapCounts(restored=1),
)


class Reader(AgentLink):
    """Notes events, and waits after an attempt until the test lets it go on."""

    def __init__(self, socket: Path, *, first_report_timeout_s: float = DEADLINE_S) -> None:
        super().__init__(socket, pause=self.paused, first_report_timeout_s=first_report_timeout_s)
        self.events: asyncio.Queue[object] = asyncio.Queue()
        self.going_on = asyncio.Semaphore(0)
        self.send: Callable[[bytes], None] | None = None

    async def paused(self, seconds: float) -> None:
        self.events.put_nowait(seconds)
        await self.going_on.acquire()

    def reported(self, report: NodeReport) -> None:
        self.events.put_nowait(report)

    def connected(self, send: Callable[[bytes], None]) -> None:
        self.send = send
        self.events.put_nowait("connected")

    def counted(self, counters: Counters) -> None:
        self.events.put_nowait(counters)

    def judged(self, verdict: PlacementVerdict) -> None:
        self.events.put_nowait(verdict)

    def disconnected(self) -> None:
        self.events.put_nowait("disconnected")

    async def away(self, why: str) -> None:
        self.events.put_nowait(why)

    async def next(self, number: int) -> list[object]:
        """Return the next events, without earlier ones."""
        async with asyncio.timeout(DEADLINE_S):
            return [await self.events.get() for _ in range(number)]


@asynccontextmanager
async def reading(reader: Reader) -> AsyncIterator[None]:
    task = asyncio.create_task(reader.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def sending(socket: Path, *messages: bytes, then_hangs: bool = False) -> AsyncIterator[list[bytes]]:
    """An agent that sends these bytes, and the bytes it got until the reader ended the connection."""
    got: list[bytes] = []

    async def talk(incoming: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for message in messages:
            writer.write(message)
        if then_hangs:
            got.append(await incoming.read())
        writer.close()

    async with await asyncio.start_unix_server(talk, socket):
        yield got


def framed(kind: MessageKind, body: bytes) -> bytes:
    return encode_message(kind, body)


async def test_reader_takes_the_reports_of_an_agent_and_is_connected_after_the_first(tmp_path: Path):
    reader = Reader(tmp_path / "state.sock")
    async with PlayedAgent(tmp_path / "state.sock") as agent, reading(reader):
        assert await reader.next(2) == [report(), "connected"]
        agent.tell(report("mlx5_1"))
        assert await reader.next(1) == [report("mlx5_1")]


async def test_reader_takes_counters_and_verdicts_and_sends_to_the_agent(tmp_path: Path):
    reader = Reader(tmp_path / "state.sock")
    verdict = PlacementVerdict(reason="conflict", message="no")
    messages = (
        framed(MessageKind.COUNTERS, encode_counters(COUNTERS)),
        framed(MessageKind.VERDICT, encode_verdict(verdict)),
    )
    async with sending(tmp_path / "state.sock", *messages, then_hangs=True) as got:
        async with reading(reader):
            assert await reader.next(3) == [COUNTERS, "connected", verdict]
            assert reader.send is not None
            reader.send(framed(MessageKind.SAMPLE, b""))
        assert await reader.next(1) == ["disconnected"]
        async with asyncio.timeout(DEADLINE_S):
            while not got:  # noqa: ASYNC110  there is no event for it
                await asyncio.sleep(0)
    assert got == [framed(MessageKind.SAMPLE, b"")]


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"", "it closed the connection"),
        (HEADER.pack(9, 0), "state.sock: message of unknown kind 9"),
        (HEADER.pack(MessageKind.REPORT, 2) + b"{}", "missing required field `node`"),
        (HEADER.pack(MessageKind.REPORT, 20) + b"{}", "it closed the connection"),
    ],
    ids=["nothing", "no message", "no report", "half a report"],
)
async def test_attempt_ends_with_its_reason_and_the_next_one_follows_a_pause(
    tmp_path: Path, sent: bytes, why: str
):
    reader = Reader(tmp_path / "state.sock")
    async with sending(tmp_path / "state.sock", sent), reading(reader):
        disconnected, told, pause_s = await reader.next(3)
        assert (disconnected, why in str(told), pause_s) == ("disconnected", True, FIRST_RETRY_S)
        reader.going_on.release()
        assert await reader.next(3) == ["disconnected", told, 2 * FIRST_RETRY_S]


async def test_agent_that_sends_no_report_in_time_is_away(tmp_path: Path):
    reader = Reader(tmp_path / "state.sock", first_report_timeout_s=0.01)
    async with sending(tmp_path / "state.sock", then_hangs=True), reading(reader):
        assert await reader.next(2) == ["disconnected", "it accepts connections but sends no report"]


async def test_pauses_grow_while_there_is_no_agent_and_begin_anew_after_one(tmp_path: Path):
    reader = Reader(tmp_path / "state.sock")
    pauses: list[object] = []
    async with reading(reader):
        while not pauses or pauses[-1] != LAST_RETRY_S:
            told, pause_s = await reader.next(2)
            assert told == "state.sock: No such file or directory"
            pauses.append(pause_s)
            if pause_s != LAST_RETRY_S:
                reader.going_on.release()
        assert pauses[:3] == [FIRST_RETRY_S, 2 * FIRST_RETRY_S, 4 * FIRST_RETRY_S]
        async with PlayedAgent(tmp_path / "state.sock"):
            reader.going_on.release()
            assert await reader.next(2) == [report(), "connected"]
        assert await reader.next(3) == ["disconnected", "it closed the connection", FIRST_RETRY_S]
