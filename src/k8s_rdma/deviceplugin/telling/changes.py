"""Which changes of health people are told of: all, but of a device that flaps no more than they can read.

Pure but for what it remembers: time is an argument, in seconds of a monotonic clock.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.core.devices.rdma_devices import RdmaDevice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.core.devices.rdma_devices import DevicesSeen

AT_ONCE = 4
"""Changes of one device that are told as they come; two faults and their ends."""

EVERY_S = 30.0
"""After those one more; what a flapping device is by then is told with how often it changed meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthChange:
    """A device is healthy now, or has faults. changes: since it was told of last, this one included."""

    device: RdmaDevice
    changes: int = 1

    @property
    def healthy(self) -> bool:
        """Whether it is."""
        return not self.device.faults

    @property
    def why(self) -> str:
        """What is wrong with it; empty when nothing is."""
        return "; ".join(self.device.faults)


@dataclass(slots=True)
class _Course:
    """Of one device. room: changes that may still be told at once, at the time `at`."""

    healthy: bool
    room: float
    at: float
    untold: int = 0


class Telling:
    """Remembers what was told of each device."""

    def __init__(self) -> None:
        """Nothing was told; every device is taken for healthy."""
        self._courses: dict[str, _Course] = {}
        self.counts: Counter[tuple[str, bool]] = Counter()
        """Changes of each device, to healthy or not, told or not."""
        self._due: dict[str, float] = {}

    def changes(self, seen: DevicesSeen, now: float) -> tuple[HealthChange, ...]:
        """What is to be told now; to be called for everything seen, and when due."""
        found = tuple(self._changes(seen, now))
        for name in self._courses.keys() - seen.devices.keys():
            del self._courses[name]
            self._due.pop(name, None)
            self.counts.pop((name, True), None)
            self.counts.pop((name, False), None)
        return found

    def due_at(self) -> float | None:
        """When something is to be told though nothing changed; None for never."""
        return min(self._due.values(), default=None)

    def _changes(self, seen: DevicesSeen, now: float) -> Iterator[HealthChange]:
        for name, device in seen.devices.items():
            course = self._courses.get(name)
            if course is None:
                if not device.faults:
                    continue
                course = self._courses[name] = _Course(healthy=True, room=AT_ONCE, at=now)
            if course.healthy == bool(device.faults):
                course.healthy = not device.faults
                course.untold += 1
                self.counts[name, course.healthy] += 1
            if course.untold and self._may_tell(name, course, now):
                yield HealthChange(device=device, changes=course.untold)
                course.untold = 0

    def _may_tell(self, name: str, course: _Course, now: float) -> bool:
        course.room = min(AT_ONCE, course.room + (now - course.at) / EVERY_S)
        course.at = now
        self._due.pop(name, None)
        if course.room < 1:
            self._due[name] = now + (1 - course.room) * EVERY_S
            return False
        course.room -= 1
        return True
