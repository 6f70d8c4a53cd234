"""Which pods the API server has bound where: a node's word for that counts for nothing.

A node may report any UID and any namespace. What it reports counts as used on that node, whoever is said to
hold it; towards the limit of a namespace counts a pod that the API server says is that namespace's and bound
to that very node.
"""

from __future__ import annotations

from sys import intern
from types import MappingProxyType
from typing import TYPE_CHECKING

from k8s_rdma.core.ids import NodeName, PodUid

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from k8s_rdma.kube.api import PodView

_NOBODY: Mapping[PodUid, str] = MappingProxyType({})


class BoundPods:
    """The unfinished pods that are bound, by node, each with its namespace.

    on_change: told of every pod that is bound, or not any more, and where.
    """

    def __init__(self, on_change: Callable[[NodeName, PodUid], None] = lambda _node, _uid: None) -> None:
        self.on_change = on_change
        self._nodes: dict[NodeName, dict[PodUid, str]] = {}
        self._places: dict[PodUid, NodeName] = {}

    def see(self, pod: PodView, node: NodeName) -> None:
        """The pod is bound there, and not finished."""
        if pod.uid in self._places:
            return
        node = NodeName(intern(node))
        self._places[pod.uid] = node
        self._nodes.setdefault(node, {})[pod.uid] = intern(pod.namespace)
        self.on_change(node, pod.uid)

    def end(self, uid: PodUid) -> None:
        """The pod is finished or gone."""
        node = self._places.pop(uid, None)
        if node is None:
            return
        del self._nodes[node][uid]
        if not self._nodes[node]:
            del self._nodes[node]
        self.on_change(node, uid)

    def end_missing(self, listed: Collection[PodUid]) -> None:
        """Whoever is not among all pods that there are is gone."""
        for uid in [uid for uid in self._places if uid not in listed]:
            self.end(uid)

    def on(self, node: NodeName) -> Mapping[PodUid, str]:
        """The namespaces of those on the node."""
        return self._nodes.get(node, _NOBODY)
