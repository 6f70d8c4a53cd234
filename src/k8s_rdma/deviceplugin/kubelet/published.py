"""A value that others wait for changes of."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Published(Generic[T]):
    """The latest value; who is slow misses those between, never the last one. For one event loop."""

    def __init__(self, value: T) -> None:
        self.value = value
        self._changed = asyncio.Event()

    def publish(self, value: T) -> None:
        """Have another value; equal ones are told to nobody."""
        if value == self.value:
            return
        self.value = value
        self._changed.set()
        self._changed = asyncio.Event()

    async def other_than(self, known: T) -> T:
        """The value, as soon as it is another object than the one that is known."""
        while self.value is known:
            await self._changed.wait()
        return self.value
