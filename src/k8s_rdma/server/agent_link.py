"""Follows the agent's `state.sock`, and keeps the answers to the state of the node it last told."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog
from msgspec.structs import replace

from k8s_rdma.errors import K8sRdmaError, MalformedError
from k8s_rdma.server.answers import outage_answers, report_answers
from k8s_rdma.server.shown import Shown
from k8s_rdma.server.traffic import Traffic
from k8s_rdma.wire.rest import decode_report
from k8s_rdma.wire.state import HEADER, Kind, decode_counters, decode_header, encode_message

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path
    from typing import NoReturn

    from k8s_rdma.wire.rest import NodeReport

    Scan = Callable[[], NodeReport]

_log = structlog.get_logger()

FIRST_REPORT_TIMEOUT_S = 10.0
"""An agent sends its report at once on connect; afterwards only when something changed."""

FIRST_RETRY_S = 0.1
LAST_RETRY_S = 5.0


class AgentLink:
    """The answers of now; `run` keeps them so.

    Nothing is answered from a report once the connection that brought it is gone.
    """

    def __init__(
        self,
        socket: Path,
        *,
        scan: Scan | None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        first_report_timeout_s: float = FIRST_REPORT_TIMEOUT_S,
    ) -> None:
        """scan: looks at the hardware while the agent is away; without one nothing is known then.

        It runs in a thread of its own at every attempt to reach the agent, tells everything in use as
        foreign, gives the same object while nothing differs and another generation when something does, and
        raises K8sRdmaError.
        """
        self._socket = socket
        self._scan = scan
        self._now = now
        self._pause = pause
        self._first_report_timeout_s = first_report_timeout_s
        self._away_since: datetime | None = now()
        self.shown = Shown(outage_answers("not asked yet", now()))
        self._scanned: NodeReport | None = None
        self.traffic = Traffic()

    async def run(self) -> NoReturn:
        """Follow the agent, again and again, until cancelled."""
        retry_s = FIRST_RETRY_S
        while True:
            try:
                await self._follow()
            except (OSError, EOFError, MalformedError) as error:
                if self._away_since is None:
                    retry_s = FIRST_RETRY_S
                await self._agent_away(_why(error))
            await self._pause(retry_s)
            retry_s = min(2 * retry_s, LAST_RETRY_S)

    async def _follow(self) -> NoReturn:
        reader, writer = await asyncio.open_unix_connection(self._socket)
        try:
            async with asyncio.timeout(self._first_report_timeout_s):
                await self._receive(reader)
            self._away_since = None
            _log.info("agent_connected", socket=str(self._socket))
            self.traffic.connected(lambda: writer.write(encode_message(Kind.SAMPLE)))
            while True:
                await self._receive(reader)
        finally:
            self.traffic.lost()
            writer.close()

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        kind, length = decode_header(await reader.readexactly(HEADER.size))
        body = await reader.readexactly(length)
        if kind is Kind.COUNTERS:
            self.traffic.received(decode_counters(body))
        else:
            self.shown.show(report_answers(decode_report(body)))

    async def _agent_away(self, why: str) -> None:
        if self._away_since is None:
            self._away_since = self._now()
            # At once, so that nobody reads what may have changed while a scan takes its time.
            self._show_outage(why, self._away_since)
            _log.warning("agent_lost", socket=str(self._socket), why=why)
        if self._scan is None:
            self._show_outage(why, self._away_since)
            return
        try:
            seen = await asyncio.to_thread(self._scan)
        except K8sRdmaError as error:
            self._show_outage(f"{why}; and the hardware: {error}", self._away_since)
        else:
            if seen is not self._scanned:
                self._scanned = seen
                self.shown.show(report_answers(replace(seen, ledger="unavailable", allocations=())))

    def _show_outage(self, why: str, since: datetime) -> None:
        self._scanned = None
        self.shown.show(outage_answers(why, since))


def _why(error: OSError | EOFError | MalformedError) -> str:
    match error:
        case MalformedError():
            return error.message
        case TimeoutError():
            return "it takes connections but sends no report"
        case OSError():
            return f"state.sock: {error.strerror or error}"
        case _:
            return "it closed the connection"
