"""A watcher that waits for notifications of changes."""

from __future__ import annotations

import threading


class Watcher:
    """The callback: how often it was called; `wait` for the next call, for so long."""

    def __init__(self, deadline_s=120):
        self._deadline_s = deadline_s
        self._called = threading.Semaphore(0)

    def __call__(self):
        self._called.release()

    def wait(self):
        assert self._called.acquire(timeout=self._deadline_s)

    def called(self):
        return self._called.acquire(blocking=False)
