"""What the API server does to pods: defaults, validation, and how they go.

Source: `pkg/apis/core/v1/defaults.go`, `pkg/registry/core/pod/strategy.go`, the admission plugins
DefaultTolerationSeconds and Priority. Service account tokens are not mounted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from k8s_rdma.sim.cluster.objects import is_finished, name_of, node_name_of, spec_of
from k8s_rdma.sim.cluster.resources import PODS
from k8s_rdma.sim.cluster.status import invalid

if TYPE_CHECKING:
    from k8s_rdma.sim.cluster.objects import JsonObject

_TOLERATED_SECONDS = 300
_DEFAULT_GRACE_S = 30
_SPEC_DEFAULTS: JsonObject = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": _DEFAULT_GRACE_S,
    "dnsPolicy": "ClusterFirst",
    "serviceAccountName": "default",
    "serviceAccount": "default",
    "securityContext": {},
    "schedulerName": "default-scheduler",
    "priority": 0,
    "enableServiceLinks": True,
    "preemptionPolicy": "PreemptLowerPriority",
}
_CONTAINER_DEFAULTS: JsonObject = {
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}
_MUTABLE_SPEC = ("activeDeadlineSeconds", "tolerations", "schedulingGates")


def new_pod(pod: JsonObject, priority: JsonObject) -> JsonObject:
    """The pod as it is created: defaults filled in, status pending; StatusError 422 when it is wrong.

    priority: what a PriorityClass sets in its spec.
    """
    _validate(pod)
    given = spec_of(pod)
    spec = {**_SPEC_DEFAULTS, **given, **priority}
    spec["containers"] = [_with_defaults(container) for container in given["containers"]]
    if given.get("initContainers"):
        spec["initContainers"] = [_with_defaults(container) for container in given["initContainers"]]
    spec["tolerations"] = _tolerations(given.get("tolerations") or [])
    return {**pod, "spec": spec, "status": {"phase": "Pending", "qosClass": _qos_class(spec)}}


def check_spec_update(old: JsonObject, new: JsonObject) -> None:
    """Refuse (StatusError 422) an update of a pod's spec beyond what may change while it exists."""
    if not _gates(new) <= _gates(old):
        added = ", ".join(sorted(_gates(new) - _gates(old)))
        why = f"Forbidden: only deletion is allowed, but found new scheduling gates '{added}'"
        raise invalid(PODS, name_of(old), "spec.schedulingGates", "FieldValueForbidden", why)
    if _immutable(spec_of(old)) != _immutable(spec_of(new)):
        why = (
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions "
            "to existing tolerations)"
        )
        raise invalid(PODS, name_of(old), "spec", "FieldValueForbidden", why)


def grace_period_s(pod: JsonObject, asked_s: int | None) -> int:
    """How long a pod has to go, in seconds; 0: its object is removed at once.

    A pod that runs nowhere has nothing to be graceful about (source: `podStrategy.CheckGracefulDelete`).
    """
    if not node_name_of(pod) or is_finished(pod):
        return 0
    if asked_s is None:
        asked_s = int(spec_of(pod).get("terminationGracePeriodSeconds", _DEFAULT_GRACE_S))
    return asked_s if asked_s >= 0 else 1


def _validate(pod: JsonObject) -> None:
    containers = spec_of(pod).get("containers")
    if not containers:
        raise invalid(PODS, name_of(pod), "spec.containers", "FieldValueRequired", "Required value")
    for index, container in enumerate(containers):
        for field in ("name", "image"):
            if not container.get(field):
                path = f"spec.containers[{index}].{field}"
                raise invalid(PODS, name_of(pod), path, "FieldValueRequired", "Required value")


def _with_defaults(container: JsonObject) -> JsonObject:
    resources = container.get("resources") or {}
    if limits := resources.get("limits"):
        resources = {**resources, "requests": {**limits, **(resources.get("requests") or {})}}
    tag = container["image"].rpartition("/")[2].partition(":")[2]
    pull = "Always" if tag in {"", "latest"} else "IfNotPresent"
    return {**_CONTAINER_DEFAULTS, "imagePullPolicy": pull, **container, "resources": resources}


def _tolerations(given: list[JsonObject]) -> list[JsonObject]:
    added = []
    for taint in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(_tolerates_no_execute(toleration, taint) for toleration in given):
            toleration: dict[str, Any] = {"key": taint, "operator": "Exists", "effect": "NoExecute"}
            added.append({**toleration, "tolerationSeconds": _TOLERATED_SECONDS})
    return [*given, *added]


def _tolerates_no_execute(toleration: JsonObject, taint: str) -> bool:
    about = toleration.get("key", "") in {"", taint}
    return about and toleration.get("effect", "") in {"", "NoExecute"}


def _qos_class(spec: JsonObject) -> str:
    """Source: `pkg/apis/core/v1/helper/qos/qos.go`."""
    containers = [*spec["containers"], *spec.get("initContainers", [])]
    resources = [container["resources"] for container in containers]
    counted = [
        {name: amount for name, amount in part.get(kind, {}).items() if name in {"cpu", "memory"}}
        for part in resources
        for kind in ("limits", "requests")
    ]
    if not any(counted):
        return "BestEffort"
    complete = all(set(amounts) == {"cpu", "memory"} for amounts in counted)
    if complete and all(part["limits"] == part["requests"] for part in resources):
        return "Guaranteed"
    return "Burstable"


def _gates(pod: JsonObject) -> set[str]:
    return {gate["name"] for gate in spec_of(pod).get("schedulingGates") or ()}


def _immutable(spec: JsonObject) -> JsonObject:
    kept = {name: value for name, value in spec.items() if name not in _MUTABLE_SPEC}
    for field in ("containers", "initContainers"):
        if field in kept:
            kept[field] = [{**container, "image": ""} for container in kept[field]]
    return kept
