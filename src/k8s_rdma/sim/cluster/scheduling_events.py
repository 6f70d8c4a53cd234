"""Which changes make kube-scheduler try a refused pod again (source: `framework/events.go`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.sim.cluster.objects import (
    annotations_of,
    is_finished,
    labels_of,
    metadata,
    node_name_of,
    spec_of,
    status_of,
)

if TYPE_CHECKING:
    from k8s_rdma.sim.cluster.objects import JsonObject


def node_change_may_help(old: JsonObject | None, new: JsonObject | None) -> bool:
    """Whether a change of a node may let a refused pod fit: more than a heartbeat, and not its end."""
    if new is None:
        return False
    return old is None or _as_seen_by_filters(old) != _as_seen_by_filters(new)


def assigned_pod_ended(old: JsonObject | None, new: JsonObject | None) -> bool:
    """Whether a pod that had a node is gone or has finished: what it used may be free."""
    had_node = old is not None and bool(node_name_of(old)) and not is_finished(old)
    return had_node and (new is None or is_finished(new))


def own_change_may_help(old: JsonObject, new: JsonObject) -> bool:
    """Whether a waiting pod itself changed; what is written to its status is the scheduler's own."""
    return _without_status(old) != _without_status(new)


def _as_seen_by_filters(node: JsonObject) -> tuple[object, ...]:
    conditions = status_of(node).get("conditions") or []
    return (
        labels_of(node),
        annotations_of(node),
        spec_of(node).get("taints"),
        spec_of(node).get("unschedulable"),
        status_of(node).get("allocatable"),
        {condition["type"]: condition["status"] for condition in conditions},
    )


def _without_status(pod: JsonObject) -> tuple[object, ...]:
    kept = {k: v for k, v in metadata(pod).items() if k not in {"resourceVersion", "managedFields"}}
    return kept, spec_of(pod)
