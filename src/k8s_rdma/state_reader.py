"""The readers' end of the agent's `state.sock` (`wire.state_socket`)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NoReturn

import structlog

from k8s_rdma.core.backoff import Backoff
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.report import NodeReport, decode_report
from k8s_rdma.wire.state_socket import (
    HEADER,
    Counters,
    MessageKind,
    PlacementVerdict,
    decode_counters,
    decode_header,
    decode_verdict,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path


_log = structlog.get_logger()

FIRST_REPORT_TIMEOUT_S = 10.0
"""Time for the first report: an agent sends one on connect, and afterwards only on changes."""

FIRST_RETRY_S = 0.1
LAST_RETRY_S = 5.0


class AgentLink:
    """A connection to the agent, opened again whenever it ends; subclasses take its messages."""

    def __init__(
        self,
        socket: Path,
        *,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        first_report_timeout_s: float = FIRST_REPORT_TIMEOUT_S,
    ) -> None:
        self._socket = socket
        self._pause = pause
        self._first_report_timeout_s = first_report_timeout_s
        self._is_connected = False

    async def run(self) -> NoReturn:
        """Follow the agent, again and again, until cancelled."""
        backoff = Backoff(FIRST_RETRY_S, LAST_RETRY_S)
        while True:
            try:
                await self._follow()
            except (OSError, EOFError, MalformedError) as error:
                why = _why(error)
                if self._is_connected:
                    backoff.reset()
                    _log.warning("agent_lost", socket=str(self._socket), why=why)
                await self.away(why)
            await self._pause(backoff.fail())

    def reported(self, report: NodeReport) -> None:
        """Take the node's state."""
        raise NotImplementedError

    def connected(self, send: Callable[[bytes], None]) -> None:
        """Note that the first report has come; `send` sends the agent a message."""

    def counted(self, counters: Counters) -> None:
        """Take the answer to a SAMPLE."""

    def judged(self, verdict: PlacementVerdict) -> None:
        """Take the answer to a PLACEMENT."""

    def disconnected(self) -> None:
        """Note that no answer will come any more; also after an attempt that never was `connected`."""

    async def away(self, why: str) -> None:
        """Deal with the end of an attempt to follow the agent; the next one begins after this returns."""

    async def _follow(self) -> NoReturn:
        """Follow one connection to its end."""
        self._is_connected = False
        incoming, writer = await asyncio.open_unix_connection(self._socket)
        try:
            async with asyncio.timeout(self._first_report_timeout_s):
                await self._receive(incoming)
            self._is_connected = True
            _log.info("agent_connected", socket=str(self._socket))
            self.connected(writer.write)
            while True:
                await self._receive(incoming)
        finally:
            self.disconnected()
            writer.close()

    async def _receive(self, incoming: asyncio.StreamReader) -> None:
        kind, length = decode_header(await incoming.readexactly(HEADER.size))
        body = await incoming.readexactly(length)
        if kind is MessageKind.COUNTERS:
            self.counted(decode_counters(body))
        elif kind is MessageKind.VERDICT:
            self.judged(decode_verdict(body))
        else:
            self.reported(decode_report(body))


def _why(error: OSError | EOFError | MalformedError) -> str:
    match error:
        case MalformedError():
            return error.message
        case TimeoutError():
            return "it accepts connections but sends no report"
        case OSError():
            return f"state.sock: {error.strerror or error}"
        case _:
            return "it closed the connection"
