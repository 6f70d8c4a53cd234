"""The server's link to the agent: the answers of each report, and traffic counters for scrapes."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias

from msgspec.structs import replace

from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.server.answers import Shown, outage_answers, render_age, render_traffic, report_answers
from k8s_rdma.state_reader import FIRST_REPORT_TIMEOUT_S, AgentLink
from k8s_rdma.wire.state import SAMPLE_EVERY_S, SOON_S, Counters

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from k8s_rdma.wire.rest import NodeReport

Scan: TypeAlias = "Callable[[], NodeReport]"

ANSWER_TIMEOUT_S = 2.0
"""Time for which a scrape waits for the agent; then it gets the last counters, with their age."""


class AnswersLink(AgentLink):
    """The current answers; `run` keeps them up to date.

    Nothing is answered from a report once the connection that brought it has ended.
    """

    def __init__(
        self,
        socket: Path,
        *,
        scan: Scan | None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        first_report_timeout_s: float = FIRST_REPORT_TIMEOUT_S,
    ) -> None:
        """scan: scans the hardware while the agent is away; without one nothing is known then.

        It runs in a thread of its own at every attempt to reach the agent. It reports everything in use as
        foreign, returns the same object while nothing differs and another generation when something does, and
        raises K8sRdmaError.
        """
        super().__init__(socket, pause=pause, first_report_timeout_s=first_report_timeout_s)
        self._scan = scan
        self._clock = clock
        self._away_since: datetime | None = clock()
        self.shown = Shown(outage_answers("not contacted yet", clock()))
        self._shown_scan: NodeReport | None = None
        self.traffic = Traffic()

    def reported(self, report: NodeReport) -> None:
        """Answer from this report."""
        self.shown.show(report_answers(report))

    def connected(self, sample: Callable[[], None]) -> None:
        """Request counters by `sample` from now on."""
        self._away_since = None
        self.traffic.connected(sample)

    def counted(self, counters: Counters) -> None:
        """Pass counters to the scrapes that wait for them."""
        self.traffic.received(counters)

    def disconnected(self) -> None:
        """Drop the counters."""
        self.traffic.disconnected()

    async def away(self, why: str) -> None:
        """Answer without a ledger, from a scan of the hardware if there is one."""
        if self._away_since is None:
            self._away_since = self._clock()
            # At once, so that nobody reads what may have changed while a scan takes its time.
            self._show_outage(why, self._away_since)
        if self._scan is None:
            self._show_outage(why, self._away_since)
            return
        try:
            hardware = await asyncio.to_thread(self._scan)
        except K8sRdmaError as error:
            self._show_outage(f"{why}; and the hardware: {error}", self._away_since)
        else:
            if hardware is not self._shown_scan:
                self._shown_scan = hardware
                self.shown.show(report_answers(replace(hardware, ledger="unavailable", allocations=())))

    def _show_outage(self, why: str, outage_since: datetime) -> None:
        self._shown_scan = None
        self.shown.show(outage_answers(why, outage_since))


class Traffic:
    """The last traffic counters. At most one request is under way, however many scrapes wait for it."""

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> None:
        """Start without counters and without an agent."""
        self._clock = clock
        self._timeout_s = timeout_s
        self._request: Callable[[], None] | None = None
        self._answered: asyncio.Event | None = None
        self._sampled_at: float | None = None
        self._counters: Counters | None = None
        self._rendered: bytes | None = None

    def connected(self, request: Callable[[], None]) -> None:
        """Take `request`, which requests counters of the agent."""
        self._request = request

    def disconnected(self) -> None:
        """Forget the agent and its counters."""
        self._request, self._counters, self._sampled_at = None, None, None
        self._release_waiters()

    def received(self, counters: Counters) -> None:
        """Take the agent's answer."""
        self._counters, self._rendered = counters, None
        self._sampled_at = None if counters.age_s is None else self._clock() - counters.age_s
        self._release_waiters()

    async def exposition(self) -> bytes:
        """Return the counters in the Prometheus text format, as fresh as possible; empty without any."""
        await self._refresh()
        if self._counters is None:
            return b""
        if self._rendered is None:
            self._rendered = render_traffic(self._counters)
        age_s = self._age_s()
        return self._rendered if age_s is None else self._rendered + render_age(self._counters, age_s)

    def _age_s(self) -> float | None:
        return None if self._sampled_at is None else self._clock() - self._sampled_at

    async def _refresh(self) -> None:
        """Request a new sample if one is due, and wait for it for a limited time."""
        age_s = self._age_s()
        if self._request is None or (age_s is not None and age_s < SAMPLE_EVERY_S - SOON_S):
            return
        if self._answered is None:
            self._answered = asyncio.Event()
            self._request()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                await self._answered.wait()

    def _release_waiters(self) -> None:
        if self._answered is not None:
            self._answered.set()
            self._answered = None
