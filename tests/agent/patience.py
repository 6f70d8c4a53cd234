"""Time that passes when a test says so."""

from __future__ import annotations

import asyncio


class Patience:
    """Stands in for `asyncio.sleep`: every pause lasts until the test ends it."""

    def __init__(self) -> None:
        self._begun: asyncio.Queue[tuple[float, asyncio.Future[None]]] = asyncio.Queue()
        self._last: asyncio.Future[None] | None = None

    async def pause(self, seconds: float) -> None:
        over = asyncio.get_running_loop().create_future()
        self._begun.put_nowait((seconds, over))
        await over

    async def next(self) -> float:
        """How long the next pause is to last; it goes on."""
        async with asyncio.timeout(120):
            seconds, self._last = await self._begun.get()
        return seconds

    def end(self) -> None:
        """End the pause that `next` returned last."""
        assert self._last is not None
        self._last.set_result(None)

    async def pass_by(self) -> float:
        """Let the one that goes on pass, and tell how long the next is to last."""
        self.end()
        return await self.next()
