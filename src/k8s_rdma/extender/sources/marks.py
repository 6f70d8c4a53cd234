"""Which versions of objects were written after which moments of our clock.

No clocks are compared, and two watches may lag behind each other by any time. But whoever asked the API
server for its version at a moment knows that what has a larger one was written after that moment.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

NEVER = float("-inf")
_MOST = 600


@dataclass(slots=True)
class Marks:
    """The last answers, in order of their moments and of their versions alike."""

    _moments: list[float] = field(default_factory=list)
    _versions: list[int] = field(default_factory=list)

    def note(self, asked_at: float, version: int) -> None:
        """The API server, asked at that time, was at that version; not asked while another answer is due."""
        if self._versions and version < self._versions[-1]:  # its data is from a backup
            self._moments.clear()
            self._versions.clear()
        self._moments.append(asked_at)
        self._versions.append(version)
        if len(self._versions) > _MOST:
            del self._moments[: _MOST // 2], self._versions[: _MOST // 2]

    def before(self, version: int) -> float:
        """The last moment after which this version was surely written."""
        at = bisect_left(self._versions, version)
        return self._moments[at - 1] if at else NEVER
