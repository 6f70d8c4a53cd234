"""The bound pods that may hold interfaces, as the pod watch shows them: who could make room for others.

Only what is needed to choose among them is kept: there are a hundred thousand in a large cluster.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from sys import intern
from types import MappingProxyType
from typing import TYPE_CHECKING

from k8s_rdma.core.ids import NodeName, PodUid
from k8s_rdma.core.quantities import Demand
from k8s_rdma.wire.annotation import ANNOTATION
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION

if TYPE_CHECKING:
    from collections.abc import Collection

    from k8s_rdma.kube.api import PodView

_MAX_ENDED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupant:
    """A pod on a node.

    started: `status.startTime` as the API writes it, so that it sorts as text; empty before it runs.
    demand: as in `PodView`. labels: what disruption budgets select it by.
    """

    uid: PodUid
    namespace: str
    name: str
    priority: int
    started: str = ""
    demand: Demand | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@lru_cache(maxsize=16_384)
def _shared(labels: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    """One object for all pods of an owner, which have the same."""
    return dict(labels)


_NOBODY: Mapping[PodUid, Occupant] = MappingProxyType({})


class Occupants:
    """The occupants by node, and who of them is on the way out."""

    def __init__(self) -> None:
        self._nodes: dict[NodeName, dict[PodUid, Occupant]] = {}
        self._places: dict[PodUid, NodeName] = {}
        self._going: dict[NodeName, set[PodUid]] = {}
        self._ended: OrderedDict[PodUid, NodeName] = OrderedDict()

    def see(self, pod: PodView, node: NodeName) -> None:
        """The pod is bound there, and not finished."""
        if ANNOTATION not in pod.annotations and PLACEMENT_ANNOTATION not in pod.annotations:
            return
        node = NodeName(intern(node))
        self._nodes.setdefault(node, {})[pod.uid] = Occupant(
            uid=pod.uid,
            namespace=intern(pod.namespace),
            name=pod.name,
            priority=pod.priority,
            started=pod.started,
            demand=pod.demand,
            labels=_shared(tuple(pod.labels.items())),
        )
        self._places[pod.uid] = node
        if pod.terminating:
            self._going.setdefault(node, set()).add(pod.uid)

    def end(self, uid: PodUid) -> None:
        """The pod is finished or gone; its node may hold its interfaces for a while yet."""
        node = self._places.pop(uid, None)
        if node is None:
            return
        del self._nodes[node][uid]
        if not self._nodes[node]:
            del self._nodes[node]
        self._going.setdefault(node, set()).add(uid)
        self._ended[uid] = node
        if len(self._ended) > _MAX_ENDED:
            self._forget(*self._ended.popitem(last=False))

    def end_missing(self, listed: Collection[PodUid]) -> None:
        """Whoever is not among all pods that there are is gone."""
        for uid in [uid for uid in self._places if uid not in listed]:
            self.end(uid)

    def on(self, node: NodeName) -> Mapping[PodUid, Occupant]:
        """Those on the node."""
        return self._nodes.get(node, _NOBODY)

    def going(self, node: NodeName) -> Collection[PodUid]:
        """Those who give back by themselves what they hold there: terminating, finished or gone."""
        return self._going.get(node, ())

    def _forget(self, uid: PodUid, node: NodeName) -> None:
        going = self._going[node]
        going.discard(uid)
        if not going:
            del self._going[node]
