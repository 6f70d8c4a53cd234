"""Time that passes when a test says so, and wakes who waits for it."""

from __future__ import annotations

import asyncio
import heapq
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING

from k8s_rdma.kube.informer import Time

if TYPE_CHECKING:
    from collections.abc import Callable

QUIET = 20
"""Turns of the event loop in a row."""


class PassingTime:
    """`advance` ends every pause that ends by then, in order, each when its time has come.

    progress: a value that changes for as long as work goes on; all of it in this event loop.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.pauses: list[float] = []
        self.progress: Callable[[], object] = lambda: None
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._number = count()

    def time(self) -> Time:
        return Time(monotonic=lambda: self.seconds, now=self.now, pause=self.pause)

    def now(self) -> datetime:
        return datetime(2026, 3, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        over = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (self.seconds + seconds, next(self._number), over))
        await over

    async def advance(self, seconds: float) -> None:
        await self.settle()
        end = self.seconds + seconds
        while self._waiting and self._waiting[0][0] <= end:
            self.seconds, _, over = heapq.heappop(self._waiting)
            if not over.done():
                over.set_result(None)
                await self.settle()
        self.seconds = end
        await self.settle()

    async def settle(self) -> None:
        """Wait until only time goes on."""
        quiet, before = 0, None
        while quiet < QUIET:
            now = (len(self.pauses), self.progress())
            quiet = quiet + 1 if now == before else 0
            before = now
            await asyncio.sleep(0.0005)
