"""Devices that fall ill again and again: each relapse has them wait longer before they count as well."""

from __future__ import annotations

from dataclasses import dataclass

CALM_S = 60.0
"""After so long without a fault, the next one is no relapse."""

FREE = 3
"""Relapses that mean nothing yet: a driver that resets its link, or a switch that starts, makes some."""

FIRST_HOLD_S = 1.0
LAST_HOLD_S = 8.0
"""A link that comes and goes all the time is told of at most every 8 s or so; one that has come back for good
is in use again within that."""


@dataclass(slots=True)
class _Course:
    """Of one device. relapses: in a row."""

    faults: tuple[str, ...] = ()
    clear_since: float | None = None
    well_since: float | None = None
    relapses: int = 0

    @property
    def hold_s(self) -> float:
        """How long it must be without faults to count as well."""
        beyond = self.relapses - FREE
        return min(FIRST_HOLD_S * 2.0 ** (beyond - 1), LAST_HOLD_S) if beyond > 0 else 0.0


class Damping:
    """What each device's faults count as; times in seconds of a monotonic clock."""

    def __init__(self) -> None:
        """All are well."""
        self._courses: dict[str, _Course] = {}

    def faults(self, name: str, faults: tuple[str, ...], now: float) -> tuple[tuple[str, ...], float | None]:
        """Those that count, and until when they would if nothing changed; None for ever."""
        course = self._courses.get(name)
        if faults:
            course = course or self._courses.setdefault(name, _Course())
            self._fall_ill(course, faults, now)
            return faults, None
        if course is None or not course.faults:
            return (), None
        if course.clear_since is None:
            course.clear_since = now
        until = course.clear_since + course.hold_s
        if now < until:
            return course.faults, until
        course.faults, course.well_since = (), now
        return (), None

    def keep(self, names: frozenset[str]) -> None:
        """Forget all others."""
        self._courses = {name: course for name, course in self._courses.items() if name in names}

    @staticmethod
    def _fall_ill(course: _Course, faults: tuple[str, ...], now: float) -> None:
        if not course.faults:
            relapse = course.well_since is not None and now - course.well_since < CALM_S
            course.relapses = course.relapses + 1 if relapse else 0
        course.faults, course.clear_since = faults, None
