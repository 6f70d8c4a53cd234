"""Traffic counters of VFs; the agent is asked at a scrape when its last counters have grown old."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from k8s_rdma.server.metrics import render_age, render_traffic
from k8s_rdma.wire.state import SAMPLE_EVERY_S, SOON_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from k8s_rdma.wire.state import Counters

ANSWER_TIMEOUT_S = 2.0
"""How long a scrape waits for the agent; then it gets what was told last, with its age."""


class Traffic:
    """What the agent told last. At most one question is open, whoever waits for its answer."""

    def __init__(
        self, *, now: Callable[[], float] = time.monotonic, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> None:
        """Nothing is known, and nobody there to ask."""
        self._now = now
        self._timeout_s = timeout_s
        self._request: Callable[[], None] | None = None
        self._answered: asyncio.Event | None = None
        self._sampled_at: float | None = None
        self._counters: Counters | None = None
        self._rendered: bytes | None = None

    def connected(self, request: Callable[[], None]) -> None:
        """An agent is there; `request` sends it the question."""
        self._request = request

    def disconnected(self) -> None:
        """The agent is gone, and what it told with it."""
        self._request, self._counters, self._sampled_at = None, None, None
        self._no_more_waiting()

    def received(self, counters: Counters) -> None:
        """It answered."""
        self._counters, self._rendered = counters, None
        self._sampled_at = None if counters.age_s is None else self._now() - counters.age_s
        self._no_more_waiting()

    async def exposition(self) -> bytes:
        """The counters in the Prometheus text format, as fresh as may be had; empty while there are none."""
        await self._refresh()
        if self._counters is None:
            return b""
        if self._rendered is None:
            self._rendered = render_traffic(self._counters)
        age_s = self._age_s()
        return self._rendered if age_s is None else self._rendered + render_age(self._counters, age_s)

    def _age_s(self) -> float | None:
        return None if self._sampled_at is None else self._now() - self._sampled_at

    async def _refresh(self) -> None:
        """Ask for a new sample if one is due, and wait for it, but not for long."""
        age_s = self._age_s()
        if self._request is None or (age_s is not None and age_s < SAMPLE_EVERY_S - SOON_S):
            return
        if self._answered is None:
            self._answered = asyncio.Event()
            self._request()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                await self._answered.wait()

    def _no_more_waiting(self) -> None:
        if self._answered is not None:
            self._answered.set()
            self._answered = None
