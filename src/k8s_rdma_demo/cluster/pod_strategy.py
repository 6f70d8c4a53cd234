"""Pods as the API server takes them: defaults, validation, permitted updates, grace periods.

Source: `pkg/registry/core/pod/strategy.go`, `pkg/apis/core/v1/defaults.go`, `pkg/apis/core/v1/conversion.go`
(`serviceAccount`), `pkg/apis/core/v1/helper/qos/qos.go`; the admission plugin DefaultTolerationSeconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from k8s_rdma.wire.pod_spec import quantity
from k8s_rdma_demo.cluster.objects import PODS, JsonObject, is_finished, name_of, node_name_of, spec_of
from k8s_rdma_demo.cluster.status import invalid

if TYPE_CHECKING:
    from collections.abc import Iterator

TOLERATED_S = 300
_DEFAULT_GRACE_S = 30
_SPEC_DEFAULTS: JsonObject = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": _DEFAULT_GRACE_S,
    "dnsPolicy": "ClusterFirst",
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
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_PROBE_DEFAULTS: JsonObject = {
    "timeoutSeconds": 1,
    "periodSeconds": 10,
    "successThreshold": 1,
    "failureThreshold": 3,
}
_HOOKS = ("postStart", "preStop")
_VOLUME_DEFAULTS: dict[str, JsonObject] = {
    "secret": {"defaultMode": 0o644},
    "configMap": {"defaultMode": 0o644},
    "downwardAPI": {"defaultMode": 0o644},
    "projected": {"defaultMode": 0o644},
    "hostPath": {"type": ""},
}
_TOKEN_EXPIRATION_S = 3600
_MUTABLE_SPEC = ("activeDeadlineSeconds", "tolerations", "schedulingGates")

_QOS_RESOURCES = frozenset({"cpu", "memory"})


def new_pod(pod: JsonObject, priority: JsonObject, tolerated_s: int = TOLERATED_S) -> JsonObject:
    """Return the pod as created: defaults filled in, status pending; StatusError 422 when it is wrong.

    priority: the fields that a PriorityClass sets in its spec. tolerated_s: the seconds for which it
    tolerates a node that is not ready, unless it says so itself.
    """
    spec = complete_spec(pod, priority, tolerated_s)
    return {**pod, "spec": spec, "status": {"phase": "Pending", "qosClass": _qos_class(spec)}}


def complete_spec(pod: JsonObject, priority: JsonObject, tolerated_s: int = TOLERATED_S) -> JsonObject:
    """Return the pod's spec with defaults filled in; StatusError 422 when it is wrong."""
    _validate(pod)
    requested = spec_of(pod)
    # `serviceAccount` is the deprecated name of `serviceAccountName`.
    account = requested.get("serviceAccountName") or requested.get("serviceAccount") or "default"
    accounts = {"serviceAccountName": account, "serviceAccount": account}
    spec = {**_SPEC_DEFAULTS, **requested, **accounts, **priority}
    on_host = bool(requested.get("hostNetwork"))
    for key in ("containers", "initContainers"):
        if key in requested:
            spec[key] = [_with_defaults(container, on_host=on_host) for container in requested[key]]
    if "volumes" in requested:
        spec["volumes"] = [_volume(volume) for volume in requested["volumes"]]
    if "resources" in requested:
        spec["resources"] = _with_requests(requested["resources"])
    spec["tolerations"] = _tolerations(requested.get("tolerations") or [], tolerated_s)
    return spec


def check_spec_update(old: JsonObject, new: JsonObject) -> None:
    """Refuse (StatusError 422) an update of a pod's spec beyond the fields that may change."""
    if not _gates(new) <= _gates(old):
        added = ", ".join(sorted(_gates(new) - _gates(old)))
        why = f"Forbidden: only deletion is allowed, but found new scheduling gates '{added}'"
        raise invalid(PODS, name_of(old), "spec.schedulingGates", "FieldValueForbidden", why)
    if _immutable(spec_of(old)) != _immutable(spec_of(new)):
        why = (
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions "
            "to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it "
            "was previously negative)"
        )
        raise invalid(PODS, name_of(old), "spec", "FieldValueForbidden", why)


def grace_period_s(pod: JsonObject, requested_s: int | None) -> int:
    """Return the grace period of a pod in seconds; 0: its object is removed at once.

    A pod that has no node, or has finished, gets no grace period (source: `podStrategy.CheckGracefulDelete`).
    """
    if not node_name_of(pod) or is_finished(pod):
        return 0
    if requested_s is None:
        requested_s = int(spec_of(pod).get("terminationGracePeriodSeconds", _DEFAULT_GRACE_S))
    return requested_s if requested_s >= 0 else 1


def _validate(pod: JsonObject) -> None:
    containers = spec_of(pod).get("containers")
    if not containers:
        raise invalid(PODS, name_of(pod), "spec.containers", "FieldValueRequired", "Required value")
    for index, container in enumerate(containers):
        for key in ("name", "image"):
            if not container.get(key):
                path = f"spec.containers[{index}].{key}"
                raise invalid(PODS, name_of(pod), path, "FieldValueRequired", "Required value")


def _with_defaults(container: JsonObject, *, on_host: bool) -> JsonObject:
    tag = container["image"].rpartition("/")[2].partition(":")[2]
    pull = "Always" if tag in {"", "latest"} else "IfNotPresent"
    complete = {**_CONTAINER_DEFAULTS, "imagePullPolicy": pull, **container}
    complete["resources"] = _with_requests(container.get("resources") or {})
    if "ports" in container:
        complete["ports"] = [_port(port, on_host=on_host) for port in container["ports"]]
    if "env" in container:
        complete["env"] = [_variable(variable) for variable in container["env"]]
    for name in _PROBES:
        if name in container:
            complete[name] = _PROBE_DEFAULTS | _action(container[name])
    if "lifecycle" in container:
        hooks: JsonObject = container["lifecycle"]
        complete["lifecycle"] = hooks | {name: _action(hooks[name]) for name in _HOOKS if name in hooks}
    return complete


def _with_requests(resources: JsonObject) -> JsonObject:
    """Return resources whose limits are requests as well if there are no other ones."""
    limits = resources.get("limits")
    return {**resources, "requests": {**limits, **(resources.get("requests") or {})}} if limits else resources


def _port(port: JsonObject, *, on_host: bool) -> JsonObject:
    host_port = {"hostPort": port["containerPort"]} if on_host and "containerPort" in port else {}
    return {"protocol": "TCP", **host_port, **port}


def _variable(variable: JsonObject) -> JsonObject:
    source: JsonObject = variable.get("valueFrom") or {}
    return {**variable, "valueFrom": _reference(source)} if source else variable


def _reference(item: JsonObject) -> JsonObject:
    """Return an item whose `fieldRef`, if it has one, names its version."""
    return {**item, "fieldRef": {"apiVersion": "v1", **item["fieldRef"]}} if item.get("fieldRef") else item


def _action(action: JsonObject) -> JsonObject:
    """Return the action of a probe or a hook with defaults."""
    complete = {name: value for name, value in action.items() if value}
    if "httpGet" in action:
        request = {name: value for name, value in action["httpGet"].items() if value}
        complete["httpGet"] = {"path": "/", "scheme": "HTTP", **request}
    if "grpc" in action:
        complete["grpc"] = {"service": "", **action["grpc"]}
    return complete


def _volume(volume: JsonObject) -> JsonObject:
    if not volume.keys() - {"name"}:
        return {**volume, "emptyDir": {}}
    complete = dict(volume)
    for kind, defaults in _VOLUME_DEFAULTS.items():
        if kind in volume:
            complete[kind] = defaults | _with_references(volume[kind])
    if "projected" in volume:
        sources = complete["projected"].get("sources") or []
        complete["projected"]["sources"] = [_projection(source) for source in sources]
    return complete


def _projection(source: JsonObject) -> JsonObject:
    complete = dict(source)
    if "serviceAccountToken" in source:
        expiration = {"expirationSeconds": _TOKEN_EXPIRATION_S}
        complete["serviceAccountToken"] = expiration | source["serviceAccountToken"]
    if "downwardAPI" in source:
        complete["downwardAPI"] = _with_references(source["downwardAPI"])
    return complete


def _with_references(volume: JsonObject) -> JsonObject:
    return (
        {**volume, "items": [_reference(item) for item in volume["items"]]} if "items" in volume else volume
    )


def _tolerations(tolerations: list[JsonObject], tolerated_s: int) -> list[JsonObject]:
    added = []
    for taint in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(_tolerates_no_execute(toleration, taint) for toleration in tolerations):
            toleration: dict[str, Any] = {"key": taint, "operator": "Exists", "effect": "NoExecute"}
            added.append({**toleration, "tolerationSeconds": tolerated_s})
    return [*tolerations, *added]


def _tolerates_no_execute(toleration: JsonObject, taint: str) -> bool:
    about = toleration.get("key", "") in {"", taint}
    return about and toleration.get("effect", "") in {"", "NoExecute"}


def _qos_class(spec: JsonObject) -> str:
    """Return the pod's QoS class, of the whole pod's resources if it has any."""
    parts = [spec["resources"]] if spec.get("resources") else _container_resources(spec)
    resources = [(_counted(part, "limits"), _counted(part, "requests")) for part in parts]
    if not any(limits or requests for limits, requests in resources):
        return "BestEffort"
    if all(limits.keys() == _QOS_RESOURCES and limits == requests for limits, requests in resources):
        return "Guaranteed"
    return "Burstable"


def _container_resources(spec: JsonObject) -> Iterator[JsonObject]:
    for container in (*spec["containers"], *spec.get("initContainers", [])):
        yield container["resources"]


def _counted(resources: JsonObject, kind: str) -> JsonObject:
    amounts = {name: quantity(amount) for name, amount in resources.get(kind, {}).items()}
    return {name: amount for name, amount in amounts.items() if name in _QOS_RESOURCES and amount}


def _gates(pod: JsonObject) -> set[str]:
    return {gate["name"] for gate in spec_of(pod).get("schedulingGates") or ()}


def _immutable(spec: JsonObject) -> JsonObject:
    fields = {name: value for name, value in spec.items() if name not in _MUTABLE_SPEC}
    for key in ("containers", "initContainers"):
        if key in fields:
            fields[key] = [{**container, "image": ""} for container in fields[key]]
    return fields
