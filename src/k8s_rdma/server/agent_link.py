"""Keeps the answers to the state of the node that the agent last told."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec.structs import replace

from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.server.answers import Shown, outage_answers, report_answers
from k8s_rdma.server.traffic import Traffic
from k8s_rdma.state_reader import FIRST_REPORT_TIMEOUT_S, follow_agent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path
    from typing import NoReturn

    from k8s_rdma.wire.rest import NodeReport
    from k8s_rdma.wire.state import Counters

    Scan = Callable[[], NodeReport]


class AgentLink:
    """The answers of now; `run` keeps them so. A `state_reader.StateReader`.

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
        await follow_agent(
            self._socket, self, pause=self._pause, first_report_timeout_s=self._first_report_timeout_s
        )

    def reported(self, report: NodeReport) -> None:
        """Answer from this."""
        self.shown.show(report_answers(report))

    def connected(self, sample: Callable[[], None]) -> None:
        """Counters can be asked for."""
        self._away_since = None
        self.traffic.connected(sample)

    def counted(self, counters: Counters) -> None:
        """Tell those who wait for counters."""
        self.traffic.received(counters)

    def disconnected(self) -> None:
        """No counters can be had."""
        self.traffic.disconnected()

    async def away(self, why: str) -> None:
        """Answer without a ledger, from a look at the hardware where there is one."""
        if self._away_since is None:
            self._away_since = self._now()
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
            if hardware is not self._scanned:
                self._scanned = hardware
                self.shown.show(report_answers(replace(hardware, ledger="unavailable", allocations=())))

    def _show_outage(self, why: str, outage_since: datetime) -> None:
        self._scanned = None
        self.shown.show(outage_answers(why, outage_since))
