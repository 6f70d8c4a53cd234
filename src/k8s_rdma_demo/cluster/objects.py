"""Kubernetes objects as JSON: their fields, timestamps as the API writes them, and Go's order of fields.

The API server and kube-scheduler are Go programs: a JSON object has its fields in the order in which the Go
type declares them, a map has its keys sorted. Fields that the tables do not list follow in their own order.

Source: `k8s.io/api/core/v1/types.go`, `k8s.io/apimachinery/pkg/apis/meta/v1/types.go`, encoding/json.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

# A field is `name`, or `name:Type` where the order inside matters too (of the elements, for a list).
# `!` marks a field that Go writes even when it has no value, as null.
_MAP = "Map"
_TYPES: Mapping[str, str] = {
    "Pod": "kind apiVersion metadata:ObjectMeta spec:PodSpec status:PodStatus",
    "Node": "kind apiVersion metadata:ObjectMeta spec:NodeSpec status:NodeStatus",
    "Event": "kind apiVersion metadata:ObjectMeta involvedObject:ObjectReference reason message "
    "source:EventSource firstTimestamp! lastTimestamp! count type eventTime! series action "
    "related:ObjectReference reportingComponent reportingInstance",
    "Lease": "kind apiVersion metadata:ObjectMeta spec:LeaseSpec",
    "Object": "kind apiVersion metadata:ObjectMeta",
    "ObjectMeta": "name generateName namespace uid resourceVersion generation creationTimestamp! "
    "deletionTimestamp deletionGracePeriodSeconds labels:Map annotations:Map "
    "ownerReferences:OwnerReference finalizers managedFields:ManagedFieldsEntry",
    "OwnerReference": "apiVersion kind name uid controller blockOwnerDeletion",
    "ManagedFieldsEntry": "manager operation apiVersion time fieldsType fieldsV1 subresource",
    "ObjectReference": "kind namespace name uid apiVersion resourceVersion fieldPath",
    "EventSource": "component host",
    "LeaseSpec": "holderIdentity leaseDurationSeconds acquireTime renewTime leaseTransitions strategy "
    "preferredHolder",
    "PodSpec": "volumes:Volume initContainers:Container containers:Container ephemeralContainers:Container "
    "restartPolicy terminationGracePeriodSeconds activeDeadlineSeconds dnsPolicy nodeSelector:Map "
    "serviceAccountName serviceAccount automountServiceAccountToken nodeName hostNetwork hostPID hostIPC "
    "shareProcessNamespace securityContext:PodSecurityContext imagePullSecrets hostname subdomain "
    "affinity:Affinity schedulerName tolerations:Toleration hostAliases priorityClassName priority "
    "dnsConfig readinessGates runtimeClassName enableServiceLinks preemptionPolicy overhead:Map "
    "topologySpreadConstraints setHostnameAsFQDN os hostUsers schedulingGates resourceClaims "
    "resources:ResourceRequirements",
    "Volume": "name hostPath:HostPath emptyDir:EmptyDir secret:SecretVolume persistentVolumeClaim "
    "downwardAPI:DownwardAPI configMap:ConfigMap projected:Projected csi ephemeral image",
    "HostPath": "path type",
    "EmptyDir": "medium sizeLimit",
    "SecretVolume": "secretName items:KeyToPath defaultMode optional",
    "ConfigMap": "name items:KeyToPath defaultMode optional",
    "KeyToPath": "key path mode",
    "DownwardAPI": "items:DownwardAPIFile defaultMode",
    "DownwardAPIFile": "path fieldRef:FieldRef resourceFieldRef mode",
    "FieldRef": "apiVersion fieldPath",
    "Projected": "sources:Projection defaultMode",
    "Projection": "secret:SecretVolume downwardAPI:DownwardAPI configMap:ConfigMap "
    "serviceAccountToken:TokenProjection",
    "TokenProjection": "audience expirationSeconds path",
    "Container": "name image command args workingDir ports:ContainerPort envFrom env:EnvVar "
    "resources:ResourceRequirements resizePolicy restartPolicy volumeMounts:VolumeMount volumeDevices "
    "livenessProbe readinessProbe startupProbe lifecycle terminationMessagePath terminationMessagePolicy "
    "imagePullPolicy securityContext:SecurityContext stdin stdinOnce tty",
    "ContainerPort": "name hostPort containerPort protocol hostIP",
    "EnvVar": "name value valueFrom:EnvVarSource",
    "EnvVarSource": "fieldRef:FieldRef resourceFieldRef configMapKeyRef secretKeyRef",
    "ResourceRequirements": "limits:Map requests:Map claims",
    "VolumeMount": "name readOnly recursiveReadOnly mountPath subPath mountPropagation subPathExpr",
    "SecurityContext": "capabilities:Capabilities privileged seLinuxOptions runAsUser runAsGroup "
    "runAsNonRoot readOnlyRootFilesystem allowPrivilegeEscalation procMount seccompProfile appArmorProfile",
    "Capabilities": "add drop",
    "PodSecurityContext": "seLinuxOptions runAsUser runAsGroup runAsNonRoot supplementalGroups "
    "supplementalGroupsPolicy fsGroup sysctls fsGroupChangePolicy seccompProfile appArmorProfile",
    "Affinity": "nodeAffinity podAffinity podAntiAffinity",
    "Toleration": "key operator value effect tolerationSeconds",
    "PodStatus": "observedGeneration phase conditions:PodCondition message reason nominatedNodeName hostIP "
    "hostIPs podIP podIPs startTime initContainerStatuses:ContainerStatus containerStatuses:ContainerStatus "
    "qosClass",
    "PodCondition": "type observedGeneration status lastProbeTime! lastTransitionTime! reason message",
    "ContainerStatus": "name state lastState ready restartCount image imageID containerID started",
    "NodeSpec": "podCIDR podCIDRs providerID unschedulable taints:Taint",
    "Taint": "key value effect timeAdded",
    "NodeStatus": "capacity:Map allocatable:Map phase conditions:NodeCondition addresses:NodeAddress "
    "daemonEndpoints nodeInfo:NodeInfo images:Image",
    "NodeCondition": "type status lastHeartbeatTime! lastTransitionTime! reason message",
    "NodeAddress": "type address",
    "NodeInfo": "machineID systemUUID bootID kernelVersion osImage containerRuntimeVersion kubeletVersion "
    "kubeProxyVersion operatingSystem architecture swap",
    "Image": "names sizeBytes",
}


class _Field:
    __slots__ = ("always", "name", "type")

    def __init__(self, definition: str) -> None:
        self.always = definition.endswith("!")
        self.name, _, self.type = definition.rstrip("!").partition(":")


_FIELDS = {kind: tuple(_Field(word) for word in words.split()) for kind, words in _TYPES.items()}


def in_field_order(obj: JsonObject) -> JsonObject:
    """A copy of an API object with its fields ordered by its `kind`, and without null ones."""
    kind = obj.get("kind", "Object")
    ordered: JsonObject = _ordered(obj, kind if kind in _FIELDS else "Object")
    return ordered


def _ordered(value: Any, kind: str) -> Any:
    if isinstance(value, list):
        return [_ordered(element, kind) for element in value]
    if not isinstance(value, dict):
        return value
    if kind == _MAP:
        return {name: value[name] for name in sorted(value)}
    return dict(_fields(value, kind))


def _fields(value: JsonObject, kind: str) -> Iterable[tuple[str, Any]]:
    fields = _FIELDS.get(kind, ())
    for field in fields:
        if value.get(field.name) is not None:
            yield field.name, _ordered(value[field.name], field.type)
        elif field.always:
            yield field.name, None
    names = {field.name for field in fields}
    yield from ((name, item) for name, item in value.items() if name not in names and item is not None)


# json.Marshal escapes these inside strings, so that the text is safe in HTML and JavaScript.
_ESCAPED = {
    b"&": rb"\u0026",
    b"<": rb"\u003c",
    b">": rb"\u003e",
    "\u2028".encode(): rb"\u2028",
    "\u2029".encode(): rb"\u2029",
}


def go_json(value: object, *, order: Literal["deterministic"] | None = None) -> bytes:
    """Encode without white space; order "deterministic" sorts all keys, as Go does with maps."""
    encoded = msgspec.json.encode(value, order=order)
    for raw, escape in _ESCAPED.items():
        encoded = encoded.replace(raw, escape)
    return encoded


def go_quote(text: str) -> str:
    """`%q`: the text in double quotes, with what cannot be printed escaped."""
    return msgspec.json.encode(text).decode()


def fields_regardless_of_case(obj: JsonObject) -> JsonObject:
    """The object with lower-case keys and without nulls, as json.Unmarshal reads it into a struct."""
    return {name.lower(): value for name, value in obj.items() if value is not None}


JsonObject: TypeAlias = dict[str, Any]
"""An object as decoded from JSON; never changed in place once it is in a store or a cache."""

Key: TypeAlias = tuple[str, str]
"""Namespace and name; the namespace is empty for cluster-scoped objects."""

Clock: TypeAlias = "Callable[[], datetime]"


def system_clock() -> datetime:
    """The time now, in UTC."""
    return datetime.now(UTC)


def timestamp(moment: datetime) -> str:
    """`metav1.Time`: RFC 3339 in UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def nano_timestamp() -> str:
    """The time now as Go's RFC3339Nano: UTC, up to nine decimals, without zeros at their end."""
    seconds, nanoseconds = divmod(time.time_ns(), 10**9)
    whole = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{whole}.{nanoseconds:09d}".rstrip("0").rstrip(".") + "Z"


def parse_timestamp(text: str) -> datetime:
    """The moment that `timestamp` wrote."""
    return datetime.fromisoformat(text)


def metadata(obj: JsonObject) -> JsonObject:
    """The object's metadata; empty where it has none."""
    return obj.get("metadata") or {}


def name_of(obj: JsonObject) -> str:
    """`metadata.name`."""
    return str(metadata(obj).get("name", ""))


def namespace_of(obj: JsonObject) -> str:
    """`metadata.namespace`; empty for cluster-scoped objects."""
    return str(metadata(obj).get("namespace", ""))


def uid_of(obj: JsonObject) -> str:
    """`metadata.uid`."""
    return str(metadata(obj).get("uid", ""))


def key_of(obj: JsonObject) -> Key:
    """Namespace and name."""
    return namespace_of(obj), name_of(obj)


def annotations_of(obj: JsonObject) -> dict[str, str]:
    """`metadata.annotations`; empty where there are none."""
    return metadata(obj).get("annotations") or {}


def labels_of(obj: JsonObject) -> dict[str, str]:
    """`metadata.labels`; empty where there are none."""
    return metadata(obj).get("labels") or {}


def spec_of(obj: JsonObject) -> JsonObject:
    """`spec`; empty where there is none."""
    return obj.get("spec") or {}


def status_of(obj: JsonObject) -> JsonObject:
    """`status`; empty where there is none."""
    return obj.get("status") or {}


def node_name_of(pod: JsonObject) -> str:
    """The node a pod is bound to; empty while it is not."""
    return str(spec_of(pod).get("nodeName", ""))


def priority_of(pod: JsonObject) -> int:
    """A pod's priority; 0 where admission set none."""
    return int(spec_of(pod).get("priority") or 0)


def is_terminating(obj: JsonObject) -> bool:
    """Report whether the object is being deleted."""
    return bool(metadata(obj).get("deletionTimestamp"))


def is_finished(pod: JsonObject) -> bool:
    """Report whether all of a pod's containers have ended for good."""
    return status_of(pod).get("phase") in {"Succeeded", "Failed"}


def condition_of(obj: JsonObject, kind: str) -> JsonObject | None:
    """The status condition of that type, if the object has it."""
    conditions: list[JsonObject] = status_of(obj).get("conditions") or []
    return next((condition for condition in conditions if condition.get("type") == kind), None)
