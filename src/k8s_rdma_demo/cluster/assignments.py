"""The scheduler's cache of pods by node: bound, assumed and nominated ones.

Source: `pkg/scheduler/backend/cache`, `backend/queue/nominator.go`.
"""

from __future__ import annotations

from k8s_rdma_demo.cluster.objects import (
    JsonObject,
    is_finished,
    node_name_of,
    priority_of,
    status_of,
    uid_of,
)


class Assignments:
    """Pods by node."""

    def __init__(self) -> None:
        self._nodes: dict[str, dict[str, JsonObject]] = {}
        self._assumed: dict[str, str] = {}
        self._nominated: dict[str, tuple[str, JsonObject]] = {}

    def update(self, old: JsonObject | None, new: JsonObject | None) -> None:
        """Apply the change of a pod; old is None if it was created, new if it was deleted."""
        if old is not None and node_name_of(old):
            self._drop(node_name_of(old), uid_of(old))
        if new is None or is_finished(new) or node_name_of(new):
            self.forget(uid_of(new or old or {}))
            self.nominate(new or old or {}, "")
        if new is not None and node_name_of(new) and not is_finished(new):
            self._nodes.setdefault(node_name_of(new), {})[uid_of(new)] = new
        elif new is not None and not is_finished(new):
            nominated = str(status_of(new).get("nominatedNodeName") or "")
            previous = str(status_of(old or {}).get("nominatedNodeName") or "")
            if nominated != previous or uid_of(new) in self._nominated:
                self.nominate(new, nominated if nominated != previous else self.nominated(uid_of(new)))

    def assume(self, pod: JsonObject, node: str) -> None:
        """Count a pod that is being bound on its node; no room is made for it any more."""
        self.forget(uid_of(pod))
        self.nominate(pod, "")
        self._assumed[uid_of(pod)] = node
        self._nodes.setdefault(node, {})[uid_of(pod)] = pod

    def fail(self, pod: JsonObject) -> None:
        """Stop counting a pod that was not bound: the room that its status names is its own again."""
        self.forget(uid_of(pod))
        self.nominate(pod, str(status_of(pod).get("nominatedNodeName") or ""))

    def forget(self, uid: str) -> None:
        """Stop counting a pod that is not being bound any more."""
        node = self._assumed.pop(uid, None)
        if node is not None:
            self._drop(node, uid)

    def on(self, node: str) -> tuple[JsonObject, ...]:
        """Return the node's pods."""
        return tuple(self._nodes.get(node, {}).values())

    def nominate(self, pod: JsonObject, node: str) -> None:
        """Keep the room that is made for the pod on a node; an empty name: on no node."""
        self._nominated.pop(uid_of(pod), None)
        if node:
            self._nominated[uid_of(pod)] = node, pod

    def nominated(self, uid: str) -> str:
        """Return the pod's nominated node; empty: it has not been nominated."""
        return self._nominated.get(uid, ("", {}))[0]

    def nominated_on(self, node: str) -> list[JsonObject]:
        """Return the pods that are nominated to the node."""
        return [pod for nominated_node, pod in self._nominated.values() if nominated_node == node]

    def nominated_rivals(self, pod: JsonObject, node: str) -> tuple[JsonObject, ...]:
        """Return the pods nominated to the node with at least this pod's priority: they count too."""
        return tuple(
            rival
            for rival in self.nominated_on(node)
            if uid_of(rival) != uid_of(pod) and priority_of(rival) >= priority_of(pod)
        )

    def _drop(self, node: str, uid: str) -> None:
        pods = self._nodes.get(node, {})
        pods.pop(uid, None)
        if not pods:
            self._nodes.pop(node, None)
