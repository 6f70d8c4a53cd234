"""Time, and waiting that ends when the process is told to end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from k8s_rdma.errors import K8sRdmaError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

POLL_S = 0.05
"""Between looks at what tells of no change by itself, as sysfs; each is one small file or directory."""


class StoppedError(K8sRdmaError):
    """The process was told to end; what was begun is to be left in order."""


class Clock(Protocol):
    """Seconds of one monotonic clock."""

    def now(self) -> float:
        """The time."""
        ...

    def wait(self, seconds: float) -> None:
        """Let time pass; StoppedError when the process is told to end."""
        ...


class StoppableClock:
    """The machine's clock."""

    def __init__(self, stop: threading.Event) -> None:
        """stop: set when the process is to end."""
        self._stop = stop

    def now(self) -> float:
        """As `time.monotonic`."""
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        """As `Clock.wait`."""
        if self._stop.wait(seconds):
            msg = "stopped by a signal"
            raise StoppedError(msg)


def until(clock: Clock, timeout_s: float, holds: Callable[[], bool], every_s: float = POLL_S) -> bool:
    """Wait for something to hold, at most so long; whether it does."""
    end = clock.now() + timeout_s
    while not holds():
        if clock.now() >= end:
            return False
        clock.wait(every_s)
    return True
