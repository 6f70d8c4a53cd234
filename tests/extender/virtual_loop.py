"""An event loop whose time passes only when somebody says so."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class _Idle(selectors.SelectSelector):
    """Never waits: if no callback can run, it reports for how long this lasts."""

    idle_s: float | None = None
    waiter: asyncio.Future[None] | None = None

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None or timeout > 0:
            self.idle_s = timeout
            if self.waiter is None or self.waiter.done():
                raise AssertionError("everything waits for something that nobody does")
            self.waiter.set_result(None)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._idle = _Idle()
        self.now = 1_000.0
        super().__init__(self._idle)

    def time(self) -> float:
        """No two moments are the same."""
        self.now += 1e-9
        return self.now

    async def settle(self) -> None:
        """Return once no callback can run until time passes."""
        self._idle.waiter = self.create_future()
        await self._idle.waiter

    async def advance(self, seconds: float) -> None:
        """Let time pass, every timer in its turn."""
        until = self.now + seconds
        while True:
            await self.settle()
            timer = self._idle.idle_s
            if timer is None or self.now + timer > until:
                break
            self.now += timer + 1e-6
        self.now = max(self.now, until)
        await self.settle()


def run(main: Any) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main)
