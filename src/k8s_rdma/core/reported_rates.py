"""Rates of pods that a node reports as programmed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from k8s_rdma.core.placement import (
    PlacedInterface,
)
from k8s_rdma.core.types import PodUid


class Promised(Protocol):
    """The interfaces of a generation of a pod's placement."""

    @property
    def interfaces(self) -> tuple[PlacedInterface, ...]:
        """The interfaces."""
        ...

    @property
    def generation(self) -> int:
        """The number of changes of their rates."""
        ...


@dataclass(frozen=True, slots=True)
class ReportedRates:
    """The rates of pods that a node reports as programmed.

    A pod that is missing from a report keeps its rates of an earlier one, because others may have been
    promised the room that a programmed cut made.

    reported: allocations by pod in the last report.
    generations: of their rates, 0 for those not named.
    earlier: generations of other pods' rates, by the last report that held them.
    """

    reported: Mapping[PodUid, tuple[PlacedInterface, ...]] = field(default_factory=dict)
    generations: Mapping[PodUid, int] = field(default_factory=dict)
    earlier: Mapping[PodUid, int] = field(default_factory=dict)

    def programmed(self, uid: PodUid) -> int:
        """Return the generation of a pod's rates that is known to be programmed."""
        generations = self.generations if uid in self.reported else self.earlier
        return generations.get(uid, 0)

    def settled(self, promises: Mapping[PodUid, Promised]) -> Mapping[PodUid, tuple[PlacedInterface, ...]]:
        """Return the reported interfaces, without pods whose last change of rates is not reported yet."""
        changing = {
            uid
            for uid, promise in promises.items()
            if uid in self.reported and promise.generation > self.programmed(uid)
        }
        if not changing:
            return self.reported
        return {uid: interfaces for uid, interfaces in self.reported.items() if uid not in changing}

    def counted(self, promises: Mapping[PodUid, Promised]) -> dict[PodUid, tuple[PlacedInterface, ...]]:
        """Return the promised interfaces of pods as they count."""
        return {uid: self._counted(uid, promise) for uid, promise in promises.items()}

    def _counted(self, uid: PodUid, promise: Promised) -> tuple[PlacedInterface, ...]:
        """Return the interfaces of a pod; during a change of its rates also those that it has on other PFs.

        Its agent may have placed it on other PFs if the promised PF had no room.
        """
        interfaces = promise.interfaces
        if self.programmed(uid) >= promise.generation:
            return interfaces
        pfs = {interface.pf for interface in interfaces}
        return (
            *(interface.until_programmed() for interface in interfaces),
            *(interface for interface in self.reported.get(uid, ()) if interface.pf not in pfs),
        )
