"""Pauses between attempts that fail."""

from __future__ import annotations


class Pauses:
    """Each twice as long as the one before, from the first to the longest; in seconds of one clock."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        """No attempt has failed."""
        self._first_s, self._longest_s = first_s, longest_s
        self.reset()

    def reset(self) -> None:
        """Begin anew: something has succeeded, or is otherwise than it was."""
        self._until, self._next_s = 0.0, self._first_s

    def failed(self, now: float) -> None:
        """An attempt failed."""
        self._until = now + self._next_s
        self._next_s = min(2 * self._next_s, self._longest_s)

    def left_s(self, now: float) -> float:
        """How long until the next attempt; 0 when it is time."""
        return max(0.0, self._until - now)
