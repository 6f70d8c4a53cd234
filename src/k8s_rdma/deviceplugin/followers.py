"""Kubelet's ListAndWatch calls at one endpoint, and the value whose changes they wait for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

T = TypeVar("T")


class Observable(Generic[T]):
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

    async def wait_for_change(self, previous: T) -> T:
        """The value, as soon as it is another object than the one that is known."""
        while self.value is previous:
            await self._changed.wait()
        return self.value


class Followers:
    """Gives each the encoded list at once, and again after each change, until `end`."""

    def __init__(self, message: bytes, changed: Callable[[], None]) -> None:
        """changed: called when there is one more or one fewer."""
        self._message = Observable[bytes | None](message)
        self._changed = changed
        self.count = 0

    def publish(self, message: bytes) -> None:
        """Another list."""
        self._message.publish(message)

    def end(self) -> None:
        """Nothing more will come."""
        self._message.publish(None)

    async def follow(self, _request: None) -> AsyncGenerator[bytes, None]:
        """Lists as they come."""
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
