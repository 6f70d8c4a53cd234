"""Placements held on nodes for pods that are not bound yet, until a time.

Values in, values out; no clock. A hold is no reservation: nothing was promised to anyone, and who counts it
decides (`verbs`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.core.ids import PodUid
from k8s_rdma.core.placement import PlacedInterface

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from k8s_rdma.core.ids import NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """What a pod may come to take of a node.

    pod: `namespace/name`. priority: it counts against pods of this priority or a lower one. until: seconds of
    the clock that the caller uses; it counts no more from then on. victims: who is evicted for it there.
    """

    interfaces: tuple[PlacedInterface, ...]
    pod: str
    priority: int
    until: float
    victims: Collection[PodUid] = ()


class Holds:
    """The holds by node and pod."""

    def __init__(self) -> None:
        self._nodes: dict[NodeName, dict[PodUid, Hold]] = {}
        self._places: dict[PodUid, set[NodeName]] = {}

    def __len__(self) -> int:
        """For how many pods there is any, past its time or not."""
        return len(self._places)

    def hold(self, node: NodeName, uid: PodUid, hold: Hold) -> None:
        """Hold it, instead of what was held there for the pod."""
        self._nodes.setdefault(node, {})[uid] = hold
        self._places.setdefault(uid, set()).add(node)

    def held(self, node: NodeName, uid: PodUid) -> Hold | None:
        """What is held there for the pod."""
        return self._nodes.get(node, {}).get(uid)

    def release(self, uid: PodUid) -> dict[NodeName, Hold]:
        """Hold nothing for the pod any more; what was held."""
        return {node: self._drop(node, uid) for node in self._places.pop(uid, ())}

    def expire(self, now: float) -> dict[NodeName, dict[PodUid, Hold]]:
        """Forget those whose time is over, and tell which."""
        over = {
            node: holds
            for node, held in self._nodes.items()
            if (holds := {uid: hold for uid, hold in held.items() if hold.until <= now})
        }
        for node, holds in over.items():
            for uid in holds:
                self._drop(node, uid)
                self._places[uid].discard(node)
                if not self._places[uid]:
                    del self._places[uid]
        return over

    def against(
        self, node: NodeName, uid: PodUid, priority: int, now: float
    ) -> Mapping[PodUid, tuple[PlacedInterface, ...]]:
        """What counts there against a pod of that priority; its own hold does not."""
        return {
            other: hold.interfaces
            for other, hold in self._nodes.get(node, {}).items()
            if other != uid and hold.priority >= priority and hold.until > now
        }

    def all_against(self, uid: PodUid, priority: int, now: float) -> Iterator[tuple[NodeName, Hold]]:
        """All that counts against a pod of that priority, on whatever node."""
        for node, held in self._nodes.items():
            for other, hold in held.items():
                if other != uid and hold.priority >= priority and hold.until > now:
                    yield node, hold

    def next_end(self) -> float | None:
        """When the time of the first one is over; None when there is none."""
        return min((hold.until for held in self._nodes.values() for hold in held.values()), default=None)

    def nodes(self) -> frozenset[NodeName]:
        """Where anything is held."""
        return frozenset(self._nodes)

    def of(self, uid: PodUid) -> frozenset[NodeName]:
        """Where something is held for the pod."""
        return frozenset(self._places.get(uid, ()))

    def _drop(self, node: NodeName, uid: PodUid) -> Hold:
        held = self._nodes[node]
        hold = held.pop(uid)
        if not held:
            del self._nodes[node]
        return hold
