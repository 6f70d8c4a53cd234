"""Reservations: placements that are held on a node for pods, and the table of their stages.

The module takes values and returns values; it has no clock and does no I/O.
"""

from __future__ import annotations

from enum import IntEnum, auto, unique
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.request import PfPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.core.types import NodeName

    Interfaces: TypeAlias = tuple[PlacedInterface, ...]


@unique
class Stage(IntEnum):
    """The stage of a reservation."""

    DECIDED = auto()
    """The Binding is not written yet: the pod may wait for a gang, for example."""

    WRITING = auto()
    """The Binding is being written."""

    IN_DOUBT = auto()
    """A write that would bind the pod here got no answer, and may still take effect."""

    BOUND = auto()
    """The API server has said, or the pod watch has shown, that the pod is bound here."""

    ENDED = auto()
    """The pod was seen finished or gone, and its node may hold the interfaces for a while yet."""


@unique
class ReservationEvent(IntEnum):
    """An event that a reservation depends on."""

    WRITE_BEGUN = auto()
    """A write of the Binding begins, perhaps beside one in doubt."""

    FOUND_BOUND = auto()
    """The API server answered that it bound the pod here, or shows it so."""

    UNANSWERED = auto()
    """A write got no answer."""

    NOT_WRITTEN = auto()
    """The write did not happen and never will; an earlier one that is in doubt may."""

    SURELY_UNBOUND = auto()
    """The pod cannot be bound here any more, whatever was written."""

    POD_ENDED = auto()
    """The pod is finished or gone."""


TRANSITIONS: Mapping[ReservationEvent, Mapping[Stage, Stage | None]] = {
    ReservationEvent.WRITE_BEGUN: {
        Stage.DECIDED: Stage.WRITING,
        Stage.WRITING: Stage.WRITING,
        Stage.IN_DOUBT: Stage.IN_DOUBT,  # the earlier write may still take effect
        Stage.BOUND: Stage.BOUND,
        Stage.ENDED: Stage.ENDED,
    },
    ReservationEvent.FOUND_BOUND: {
        Stage.DECIDED: Stage.BOUND,
        Stage.WRITING: Stage.BOUND,
        Stage.IN_DOUBT: Stage.BOUND,
        Stage.BOUND: Stage.BOUND,
        Stage.ENDED: Stage.ENDED,  # an answer may come after the pod's end
    },
    ReservationEvent.UNANSWERED: {
        Stage.DECIDED: Stage.IN_DOUBT,
        Stage.WRITING: Stage.IN_DOUBT,
        Stage.IN_DOUBT: Stage.IN_DOUBT,
        Stage.BOUND: Stage.BOUND,
        Stage.ENDED: Stage.ENDED,
    },
    ReservationEvent.NOT_WRITTEN: {
        Stage.DECIDED: None,
        Stage.WRITING: None,
        Stage.IN_DOUBT: Stage.IN_DOUBT,
        Stage.BOUND: Stage.BOUND,
        Stage.ENDED: Stage.ENDED,
    },
    ReservationEvent.SURELY_UNBOUND: {
        Stage.DECIDED: None,
        Stage.WRITING: None,
        Stage.IN_DOUBT: None,
        Stage.BOUND: Stage.BOUND,
        Stage.ENDED: Stage.ENDED,
    },
    ReservationEvent.POD_ENDED: dict.fromkeys(Stage, Stage.ENDED),
}
"""The stage that follows, by event and stage; None ends the reservation at once.

BOUND is left with the pod's end alone. ENDED is left when a report that was asked for later does not hold the
pod (`ClusterState.observe`), or its node is gone.
"""

OPEN = frozenset({Stage.DECIDED, Stage.WRITING, Stage.IN_DOUBT})
"""The stages in which it is not known whether the pod is bound here."""


class Reservation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A placement held on a node for a pod that is bound there or being bound.

    A Struct, because a start makes one for every bound pod of a cluster.

    pod: `namespace/name`.
    created_at: when the placement was decided.
    policy: the policy of the decision, if this process decided it.
    version: the pod's version at the decision, whose Binding has the placement; empty if it is not known.
    generation: the placement's generation (`Placement.generation`).
    ended_at: when the pod was seen finished or gone; None before `Stage.ENDED`.
    """

    interfaces: tuple[PlacedInterface, ...]
    pod: str
    created_at: float
    policy: PfPolicy = PfPolicy.ANY
    version: str = ""
    generation: int = 0
    stage: Stage = Stage.DECIDED
    ended_at: float | None = None

    @property
    def bound(self) -> bool:
        """Report whether the pod is bound here, or was to its end."""
        return self.stage is Stage.BOUND or self.stage is Stage.ENDED

    @property
    def in_doubt(self) -> bool:
        """Report whether a write that would bind the pod here got no answer, and may still take effect."""
        return self.stage is Stage.IN_DOUBT

    def after(self, event: ReservationEvent) -> Reservation | None:
        """Return the reservation after an event, the same object if its stage stays; None if it is over."""
        stage = TRANSITIONS[event][self.stage]
        if stage is None or stage is self.stage:
            return self if stage else None
        return msgspec.structs.replace(self, stage=stage)

    def ended(self, ended_at: float) -> Reservation:
        """Return the reservation after its pod's end at that time; the first one stands."""
        if self.stage is Stage.ENDED:
            return self
        stage = TRANSITIONS[ReservationEvent.POD_ENDED][self.stage]
        return msgspec.structs.replace(self, stage=stage, ended_at=ended_at)

    def placement(self, node: NodeName) -> Placement:
        """Return the placement on that node."""
        return Placement(
            node=node, interfaces=self.interfaces, policy=self.policy, generation=self.generation
        )

    def counted(self, programmed: int) -> Interfaces:
        """Return the interfaces as they count while the node reports that generation as programmed."""
        if programmed >= self.generation:
            return self.interfaces
        return tuple(interface.until_programmed() for interface in self.interfaces)

    def with_rates_of(self, found: Reservation | Placement) -> Reservation:
        """Return the reservation with the interfaces of that generation of the pod's placement."""
        return msgspec.structs.replace(self, interfaces=found.interfaces, generation=found.generation)

    def bound_with(self, found: Reservation | Placement) -> Reservation:
        """Return the reservation as bound, with the placement that is known to be written."""
        stage = TRANSITIONS[ReservationEvent.FOUND_BOUND][self.stage] or Stage.BOUND
        return msgspec.structs.replace(
            self, interfaces=found.interfaces, generation=found.generation, stage=stage
        )

    def counts_as(self, reservation: Reservation) -> bool:
        """Report whether the other reservation uses the node equally, regardless of its stage."""
        counted = reservation.interfaces, reservation.generation, reservation.pod
        return (self.interfaces, self.generation, self.pod) == counted
