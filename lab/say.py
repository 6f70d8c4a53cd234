"""Progress: one line a step, with its time."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def say(text: str) -> None:
    """Write one line on stderr."""
    print(f"lab: {text}", file=sys.stderr, flush=True)


@contextmanager
def step(what: str) -> Iterator[list[str]]:
    """Name a step as it begins, and as it ends show its time and the notes on it."""
    say(f"{what} ...")
    notes: list[str] = []
    began = time.monotonic()
    yield notes
    say(f"{what}: {', '.join([f'{time.monotonic() - began:.1f} s', *notes])}")


def size_of(path: Path) -> str:
    """Return MiB of a file, or of all files below a folder."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if not each.is_symlink()]
    return f"{sum(each.stat().st_size for each in files if each.is_file()) / 2**20:.0f} MiB"
