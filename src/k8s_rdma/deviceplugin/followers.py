"""Kubelet's ListAndWatch calls at one endpoint, and the value whose changes they wait for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

T = TypeVar("T")


class Observable(Generic[T]):
    """A value that tasks wait on.

    A slow task misses values in between, never the last. For one event loop.
    """

    def __init__(self, value: T) -> None:
        self.value = value
        self._changed = asyncio.Event()

    def publish(self, value: T) -> None:
        """Set the value; an equal one wakes no task."""
        if value == self.value:
            return
        self.value = value
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_for_change(self, previous: T) -> T:
        """Return the value once it is another object than `previous`."""
        while self.value is previous:
            await self._changed.wait()
        return self.value


class Followers:
    """Streams of the encoded device list.

    Each starts with the current list and gets every change until `end`.
    """

    def __init__(self, message: bytes, changed: Callable[[], None]) -> None:
        """Start without streams. changed: called when a stream begins or ends."""
        self._message = Observable[bytes | None](message)
        self._changed = changed
        self.count = 0

    def publish(self, message: bytes) -> None:
        """Send a new list."""
        self._message.publish(message)

    def end(self) -> None:
        """End all streams."""
        self._message.publish(None)

    async def follow(self, _request: None) -> AsyncGenerator[bytes, None]:
        """Yield the current list and every change."""
        self.count += 1
        self._changed()
        try:
            message = self._message.value
            while message is not None:
                yield message
                message = await self._message.wait_for_change(message)
        finally:
            self.count -= 1
            self._changed()
