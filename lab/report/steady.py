"""Measurements on a machine that is busy: too little may be its fault, too much never is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ATTEMPTS = 3
WITHIN = 0.1
"""The permitted distance of a measurement from its cap, as a share of the cap."""


def until_carried(measure: Callable[[], float], wanted: float, attempts: int = ATTEMPTS) -> tuple[float, ...]:
    """Measure until a measurement is at least the wanted one, or attempts are used up; return all."""
    found = [measure()]
    while found[-1] < wanted and len(found) < attempts:
        found.append(measure())
    return tuple(found)


def least(cap: float) -> float:
    """Return the least rate, Mb/s, that a cap of so many Mb/s lets pass."""
    return (1 - WITHIN) * cap


def most(cap: float) -> float:
    """Return the greatest rate, Mb/s, that a cap of so many Mb/s lets pass."""
    return (1 + WITHIN) * cap
