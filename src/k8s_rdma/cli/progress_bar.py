"""The bar that shows on a terminal how far a command has come."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


def progress_bar() -> Progress:
    """Return a bar on standard error, with the time that remains; it is drawn on a terminal alone."""
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    return Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())
