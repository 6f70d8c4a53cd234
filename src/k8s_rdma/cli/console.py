"""How tables look: with colours on a terminal, as plain columns of whole lines where nobody looks."""

from __future__ import annotations

import sys

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

_WHOLE = 10_000
"""Columns on a pipe, so that `grep` finds whole lines."""


def console() -> Console:
    """For standard output."""
    return Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=_WHOLE)


def table(*headings: str, plain: bool, right: tuple[str, ...] = ()) -> Table:
    """An empty one. right: headings of columns of numbers."""
    made = Table(box=None if plain else SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        made.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    return made


def seconds(since_s: float | None) -> str:
    """A time span in two digits or three: `3s`, `12m`, `5h`, `9d`."""
    if since_s is None:
        return "never"
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if since_s >= 2 * length:
            return f"{since_s / length:.0f}{unit}"
    return f"{since_s:.0f}s"
