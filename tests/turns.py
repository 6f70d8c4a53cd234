"""Turns of test workers that run at the same time: beside each other, or alone."""

from __future__ import annotations

import fcntl
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import pytest


def is_alone(item: pytest.Item) -> bool:
    """Report whether no other test may run beside it."""
    return item.get_closest_marker("alone") is not None


def alone_first(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return tests that are alone, then the others, each in their order.

    Before a test that is alone every worker waits until the longest of the running tests has ended. If one
    worker has all of these tests one after the other, the others run one test in between, which is mostly
    short. Tests that are alone also are among the longest, and should not be the last that run.
    """
    return sorted(items, key=lambda item: not is_alone(item))


@contextmanager
def turn(directory: Path, *, alone: bool) -> Iterator[None]:
    """Wait for a turn and have it; all workers name the same directory.

    Everybody queues at a gate, one at a time: who wants to be alone waits there for those who are inside, and
    and no other slips in before. Locks of a worker are free again when it dies (flock(2)).
    """
    with ExitStack() as inside:
        with _locked(directory / "gate", fcntl.LOCK_EX):
            inside.enter_context(_locked(directory / "inside", fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
        yield


@contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, how)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # closing is not enough while a forked process has it open
