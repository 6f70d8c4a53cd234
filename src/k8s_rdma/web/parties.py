"""Shares of parties: no party takes all of a resource that is common to all.

A party is a user by name, the service accounts of a namespace, or an address.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Hashable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

_SERVICE_ACCOUNT = "system:serviceaccount:"


def party_of(username: str) -> str:
    """Return the party of a user; for a service account its namespace, in which one user can make many."""
    return username.rpartition(":")[0] if username.startswith(_SERVICE_ACCOUNT) else username


class FairTurns:
    """Turns for calls, so many at a time; those that wait come party by party.

    A party has fewer than all, so that the first call of another one does not wait for its slow ones.
    """

    def __init__(self, places: int, *, of_party: int) -> None:
        """Begin with all places free. places: at a time. of_party: the most of these for one party."""
        self._free = places
        self._of_party = of_party
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Calls by party, the next party first."""

    @asynccontextmanager
    async def turn(self, party: str) -> AsyncIterator[None]:
        """Wait for a turn of a party, and have it until the block ends."""
        await self._take(party)
        try:
            yield
        finally:
            self._give_back(party)

    async def _take(self, party: str) -> None:
        if self._free and party not in self._waiting and self._running[party] < self._of_party:
            self._grant(party)
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(party, deque()).append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():  # it had its turn already
                self._give_back(party)
            raise

    def _grant(self, party: str) -> None:
        self._free -= 1
        self._running[party] += 1

    def _give_back(self, party: str) -> None:
        self._free += 1
        self._running[party] -= 1
        self._running += Counter()  # drops parties without any
        for name in tuple(self._waiting):
            if not self._free:
                return
            if self._running[name] < self._of_party:
                self._grant_next(name)

    def _grant_next(self, party: str) -> None:
        """Let a party's next call run, if one still waits; the party goes to the end."""
        waiting = self._waiting.pop(party)
        while waiting:
            granted = waiting.popleft()
            if not granted.done():
                self._grant(party)
                granted.set_result(None)
                break
        if waiting:
            self._waiting[party] = waiting


class Recent(Generic[Key, Value]):
    """Values of some time, up to a number; beyond it the party with the most loses its oldest one."""

    def __init__(self, clock: Callable[[], float], max_values: int, *, lasts_s: float) -> None:
        """lasts_s: how long a value counts."""
        self._clock = clock
        self._max_values = max_values
        self._lasts_s = lasts_s
        self._values: dict[Key, tuple[float, Value, str]] = {}
        self._keys: dict[str, OrderedDict[Key, None]] = {}
        """Keys by party, the oldest first."""

    def get(self, key: Key) -> Value | None:
        """Return the value, if it still counts."""
        entry = self._values.get(key)
        return entry[1] if entry is not None and self._clock() - entry[0] < self._lasts_s else None

    def last(self, key: Key) -> tuple[float, Value] | None:
        """Return the last value with its time, even one that does not count any more."""
        entry = self._values.get(key)
        return None if entry is None else entry[:2]

    def put(self, key: Key, value: Value, *, party: str) -> None:
        """Take a value, which counts as one of this party's."""
        self._drop(key)
        self._values[key] = self._clock(), value, party
        self._keys.setdefault(party, OrderedDict())[key] = None
        if len(self._values) > self._max_values:
            greediest = max(self._keys.values(), key=len)
            self._drop(next(iter(greediest)))

    def _drop(self, key: Key) -> None:
        entry = self._values.pop(key, None)
        if entry is not None:
            keys = self._keys[entry[2]]
            del keys[key]
            if not keys:
                del self._keys[entry[2]]
