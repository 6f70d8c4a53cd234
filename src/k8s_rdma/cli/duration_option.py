"""Time spans on the command line, as Prometheus and kubectl write them: `90s`, `10m`, `7d`."""

from __future__ import annotations

import re
from typing import Any

import typer

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SPAN = re.compile(r"(?:[0-9]{1,6}[smhdw])+")
_PART = re.compile(r"([0-9]+)([smhdw])")
_MOST_S = 366 * 86_400


def duration_option(name: str, description: str) -> Any:
    """Make an option that takes a time span, whose value is in seconds."""
    return typer.Option(
        name, metavar="TIME", parser=read_duration, help=f"{description} Such as 90s, 10m or 7d."
    )


def read_duration(text: object) -> float:
    """Read a time span in seconds; several parts add up. BadParameter if the text is not a time span."""
    if isinstance(text, int | float):  # a default
        return float(text)
    word = str(text).strip()
    seconds = sum(int(number) * _UNITS[unit] for number, unit in _PART.findall(word))
    if not _SPAN.fullmatch(word) or not 0 < seconds <= _MOST_S:
        msg = f"{word}: wanted a time span of at most a year, such as 90s, 10m or 7d"
        raise typer.BadParameter(msg)
    return float(seconds)
