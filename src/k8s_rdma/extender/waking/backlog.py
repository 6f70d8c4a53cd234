"""Nodes that changed, to be compared with requests that wait: by namespace, so that none waits for others."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from k8s_rdma.core.ids import NodeName
    from k8s_rdma.core.request import Request
    from k8s_rdma.extender.cluster.state import Situation


class Comparison(NamedTuple):
    """A namespace's request that waits, and a node. before: None where it may help whoever fits it now."""

    namespace: str
    node: NodeName
    before: Situation | None
    request: Request


class Backlog:
    """What is still to be compared. Each namespace has its nodes in the order in which they changed."""

    def __init__(self) -> None:
        self._requests: dict[str, dict[NodeName, list[Request]]] = {}
        self._before: dict[NodeName, Situation | None] = {}
        self._begun: set[NodeName] = set()

    def __bool__(self) -> bool:
        """Whether there is something."""
        return bool(self._requests)

    def put(self, node: NodeName, before: Situation | None, requests: Iterable[tuple[str, Request]]) -> None:
        """Compare the node with these, each with its namespace; what was to be compared with it is replaced.

        A change on top of one that nothing was compared with is one change.
        """
        if node in self._begun:
            before = None
        elif before is not None:
            before = self._before.get(node, before)
        self.drop(node)
        for namespace, request in requests:
            self._before[node] = before
            self._requests.setdefault(namespace, {}).setdefault(node, []).append(request)

    def take(self, used: Callable[[str], float]) -> Comparison:
        """The next comparison of the namespace that has used least; there must be one."""
        namespace = min(self._requests, key=used)
        node, requests = next(iter(self._requests[namespace].items()))
        self._begun.add(node)
        found = Comparison(namespace, node, self._before[node], requests.pop(0))
        if not requests:
            self._end(namespace, node)
            if not any(node in nodes for nodes in self._requests.values()):
                self.drop(node)
        return found

    def drop(self, node: NodeName) -> None:
        """Compare the node with nothing more."""
        for namespace in [each for each, nodes in self._requests.items() if node in nodes]:
            self._end(namespace, node)
        self._before.pop(node, None)
        self._begun.discard(node)

    def _end(self, namespace: str, node: NodeName) -> None:
        nodes = self._requests[namespace]
        del nodes[node]
        if not nodes:
            del self._requests[namespace]
