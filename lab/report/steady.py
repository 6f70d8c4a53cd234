"""Measurements on a machine that is busy: too little may be its fault, too much never is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ATTEMPTS = 3
WITHIN = 0.1
"""How far from a cap what is measured under it may be, of the cap."""


def until_carried(measure: Callable[[], float], wanted: float, attempts: int = ATTEMPTS) -> tuple[float, ...]:
    """All measurements, of which the last but for want of attempts is at least what is wanted."""
    found = [measure()]
    while found[-1] < wanted and len(found) < attempts:
        found.append(measure())
    return tuple(found)


def least(cap: float) -> float:
    """What a cap of so many Mb/s lets pass at the least."""
    return (1 - WITHIN) * cap


def most(cap: float) -> float:
    """And at the most."""
    return (1 + WITHIN) * cap
