"""Names of the cluster's nodes, as the API server's watch shows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.core.types import NodeName
from k8s_rdma.extender.node_cache import ClusterState
from k8s_rdma.extender.node_source import NodeSource
from k8s_rdma.kube.informer import Changed, Deleted, Event, Listed, handle_item

if TYPE_CHECKING:
    from k8s_rdma.kube.api import NodeView

_log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class NodeNames:
    """Keeps the nodes' names, and hands their addresses to the source of node states.

    listed: whether all nodes have been seen once.
    """

    state: ClusterState
    states: NodeSource
    listed: bool = False
    _names: set[NodeName] = field(default_factory=set)

    def names(self) -> frozenset[NodeName]:
        """Return the names of all nodes."""
        return frozenset(self._names)

    def may_exist(self, node: NodeName) -> bool:
        """Report whether the node exists, or this is not known yet."""
        return not self.listed or node in self._names

    def on_event(self, event: Event[NodeView]) -> None:
        """Handle an event of the watch."""
        match event:
            case Listed(nodes):
                for removed in self._names - {node.name for node in nodes}:
                    self._forget(removed)
                for node in nodes:
                    handle_item("nodes", self._learn, node)
                self.listed = True
                _log.info("nodes_listed", nodes=len(nodes))
            case Changed(node):
                self._learn(node)
            case Deleted(node):
                self._forget(node.name)

    def _learn(self, node: NodeView) -> None:
        self._names.add(node.name)
        self.states.learn(node.name, node.addresses)

    def _forget(self, node: NodeName) -> None:
        self._names.discard(node)
        self.states.forget(node)
        self.state.forget(node)
