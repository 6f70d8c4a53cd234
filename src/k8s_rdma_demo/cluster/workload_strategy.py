"""Deployments and ReplicaSets as the API server takes them: defaults, validation, and their scale.

Source: `pkg/apis/apps/v1/defaults.go`, `pkg/apis/apps/validation/validation.go`, `pkg/registry/apps`. A
template's pods get their defaults when they are created.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma_demo.cluster.objects import (
    DEPLOYMENTS,
    REPLICA_SETS,
    JsonObject,
    ResourceType,
    labels_of,
    metadata,
    name_of,
    namespace_of,
    spec_of,
    status_of,
    uid_of,
)
from k8s_rdma_demo.cluster.selection import selects
from k8s_rdma_demo.cluster.status import bad_request, invalid

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKLOADS = (DEPLOYMENTS, REPLICA_SETS)
_HISTORY, _DEADLINE_S = 10, 600
_ROLLING: JsonObject = {"maxUnavailable": "25%", "maxSurge": "25%"}
_RESTARTS = frozenset({None, "", "Always"})


def complete_replica_set_spec(spec: JsonObject) -> JsonObject:
    """Return the specification of a ReplicaSet with defaults."""
    return {"replicas": 1, **{name: value for name, value in spec.items() if value is not None}}


def complete_deployment_spec(spec: JsonObject) -> JsonObject:
    """Return the specification of a Deployment with defaults."""
    strategy = {"type": "RollingUpdate", **(spec.get("strategy") or {})}
    if strategy["type"] == "RollingUpdate":
        strategy["rollingUpdate"] = _ROLLING | (strategy.get("rollingUpdate") or {})
    defaults = {"revisionHistoryLimit": _HISTORY, "progressDeadlineSeconds": _DEADLINE_S}
    return {**defaults, **complete_replica_set_spec(spec), "strategy": strategy}


def check_workload(resource: ResourceType, obj: JsonObject, old: JsonObject | None) -> None:
    """Refuse (StatusError 422) a Deployment or ReplicaSet that is wrong; the message names the field."""
    for path, why in _faults(obj, old):
        kind = "FieldValueRequired" if why.startswith("Required") else "FieldValueInvalid"
        raise invalid(resource, name_of(obj), path, kind, why)


def _faults(obj: JsonObject, old: JsonObject | None) -> Iterator[tuple[str, str]]:
    spec = spec_of(obj)
    selector, template = spec.get("selector") or {}, spec.get("template") or {}
    if not isinstance(spec["replicas"], int) or spec["replicas"] < 0:
        yield "spec.replicas", f"Invalid value: {spec['replicas']}: must be greater than or equal to 0"
    if not selector.get("matchLabels") and not selector.get("matchExpressions"):
        yield "spec.selector", "Required value"
        return
    if not selects(selector, labels_of(template)):
        yield "spec.template.metadata.labels", "Invalid value: `selector` does not match template `labels`"
    containers = spec_of(template).get("containers")
    if not containers:
        yield "spec.template.spec.containers", "Required value"
    for index, container in enumerate(containers or ()):
        for key in ("name", "image"):
            if not container.get(key):
                yield f"spec.template.spec.containers[{index}].{key}", "Required value"
    if (restarts := spec_of(template).get("restartPolicy")) not in _RESTARTS:
        why = f'Unsupported value: "{restarts}": supported values: "Always"'
        yield "spec.template.spec.restartPolicy", f"Invalid value: {why}"
    if old is not None and spec_of(old)["selector"] != spec["selector"]:
        yield "spec.selector", "Invalid value: field is immutable"


def scale_of(obj: JsonObject) -> JsonObject:
    """Return the `Scale` of a Deployment or ReplicaSet."""
    labels = (spec_of(obj).get("selector") or {}).get("matchLabels") or {}
    selector = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
    meta = metadata(obj)
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": name_of(obj),
            "namespace": namespace_of(obj),
            "uid": uid_of(obj),
            "resourceVersion": meta["resourceVersion"],
            "creationTimestamp": meta["creationTimestamp"],
        },
        "spec": {"replicas": spec_of(obj)["replicas"]},
        "status": {"replicas": int(status_of(obj).get("replicas") or 0), "selector": selector},
    }


def scaled(obj: JsonObject, scale: JsonObject) -> JsonObject:
    """Return a workload with the replicas of a `Scale`; StatusError 400 for a wrong number."""
    replicas = spec_of(scale).get("replicas") or 0
    if not isinstance(replicas, int):
        raise bad_request(f"Scale: spec.replicas: wanted an integer, found {replicas!r}")
    return {**obj, "spec": {**spec_of(obj), "replicas": replicas}}
