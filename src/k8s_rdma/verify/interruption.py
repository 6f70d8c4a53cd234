"""The signals that end a command, deferred while it undoes its changes.

Ctrl-C raises KeyboardInterrupt between any two instructions, also in a cleanup. A terminal also signals the
programs that the command runs: for example, `umount` ends, and the namespace stays.
"""

from __future__ import annotations

import signal
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, the end of a service, and that of a session."""


@contextmanager
def undisturbed() -> Iterator[AbstractContextManager[None]]:
    """Defer `ENDS` to the end of the block, also for the programs that it runs. Of the main thread.

    Yields a context manager within which they come at once. For example:

        with undisturbed() as disturbed, ExitStack() as stack, disturbed:
            stack.callback(undo)
            do()
    """
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    try:
        yield _mask(previous)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


@contextmanager
def _mask(signals: set[signal.Signals | int]) -> Iterator[None]:
    deferred = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, deferred)
