"""Nodes that are not ready, or whose kubelet is silent: their taints, and the pods that these end.

Source (Kubernetes 1.36): `pkg/controller/nodelifecycle/node_lifecycle_controller.go`,
`pkg/controller/tainteviction/taint_eviction.go`. Not simulated: zones with their rates of evictions. A node
that never had a Lease is not watched, because most nodes in tests have only a name.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from k8s_rdma_demo.cluster.objects import (
    JsonObject,
    condition_of,
    is_terminating,
    node_name_of,
    parse_timestamp,
    spec_of,
    timestamp,
)

NOT_READY, UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"
NODE_LEASES = "kube-node-lease"
_EFFECTS = ("NoSchedule", "NoExecute")
_OURS = frozenset({NOT_READY, UNREACHABLE})


def silent_condition(node: JsonObject, moment: str) -> JsonObject | None:
    """Return the condition Ready of a node whose kubelet is silent; None if it has that already."""
    ready = condition_of(node, "Ready") or {}
    if ready.get("status") == "Unknown":
        return None
    return {
        **ready,
        "type": "Ready",
        "status": "Unknown",
        "lastTransitionTime": moment,
        "reason": "NodeStatusUnknown",
        "message": "Kubelet stopped posting node status.",
    }


def due_taints(node: JsonObject, moment: str) -> list[JsonObject] | None:
    """Return the taints that the node's condition Ready asks for, beside others; None if it has them.

    A taint that it has already keeps the time at which it was added.
    """
    status = (condition_of(node, "Ready") or {"status": "Unknown"}).get("status")
    key = {"True": "", "Unknown": UNREACHABLE}.get(str(status), NOT_READY)
    present: list[JsonObject] = spec_of(node).get("taints") or []
    added = {(taint["key"], taint["effect"]): taint for taint in present}
    taints = [taint for taint in present if taint["key"] not in _OURS]
    for effect in _EFFECTS if key else ():
        taint = added.get((key, effect)) or {"key": key, "effect": effect, "timeAdded": moment}
        taints.append(taint)
    return None if taints == present else taints


def eviction_time(pod: JsonObject, node: JsonObject) -> datetime | None:
    """Return the moment from which the node's taints end a pod; None if they never do.

    A taint that the pod does not tolerate ends it at once, and others after the shortest `tolerationSeconds`.
    """
    if is_terminating(pod) or not node_name_of(pod):
        return None
    ends: list[datetime] = []
    for taint in spec_of(node).get("taints") or ():
        if taint["effect"] != "NoExecute" or not taint.get("timeAdded"):
            continue
        added = parse_timestamp(taint["timeAdded"])
        tolerating = [item for item in spec_of(pod).get("tolerations") or () if _tolerates(item, taint)]
        if not tolerating:
            ends.append(added)
            continue
        seconds = [
            item["tolerationSeconds"] for item in tolerating if item.get("tolerationSeconds") is not None
        ]
        if seconds:
            ends.append(added + timedelta(seconds=max(0, min(seconds))))
    return min(ends, default=None)


def _tolerates(toleration: JsonObject, taint: JsonObject) -> bool:
    about = toleration.get("key", "") in {"", taint["key"]}
    effect = toleration.get("effect", "") in {"", taint["effect"]}
    exists = toleration.get("operator", "Equal") == "Exists"
    return about and effect and (exists or toleration.get("value", "") == taint.get("value", ""))


def not_ready_status(pod: JsonObject, now: datetime) -> JsonObject | None:
    """Return the status patch of a pod whose node is not ready; None if it is not ready already."""
    ready = condition_of(pod, "Ready")
    if ready is None or ready.get("status") == "False":
        return None
    condition = {
        "type": "Ready",
        "status": "False",
        "lastTransitionTime": timestamp(now),
        "reason": "NodeNotReady",
        "message": "Node is not ready",
    }
    return {"conditions": [condition]}
