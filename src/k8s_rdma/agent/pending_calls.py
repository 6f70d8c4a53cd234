"""Calls into the agent under way: those that a later call cancels, and those that wait for others."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

_Key = TypeVar("_Key", bound=Hashable)


@dataclass(eq=False, slots=True)
class PendingCall:
    """A call that has not ended. cancelled: a call that ends its subject has come since."""

    caller_waits: Callable[[], bool]
    cancelled: bool = False

    def still_waiting(self) -> bool:
        """Report whether the caller still waits, and the call is not cancelled."""
        return not self.cancelled and self.caller_waits()


class PendingCalls(Generic[_Key]):
    """The calls under way, by subject: ADDs by attachment, for example.

    A caller may have given up a call and have made the one that ends its subject, although the connection of
    the first one seems open. A VF that the first call gave after the second one would leak.
    """

    def __init__(self) -> None:
        """Start without pending calls."""
        self._pending: dict[_Key, list[PendingCall]] = {}

    def __contains__(self, key: object) -> bool:
        """Report whether a call on this subject is under way."""
        return key in self._pending

    @contextmanager
    def register(self, key: _Key, caller_waits: Callable[[], bool]) -> Iterator[PendingCall]:
        """Register a call until the block ends."""
        call = PendingCall(caller_waits)
        self._pending.setdefault(key, []).append(call)
        try:
            yield call
        finally:
            self._pending[key].remove(call)
            if not self._pending[key]:
                del self._pending[key]

    def cancel(self, key: _Key) -> None:
        """Cancel the pending calls on a subject: each undoes its changes."""
        for call in self._pending.get(key, ()):
            call.cancelled = True


class WaitingCalls:
    """Counts the calls that wait for others to end, up to a limit: each holds a connection."""

    def __init__(self, limit: int) -> None:
        """limit: how many may wait at a time."""
        self._limit = limit
        self._waiting = 0

    @property
    def full(self) -> bool:
        """Report whether no further call may wait."""
        return self._waiting >= self._limit

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count a call as waiting until the block ends."""
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
