"""Turns of searches, which share the processor among namespaces.

A search takes slices of the thread's processor time. Between two slices, others run, and the namespace that
has used least searches next.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from time import thread_time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

SLICE_S = 0.005
"""Processor time after which others come first; the search under way is finished."""

_MOST_NAMESPACES = 10_000


class SearchQueue:
    """Grants searches one turn at a time. clock: processor time of this thread, s."""

    def __init__(self, clock: Callable[[], float] = thread_time) -> None:
        self.clock = clock
        self._busy = False
        self._waiters: list[_Waiter] = []
        self._used: dict[str, float] = {}
        self._served = 0.0

    def used(self, namespace: str) -> float:
        """Processor time that the namespace has used, s; at least what the one served last had used."""
        return max(self._used.get(namespace, 0.0), self._served)

    @asynccontextmanager
    async def turn(self, namespace: str, *, background: bool = False) -> AsyncIterator[Turn]:
        """Take a turn for a search. background: no client waits for the answer, so waiting ones go first."""
        turn = Turn(self, namespace, background=background)
        await turn.begin()
        try:
            yield turn
        finally:
            turn.end()

    def wait(self, namespace: str, *, background: bool) -> asyncio.Future[None]:
        """Ask for a turn; the result is there when it has come."""
        waiter = _Waiter(namespace, background, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        if not self._busy:
            self.hand_on()
        return waiter.granted

    def cancel(self, granted: asyncio.Future[None]) -> None:
        """Ask no more, and hand on what was granted meanwhile."""
        self._waiters = [waiter for waiter in self._waiters if waiter.granted is not granted]
        if granted.done() and not granted.cancelled():
            self.hand_on()

    def charge(self, namespace: str, used_s: float) -> None:
        """Note the processor time of a turn."""
        self._served = self.used(namespace)
        self._used[namespace] = self._served + used_s
        self._forget_idle()

    def bill(self, namespace: str, used_s: float) -> None:
        """Note the processor time used for the namespace outside of its turns."""
        self._used[namespace] = self.used(namespace) + used_s
        self._forget_idle()

    def hand_on(self) -> None:
        """End the turn; the next is for who answers somebody and has used least, of equals who came first."""
        self._waiters = [candidate for candidate in self._waiters if not candidate.granted.cancelled()]
        self._busy = bool(self._waiters)
        if not self._busy:
            return
        waiter = min(
            self._waiters, key=lambda candidate: (candidate.background, self.used(candidate.namespace))
        )
        self._waiters.remove(waiter)
        waiter.granted.set_result(None)

    def _forget_idle(self) -> None:
        if len(self._used) > _MOST_NAMESPACES:
            self._used = {namespace: used for namespace, used in self._used.items() if used > self._served}


class _Waiter(NamedTuple):
    namespace: str
    background: bool
    granted: asyncio.Future[None]


class Turn:
    """Slices of one search, made by `SearchQueue.turn`."""

    def __init__(self, queue: SearchQueue, namespace: str, *, background: bool) -> None:
        self._queue = queue
        self._namespace = namespace
        self._background = background
        self._ended_s = 0.0
        self._started_at: float | None = None

    @property
    def used_s(self) -> float:
        """Processor time of all its slices."""
        return self._ended_s + (0.0 if self._started_at is None else self._queue.clock() - self._started_at)

    async def begin(self) -> None:
        """Wait for a slice."""
        granted = self._queue.wait(self._namespace, background=self._background)
        await self._start(granted)

    def end(self) -> None:
        """Give the slice back, if there is one."""
        if self._started_at is not None:
            self._charge()
            self._queue.hand_on()

    async def give_way(self) -> None:
        """Let others run and search once the slice is used up."""
        if self._started_at is not None and self._queue.clock() - self._started_at < SLICE_S:
            return
        self._charge()
        granted = self._queue.wait(self._namespace, background=self._background)
        self._queue.hand_on()
        await self._start(granted)

    async def _start(self, granted: asyncio.Future[None]) -> None:
        try:
            await asyncio.sleep(0)  # whatever is ready runs first, also when this search goes on at once
            await granted
        except asyncio.CancelledError:
            self._queue.cancel(granted)
            raise
        self._started_at = self._queue.clock()

    def _charge(self) -> None:
        if self._started_at is not None:
            used_s, self._started_at = self._queue.clock() - self._started_at, None
            self._ended_s += used_s
            self._queue.charge(self._namespace, used_s)
