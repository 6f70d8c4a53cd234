"""Nodes whose data makes a decision fail are not decided upon until they report something else.

What a node reports is checked where it comes in (`wire.report_bounds`, `cluster.facts`). What passes and
makes the code fail all the same is a defect, and somebody's data brings it about at a time of his choice: it
must cost that node, or that one pod on that node, and neither an answer about others nor the process.

A decision is made of a pod's request and a node's situation. Whether the node's data is at fault is found
out with the simplest request there is: where that fails, too, the node cannot be read. Else it is the pod
together with the node, and that pod alone is refused there, so that no pod can take nodes from others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar
from weakref import WeakSet

import structlog

from k8s_rdma.core.placement import place
from k8s_rdma.core.request import InterfaceRequest, Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from k8s_rdma.core.ids import NodeName
    from k8s_rdma.extender.cluster.state import ClusterState, Situation
    from k8s_rdma.extender.telling.metrics import Reading

T = TypeVar("T")

_SIMPLEST = Request((InterfaceRequest(),))
_MOST_LOGGED = 256
_MOST_SHOWN = 300
_log = structlog.get_logger()


class Quarantine:
    """Makes decisions that may fail; counts those that did, and logs each kind of failure once."""

    def __init__(self) -> None:
        """Of no cluster yet: `watch` says of which."""
        self.failures = 0
        self._state: ClusterState | None = None
        self._logged: set[str] = set()
        self._looked_at: WeakSet[Situation] = WeakSet()

    def watch(self, state: ClusterState) -> None:
        """Quarantine the nodes of this cluster."""
        self._state = state

    def decide(self, situation: Situation, decision: Callable[[], T], otherwise: Callable[[str], T]) -> T:
        """What the decision on a situation is; where it fails, what `otherwise` makes of the reason."""
        try:
            return decision()
        except Exception as error:  # whatever it is, it is of this situation alone
            why = self.failed(error)
            self._isolate(situation, why)
            return otherwise(why)

    def failed(self, error: Exception, node: NodeName | None = None) -> str:
        """Take note of a failure, of this node if that is known; the reason, in a clause."""
        self.failures += 1
        why = f"what is known of it makes decisions fail: {type(error).__name__}: {error}"[:_MOST_SHOWN]
        if why not in self._logged and len(self._logged) < _MOST_LOGGED:
            self._logged.add(why)
            _log.error("decision_failed", node=node, error=why, exc_info=error)
        return why

    def _isolate(self, situation: Situation, why: str) -> None:
        """Quarantine the nodes of the same PFs on which nothing can be decided."""
        if self._state is None or situation in self._looked_at:
            return
        self._looked_at.add(situation)
        pfs = situation.inventory.pfs
        alike = {each for each in self._state.situations.values() if each.inventory.pfs == pfs}
        undecidable = {each for each in alike if not _is_decidable(each)}
        for node, each in list(self._state.situations.items()):
            if each in undecidable:
                self._state.quarantine(node, why)

    def readings(self) -> dict[str, Reading]:
        """What metrics show."""
        state = self._state
        return {
            "decisions_failed_total": (
                "Decisions that failed for what is known of a node; a defect, see the log.",
                "counter",
                lambda: self.failures,
            ),
            "nodes_quarantined": (
                "Nodes that are not decided upon until they report something else.",
                "gauge",
                lambda: 0 if state is None else state.quarantined(),
            ),
        }


def _is_decidable(situation: Situation) -> bool:
    """Whether the simplest request can be decided."""
    try:
        place(_SIMPLEST, situation.inventory, situation.used)
    except Exception:
        return False
    return True
