"""The fields of Kubernetes' types: their order, types and merge keys; and objects as their types write them.

The API server and kube-scheduler are Go programs. A JSON object has its fields in the order in which the Go
type declares them, a map has its keys sorted. Fields that a type does not have are dropped, and so are empty
ones. Quantities and times have one form.

Source: `k8s.io/api/core/v1/types.go`, `k8s.io/api/apps/v1/types.go`,
`k8s.io/apimachinery/pkg/apis/meta/v1/types.go`, encoding/json.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from k8s_rdma_demo.cluster.quantities import canonical_micro_time, canonical_quantity, canonical_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# A field is `name`, of type string, or `name:Type`: boolean, integer, quantity, time, microtime, map (of
# strings), quantities (a map of them), object (whose fields are not in the tables), or a type of the tables;
# `[]` before the type makes it a list. `~key` names the merge key of a list, an empty one that of a list of
# values. `?` marks a pointer, which Go writes if it is set, whatever its value. `!` marks a field that Go
# writes even if it has no value.
_TYPES: Mapping[str, str] = {
    "Pod": "kind apiVersion metadata:ObjectMeta spec:PodSpec status:PodStatus",
    "Node": "kind apiVersion metadata:ObjectMeta spec:NodeSpec status:NodeStatus",
    "Event": "kind apiVersion metadata:ObjectMeta involvedObject:ObjectReference reason message "
    "source:EventSource firstTimestamp:time! lastTimestamp:time! count:integer type eventTime:microtime! "
    "series:object action related:ObjectReference reportingComponent reportingInstance",
    "Lease": "kind apiVersion metadata:ObjectMeta spec:LeaseSpec",
    "ConfigMap": "kind apiVersion metadata:ObjectMeta data:map binaryData:map immutable:boolean?",
    "Deployment": "kind apiVersion metadata:ObjectMeta spec:DeploymentSpec status:DeploymentStatus",
    "DeploymentSpec": "replicas:integer? selector:LabelSelector template:PodTemplateSpec "
    "strategy:DeploymentStrategy minReadySeconds:integer revisionHistoryLimit:integer? paused:boolean "
    "progressDeadlineSeconds:integer?",
    "DeploymentStrategy": "type rollingUpdate:object",
    "DeploymentStatus": "observedGeneration:integer replicas:integer updatedReplicas:integer "
    "readyReplicas:integer availableReplicas:integer unavailableReplicas:integer "
    "terminatingReplicas:integer? conditions:[]DeploymentCondition~type collisionCount:integer?",
    "DeploymentCondition": "type status lastUpdateTime:time lastTransitionTime:time reason message",
    "ReplicaSet": "kind apiVersion metadata:ObjectMeta spec:ReplicaSetSpec status:ReplicaSetStatus",
    "ReplicaSetSpec": "replicas:integer? minReadySeconds:integer selector:LabelSelector "
    "template:PodTemplateSpec",
    "ReplicaSetStatus": "replicas:integer! fullyLabeledReplicas:integer readyReplicas:integer "
    "availableReplicas:integer terminatingReplicas:integer? observedGeneration:integer "
    "conditions:[]DeploymentCondition~type",
    "PodTemplateSpec": "metadata:ObjectMeta spec:PodSpec",
    "LabelSelector": "matchLabels:map matchExpressions:[]object",
    "Namespace": "kind apiVersion metadata:ObjectMeta spec:object status:object",
    "ServiceAccount": "kind apiVersion metadata:ObjectMeta secrets:[]object~name imagePullSecrets:[]object "
    "automountServiceAccountToken:boolean?",
    "ObjectMeta": "name generateName namespace uid resourceVersion generation:integer "
    "creationTimestamp:time! deletionTimestamp:time deletionGracePeriodSeconds:integer? labels:map "
    "annotations:map ownerReferences:[]OwnerReference~uid finalizers:[]string~ "
    "managedFields:[]ManagedFieldsEntry",
    "OwnerReference": "apiVersion kind name uid controller:boolean? blockOwnerDeletion:boolean?",
    "ManagedFieldsEntry": "manager operation apiVersion time:time fieldsType fieldsV1:object subresource",
    "ObjectReference": "kind namespace name uid apiVersion resourceVersion fieldPath",
    "EventSource": "component host",
    "LeaseSpec": "holderIdentity? leaseDurationSeconds:integer? acquireTime:microtime renewTime:microtime "
    "leaseTransitions:integer? strategy? preferredHolder?",
    "PodSpec": "volumes:[]Volume~name initContainers:[]Container~name containers:[]Container~name "
    "ephemeralContainers:[]Container~name restartPolicy terminationGracePeriodSeconds:integer? "
    "activeDeadlineSeconds:integer? dnsPolicy nodeSelector:map serviceAccountName serviceAccount "
    "automountServiceAccountToken:boolean? nodeName hostNetwork:boolean hostPID:boolean hostIPC:boolean "
    "shareProcessNamespace:boolean? securityContext:PodSecurityContext imagePullSecrets:[]object~name "
    "hostname subdomain affinity:Affinity schedulerName tolerations:[]Toleration hostAliases:[]object~ip "
    "priorityClassName priority:integer? dnsConfig:object readinessGates:[]object runtimeClassName? "
    "enableServiceLinks:boolean? preemptionPolicy? overhead:quantities "
    "topologySpreadConstraints:[]object~topologyKey setHostnameAsFQDN:boolean? os:object hostUsers:boolean? "
    "schedulingGates:[]object~name resourceClaims:[]object~name resources:ResourceRequirements "
    "hostnameOverride? schedulingGroup:object",
    "Volume": "name hostPath:HostPathVolumeSource emptyDir:EmptyDirVolumeSource secret:SecretVolumeSource "
    "persistentVolumeClaim:object downwardAPI:DownwardAPIVolumeSource configMap:ConfigMapVolumeSource "
    "projected:ProjectedVolumeSource csi:object ephemeral:EphemeralVolumeSource image:object "
    "awsElasticBlockStore:object azureDisk:object azureFile:object cephfs:object cinder:object fc:object "
    "flexVolume:object flocker:object gcePersistentDisk:object gitRepo:object glusterfs:object iscsi:object "
    "nfs:object photonPersistentDisk:object portworxVolume:object quobyte:object rbd:object scaleIO:object "
    "storageos:object vsphereVolume:object",
    "EphemeralVolumeSource": "volumeClaimTemplate:PersistentVolumeClaimTemplate",
    "PersistentVolumeClaimTemplate": "metadata:ObjectMeta spec:PersistentVolumeClaimSpec",
    "PersistentVolumeClaimSpec": "accessModes:[]string selector:object resources:VolumeResourceRequirements "
    "volumeName storageClassName? volumeMode? dataSource:object dataSourceRef:object "
    "volumeAttributesClassName?",
    "VolumeResourceRequirements": "limits:quantities requests:quantities",
    "HostPathVolumeSource": "path! type?",
    "EmptyDirVolumeSource": "medium sizeLimit:quantity?",
    "SecretVolumeSource": "secretName items:[]KeyToPath defaultMode:integer? optional:boolean?",
    "ConfigMapVolumeSource": "name items:[]KeyToPath defaultMode:integer? optional:boolean?",
    "KeyToPath": "key path mode:integer?",
    "DownwardAPIVolumeSource": "items:[]DownwardAPIVolumeFile defaultMode:integer?",
    "DownwardAPIVolumeFile": "path fieldRef:ObjectFieldSelector resourceFieldRef:ResourceFieldSelector "
    "mode:integer?",
    "ObjectFieldSelector": "apiVersion fieldPath",
    "ResourceFieldSelector": "containerName resource divisor:quantity!",
    "ProjectedVolumeSource": "sources:[]VolumeProjection defaultMode:integer?",
    "VolumeProjection": "secret:ConfigMapProjection downwardAPI:DownwardAPIProjection "
    "configMap:ConfigMapProjection serviceAccountToken:ServiceAccountTokenProjection "
    "clusterTrustBundle:object podCertificate:object",
    "ConfigMapProjection": "name items:[]KeyToPath optional:boolean?",
    "DownwardAPIProjection": "items:[]DownwardAPIVolumeFile",
    "ServiceAccountTokenProjection": "audience expirationSeconds:integer? path",
    "Container": "name image command:[]string args:[]string workingDir ports:[]ContainerPort~containerPort "
    "envFrom:[]object env:[]EnvVar~name resources:ResourceRequirements resizePolicy:[]object restartPolicy? "
    "volumeMounts:[]VolumeMount~mountPath volumeDevices:[]object~devicePath livenessProbe:object "
    "readinessProbe:object startupProbe:object lifecycle:object terminationMessagePath "
    "terminationMessagePolicy imagePullPolicy securityContext:SecurityContext stdin:boolean "
    "stdinOnce:boolean tty:boolean restartPolicyRules:[]object",
    "ContainerPort": "name hostPort:integer containerPort:integer protocol hostIP",
    "EnvVar": "name value valueFrom:EnvVarSource",
    "EnvVarSource": "fieldRef:ObjectFieldSelector resourceFieldRef:ResourceFieldSelector "
    "configMapKeyRef:object secretKeyRef:object fileKeyRef:object",
    "ResourceRequirements": "limits:quantities requests:quantities claims:[]object",
    "VolumeMount": "name readOnly:boolean recursiveReadOnly? mountPath subPath mountPropagation? subPathExpr",
    "SecurityContext": "capabilities:Capabilities privileged:boolean? seLinuxOptions:object "
    "runAsUser:integer? runAsGroup:integer? runAsNonRoot:boolean? readOnlyRootFilesystem:boolean? "
    "allowPrivilegeEscalation:boolean? procMount? seccompProfile:object appArmorProfile:object "
    "windowsOptions:object",
    "Capabilities": "add:[]string drop:[]string",
    "PodSecurityContext": "seLinuxOptions:object runAsUser:integer? runAsGroup:integer? "
    "runAsNonRoot:boolean supplementalGroups:[]integer supplementalGroupsPolicy? fsGroup:integer? "
    "sysctls:[]object fsGroupChangePolicy? seccompProfile:object appArmorProfile:object "
    "seLinuxChangePolicy? windowsOptions:object",
    "Affinity": "nodeAffinity:object podAffinity:object podAntiAffinity:object",
    "Toleration": "key operator value effect tolerationSeconds:integer?",
    "PodStatus": "observedGeneration:integer phase conditions:[]PodCondition~type message reason "
    "nominatedNodeName hostIP hostIPs:[]object~ip podIP podIPs:[]object~ip startTime:time "
    "initContainerStatuses:[]ContainerStatus containerStatuses:[]ContainerStatus qosClass "
    "allocatedResources:quantities ephemeralContainerStatuses:[]ContainerStatus "
    "extendedResourceClaimStatus:object nodeAllocatableResourceClaimStatuses:[]object resize "
    "resourceClaimStatuses:[]object~name resources:ResourceRequirements",
    "PodCondition": "type observedGeneration:integer status lastProbeTime:time! lastTransitionTime:time! "
    "reason message",
    "ContainerStatus": "name state:ContainerState lastState:ContainerState ready:boolean! "
    "restartCount:integer! image! imageID! containerID started:boolean? allocatedResources:quantities "
    "allocatedResourcesStatus:[]object~name resources:ResourceRequirements stopSignal? user:object "
    "volumeMounts:[]object~mountPath",
    "NodeSpec": "podCIDR podCIDRs:[]string~ providerID unschedulable:boolean taints:[]Taint",
    "Taint": "key value effect timeAdded:time",
    "NodeStatus": "capacity:quantities allocatable:quantities phase conditions:[]NodeCondition~type "
    "addresses:[]NodeAddress~type daemonEndpoints:object nodeInfo:NodeSystemInfo images:[]ContainerImage "
    "declaredFeatures:[]string runtimeHandlers:[]object volumesAttached:[]object volumesInUse:[]string",
    "NodeCondition": "type status lastHeartbeatTime:time! lastTransitionTime:time! reason message",
    "NodeAddress": "type address",
    "NodeSystemInfo": "machineID! systemUUID! bootID! kernelVersion! osImage! containerRuntimeVersion! "
    "kubeletVersion! kubeProxyVersion! operatingSystem! architecture! swap:object",
    "ContainerImage": "names:[]string sizeBytes:integer",
    "ContainerState": "waiting:ContainerStateWaiting running:ContainerStateRunning "
    "terminated:ContainerStateTerminated",
    "ContainerStateWaiting": "reason message",
    "ContainerStateRunning": "startedAt:time",
    "ContainerStateTerminated": "exitCode:integer! signal:integer reason message startedAt:time "
    "finishedAt:time containerID",
}
_OBJECT = "kind apiVersion metadata:ObjectMeta"
"""The fields of a kind that is not in the tables, as far as they are known."""

_SCALARS: Mapping[str, Callable[[object], str]] = {
    "quantity": canonical_quantity,
    "time": canonical_time,
    "microtime": canonical_micro_time,
}
_ZERO_VALUES: Mapping[str, Any] = {
    "time": None,
    "microtime": None,
    "boolean": False,
    "integer": 0,
    "quantity": "0",
}


class Field:
    """A field of a type.

    merge_key: of the elements of a list that a strategic merge patch merges; empty: its elements are values;
    None: it is replaced. optional: an empty value differs from an absent one.
    """

    __slots__ = ("always", "is_list", "merge_key", "name", "optional", "type")

    def __init__(self, definition: str) -> None:
        """Read a definition of the tables."""
        definition, merged, key = definition.partition("~")
        self.merge_key = key if merged else None
        self.always, self.optional = definition.endswith("!"), definition.endswith("?")
        self.name, _, kind = definition.rstrip("!?").partition(":")
        self.is_list = kind.startswith("[]")
        self.type = kind.removeprefix("[]") or "string"

    def schema(self) -> dict[str, Any]:
        """Return the field's OpenAPI schema."""
        item: dict[str, Any] = {"type": "string" if self.type in _SCALARS else self.type}
        if self.type in {"map", "quantities"}:
            item = {"type": "object", "additionalProperties": {"type": "string"}}
        elif self.type in FIELDS:
            item = {"allOf": [{"$ref": f"#/components/schemas/{self.type}"}]}
        if not self.is_list:
            return item
        merge: dict[str, Any] = {}
        if self.merge_key is not None:
            merge["x-kubernetes-patch-strategy"] = "merge"
        if self.merge_key:
            merge["x-kubernetes-patch-merge-key"] = self.merge_key
        return {"type": "array", "items": item, **merge}


def _fields_of(definitions: str) -> dict[str, Field]:
    return {field.name: field for field in map(Field, definitions.split())}


FIELDS: Mapping[str, Mapping[str, Field]] = {kind: _fields_of(names) for kind, names in _TYPES.items()}
"""The types of the tables."""

_OBJECT_FIELDS = _fields_of(_OBJECT)


def fields_of_kind(kind: str) -> Mapping[str, Field]:
    """Return the fields of a kind of API object."""
    return FIELDS.get(kind, _OBJECT_FIELDS)


def as_stored(obj: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return an API object of a kind as the API server stores it for a client.

    The fields are in the order of the kind, without empty ones and those that the kind does not have.
    Quantities and times are in their canonical form. Of kinds that are not in the tables, this is so of the
    metadata alone. ValueError for a malformed quantity or time has the API server's words.
    """
    return _typed(obj, fields_of_kind(kind), untabled=kind not in FIELDS)


def _typed(value: dict[str, Any], fields: Mapping[str, Field], *, untabled: bool = False) -> dict[str, Any]:
    typed = {}
    for name, field in fields.items():
        found = _value(value.get(name), field)
        if not _is_empty(found, field):
            typed[name] = found
        elif field.always:
            typed[name] = _ZERO_VALUES.get(field.type, "")
    if untabled:
        typed |= {name: item for name, item in value.items() if name not in fields and item is not None}
    return typed


def _value(value: Any, field: Field) -> Any:
    if value is None:
        return None
    if field.is_list and isinstance(value, list):
        return [_element(element, field.type) for element in value]
    return _element(value, field.type)


def _element(value: Any, kind: str) -> Any:
    if kind in _SCALARS:
        return _SCALARS[kind](value)
    if not isinstance(value, dict):
        return value
    match kind:
        case "map":
            return {name: value[name] for name in sorted(value)}
        case "quantities":
            return {name: canonical_quantity(value[name]) for name in sorted(value)}
    return _typed(value, FIELDS.get(kind, {}), untabled=kind not in FIELDS)


def _is_empty(value: Any, field: Field) -> bool:
    """Report whether Go leaves the field out; a struct without fields is written."""
    if isinstance(value, dict):
        return not value and field.type in {"map", "quantities"}
    return value is None or (not value and not field.optional)


def unknown_fields(obj: dict[str, Any], kind: str) -> Iterator[str]:
    """Find the paths of fields that the kind does not have; empty for kinds that are not in the tables.

    Metadata is checked for every kind.
    """
    if kind in FIELDS:
        yield from _unknown(obj, FIELDS[kind], "")
    else:
        yield from _unknown(obj.get("metadata"), FIELDS["ObjectMeta"], "metadata.")


def _unknown(value: Any, fields: Mapping[str, Field], path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        return
    for name, item in value.items():
        if name not in fields:
            yield f"{path}{name}"
            continue
        inner = FIELDS.get(fields[name].type)
        if inner is None:
            continue
        if isinstance(item, list):
            for index, element in enumerate(item):
                yield from _unknown(element, inner, f"{path}{name}[{index}].")
        else:
            yield from _unknown(item, inner, f"{path}{name}.")
