"""Pages that are open: their data is read for as long as they load again, and no longer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

WATCH_S = 60.0
"""The time for which data is read after a page that shows it was loaded: some reloads of the page."""


class OpenPages:
    """The pages that show some data. clock: seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begin without any."""
        self._clock = clock
        self._open_until = float("-inf")
        self._loaded = asyncio.Event()

    def load(self) -> bool:
        """Load one; return whether one was open before."""
        was_open = self._clock() < self._open_until
        self._open_until = self._clock() + WATCH_S
        self._loaded.set()
        return was_open

    async def wait(self) -> None:
        """Wait until one is open."""
        if self._clock() >= self._open_until:
            self._loaded.clear()
            await self._loaded.wait()
