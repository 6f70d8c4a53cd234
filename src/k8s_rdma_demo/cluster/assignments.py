"""Which pods each node has, as the scheduler knows it: bound, about to be bound, and nominated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma_demo.cluster.objects import is_finished, node_name_of, priority_of, status_of, uid_of

if TYPE_CHECKING:
    from k8s_rdma_demo.cluster.objects import JsonObject


class Assignments:
    """Pods by node. Source: `pkg/scheduler/backend/cache`, `backend/queue/nominator.go`."""

    def __init__(self) -> None:
        self._nodes: dict[str, dict[str, JsonObject]] = {}
        self._assumed: dict[str, str] = {}
        self._nominated: dict[str, tuple[str, JsonObject]] = {}

    def take(self, old: JsonObject | None, new: JsonObject | None) -> None:
        """A pod changed, came (old is None) or is gone (new is None)."""
        if old is not None and node_name_of(old):
            self._drop(node_name_of(old), uid_of(old))
        if new is None or is_finished(new) or node_name_of(new):
            self.forget(uid_of(new or old or {}))
            self.nominate(new or old or {}, "")
        if new is not None and node_name_of(new) and not is_finished(new):
            self._nodes.setdefault(node_name_of(new), {})[uid_of(new)] = new
        elif new is not None and not is_finished(new):
            told = str(status_of(new).get("nominatedNodeName") or "")
            before = str(status_of(old or {}).get("nominatedNodeName") or "")
            if told != before or uid_of(new) in self._nominated:
                self.nominate(new, told if told != before else self.nominated(uid_of(new)))

    def assume(self, pod: JsonObject, node: str) -> None:
        """The pod is being bound there; no room is made for it any more."""
        self.forget(uid_of(pod))
        self.nominate(pod, "")
        self._assumed[uid_of(pod)] = node
        self._nodes.setdefault(node, {})[uid_of(pod)] = pod

    def fail(self, pod: JsonObject) -> None:
        """The pod was not bound: the room that its status names is its own again."""
        self.forget(uid_of(pod))
        self.nominate(pod, str(status_of(pod).get("nominatedNodeName") or ""))

    def forget(self, uid: str) -> None:
        """The pod is not being bound any more."""
        node = self._assumed.pop(uid, None)
        if node is not None:
            self._drop(node, uid)

    def on(self, node: str) -> tuple[JsonObject, ...]:
        """The node's pods."""
        return tuple(self._nodes.get(node, {}).values())

    def nominate(self, pod: JsonObject, node: str) -> None:
        """Room is made there for the pod; an empty name: nowhere."""
        self._nominated.pop(uid_of(pod), None)
        if node:
            self._nominated[uid_of(pod)] = node, pod

    def nominated(self, uid: str) -> str:
        """Where room is made for the pod, empty if nowhere."""
        return self._nominated.get(uid, ("", {}))[0]

    def nominated_on(self, node: str) -> list[JsonObject]:
        """The pods that room is made for there."""
        return [pod for where, pod in self._nominated.values() if where == node]

    def beside(self, pod: JsonObject, node: str) -> tuple[JsonObject, ...]:
        """Those no less important than that pod that room is made for there: they count as well."""
        return tuple(
            other
            for other in self.nominated_on(node)
            if uid_of(other) != uid_of(pod) and priority_of(other) >= priority_of(pod)
        )

    def _drop(self, node: str, uid: str) -> None:
        pods = self._nodes.get(node, {})
        pods.pop(uid, None)
        if not pods:
            self._nodes.pop(node, None)
