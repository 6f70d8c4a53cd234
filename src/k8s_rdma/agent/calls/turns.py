"""One at a time for each container, all containers at once."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from k8s_rdma.core.ids import ContainerId


class Turns:
    """Who is being worked on, and who waits for it; keeps nothing of those that are done."""

    def __init__(self) -> None:
        """Nobody is busy."""
        self._locks: dict[ContainerId, asyncio.Lock] = {}
        self._users: dict[ContainerId, int] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    def busy(self, container: ContainerId) -> bool:
        """Whether someone works on this container or waits to."""
        return container in self._locks

    async def idle(self) -> None:
        """Wait until nobody is worked on."""
        await self._idle.wait()

    @asynccontextmanager
    async def alone(self, container: ContainerId) -> AsyncIterator[None]:
        """Wait for this container's turn, and hold off others."""
        lock = self._locks.setdefault(container, asyncio.Lock())
        self._users[container] = self._users.get(container, 0) + 1
        self._idle.clear()
        try:
            async with lock:
                yield
        finally:
            self._users[container] -= 1
            if not self._users[container]:
                del self._users[container], self._locks[container]
            if not self._locks:
                self._idle.set()
