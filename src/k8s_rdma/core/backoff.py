"""Exponential backoff of repeated attempts."""

from __future__ import annotations


class Backoff:
    """Delays between failed attempts: each twice as long as the one before, from the first to the longest.

    Times are seconds of one monotonic clock, given by the caller.
    """

    __slots__ = ("_first_s", "_longest_s", "_next_s", "_retry_at")

    def __init__(self, first_s: float, longest_s: float) -> None:
        """Start without failed attempts."""
        self._first_s, self._longest_s = first_s, longest_s
        self.reset()

    @property
    def failing(self) -> bool:
        """Report whether an attempt has failed since the last reset."""
        return self._retry_at > float("-inf")

    def reset(self) -> None:
        """Start over: an attempt succeeded, or its circumstances changed."""
        self._retry_at, self._next_s = float("-inf"), self._first_s

    def fail(self, now: float = 0.0) -> float:
        """Note a failed attempt; the delay before the next one."""
        delay_s, self._next_s = self._next_s, min(2 * self._next_s, self._longest_s)
        self._retry_at = now + delay_s
        return delay_s

    def left_s(self, now: float) -> float:
        """Return the time until the next attempt; 0 when it is due."""
        return max(0.0, self._retry_at - now)
