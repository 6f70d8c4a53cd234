"""The fields of Kubernetes' types: their order, types and merge keys.

The API server and kube-scheduler are Go programs. A JSON object has its fields in the order in which the Go
type declares them, a map has its keys sorted. Fields that the tables do not list follow in their own order.

Source: `k8s.io/api/core/v1/types.go`, `k8s.io/apimachinery/pkg/apis/meta/v1/types.go`, encoding/json.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# A field is `name`, of type string, or `name:Type`: boolean, integer, map (of strings), object (whose fields
# are not in the tables), or a type of the tables; `[]` before the type makes it a list. `~key` names the
# merge key of a list, an empty one that of a list of values. `!` marks a field that Go writes even when it
# has no value, as null.
_TYPES: Mapping[str, str] = {
    "Pod": "kind apiVersion metadata:ObjectMeta spec:PodSpec status:PodStatus",
    "Node": "kind apiVersion metadata:ObjectMeta spec:NodeSpec status:NodeStatus",
    "Event": "kind apiVersion metadata:ObjectMeta involvedObject:ObjectReference reason message "
    "source:EventSource firstTimestamp! lastTimestamp! count:integer type eventTime! series:object action "
    "related:ObjectReference reportingComponent reportingInstance",
    "Lease": "kind apiVersion metadata:ObjectMeta spec:LeaseSpec",
    "ConfigMap": "kind apiVersion metadata:ObjectMeta data:map binaryData:map immutable:boolean",
    "Namespace": "kind apiVersion metadata:ObjectMeta spec:object status:object",
    "ServiceAccount": "kind apiVersion metadata:ObjectMeta secrets:[]object~name imagePullSecrets:[]object "
    "automountServiceAccountToken:boolean",
    "ObjectMeta": "name generateName namespace uid resourceVersion generation:integer creationTimestamp! "
    "deletionTimestamp deletionGracePeriodSeconds:integer labels:map annotations:map "
    "ownerReferences:[]OwnerReference~uid finalizers:[]string~ managedFields:[]ManagedFieldsEntry",
    "OwnerReference": "apiVersion kind name uid controller:boolean blockOwnerDeletion:boolean",
    "ManagedFieldsEntry": "manager operation apiVersion time fieldsType fieldsV1:object subresource",
    "ObjectReference": "kind namespace name uid apiVersion resourceVersion fieldPath",
    "EventSource": "component host",
    "LeaseSpec": "holderIdentity leaseDurationSeconds:integer acquireTime renewTime leaseTransitions:integer "
    "strategy preferredHolder",
    "PodSpec": "volumes:[]Volume~name initContainers:[]Container~name containers:[]Container~name "
    "ephemeralContainers:[]Container~name restartPolicy terminationGracePeriodSeconds:integer "
    "activeDeadlineSeconds:integer dnsPolicy nodeSelector:map serviceAccountName serviceAccount "
    "automountServiceAccountToken:boolean nodeName hostNetwork:boolean hostPID:boolean hostIPC:boolean "
    "shareProcessNamespace:boolean securityContext:PodSecurityContext imagePullSecrets:[]object~name "
    "hostname subdomain affinity:Affinity schedulerName tolerations:[]Toleration hostAliases:[]object~ip "
    "priorityClassName priority:integer dnsConfig:object readinessGates:[]object runtimeClassName "
    "enableServiceLinks:boolean preemptionPolicy overhead:map "
    "topologySpreadConstraints:[]object~topologyKey setHostnameAsFQDN:boolean os:object hostUsers:boolean "
    "schedulingGates:[]object~name resourceClaims:[]object~name resources:ResourceRequirements "
    "hostnameOverride schedulingGroup:object",
    "Volume": "name hostPath:HostPathVolumeSource emptyDir:EmptyDirVolumeSource secret:SecretVolumeSource "
    "persistentVolumeClaim:object downwardAPI:DownwardAPIVolumeSource configMap:ConfigMapVolumeSource "
    "projected:ProjectedVolumeSource csi:object ephemeral:object image:object awsElasticBlockStore:object "
    "azureDisk:object azureFile:object cephfs:object cinder:object fc:object flexVolume:object "
    "flocker:object gcePersistentDisk:object gitRepo:object glusterfs:object iscsi:object nfs:object "
    "photonPersistentDisk:object portworxVolume:object quobyte:object rbd:object scaleIO:object "
    "storageos:object vsphereVolume:object",
    "HostPathVolumeSource": "path type",
    "EmptyDirVolumeSource": "medium sizeLimit",
    "SecretVolumeSource": "secretName items:[]KeyToPath defaultMode:integer optional:boolean",
    "ConfigMapVolumeSource": "name items:[]KeyToPath defaultMode:integer optional:boolean",
    "KeyToPath": "key path mode:integer",
    "DownwardAPIVolumeSource": "items:[]DownwardAPIVolumeFile defaultMode:integer",
    "DownwardAPIVolumeFile": "path fieldRef:ObjectFieldSelector resourceFieldRef:object mode:integer",
    "ObjectFieldSelector": "apiVersion fieldPath",
    "ProjectedVolumeSource": "sources:[]VolumeProjection defaultMode:integer",
    "VolumeProjection": "secret:ConfigMapProjection downwardAPI:DownwardAPIProjection "
    "configMap:ConfigMapProjection serviceAccountToken:ServiceAccountTokenProjection "
    "clusterTrustBundle:object podCertificate:object",
    "ConfigMapProjection": "name items:[]KeyToPath optional:boolean",
    "DownwardAPIProjection": "items:[]DownwardAPIVolumeFile",
    "ServiceAccountTokenProjection": "audience expirationSeconds:integer path",
    "Container": "name image command:[]string args:[]string workingDir ports:[]ContainerPort~containerPort "
    "envFrom:[]object env:[]EnvVar~name resources:ResourceRequirements resizePolicy:[]object restartPolicy "
    "volumeMounts:[]VolumeMount~mountPath volumeDevices:[]object~devicePath livenessProbe:object "
    "readinessProbe:object startupProbe:object lifecycle:object terminationMessagePath "
    "terminationMessagePolicy imagePullPolicy securityContext:SecurityContext stdin:boolean "
    "stdinOnce:boolean tty:boolean restartPolicyRules:[]object",
    "ContainerPort": "name hostPort:integer containerPort:integer protocol hostIP",
    "EnvVar": "name value valueFrom:EnvVarSource",
    "EnvVarSource": "fieldRef:ObjectFieldSelector resourceFieldRef:object configMapKeyRef:object "
    "secretKeyRef:object fileKeyRef:object",
    "ResourceRequirements": "limits:map requests:map claims:[]object",
    "VolumeMount": "name readOnly:boolean recursiveReadOnly mountPath subPath mountPropagation subPathExpr",
    "SecurityContext": "capabilities:Capabilities privileged:boolean seLinuxOptions:object runAsUser:integer "
    "runAsGroup:integer runAsNonRoot:boolean readOnlyRootFilesystem:boolean "
    "allowPrivilegeEscalation:boolean procMount seccompProfile:object appArmorProfile:object "
    "windowsOptions:object",
    "Capabilities": "add:[]string drop:[]string",
    "PodSecurityContext": "seLinuxOptions:object runAsUser:integer runAsGroup:integer runAsNonRoot:boolean "
    "supplementalGroups:[]integer supplementalGroupsPolicy fsGroup:integer sysctls:[]object "
    "fsGroupChangePolicy seccompProfile:object appArmorProfile:object seLinuxChangePolicy "
    "windowsOptions:object",
    "Affinity": "nodeAffinity:object podAffinity:object podAntiAffinity:object",
    "Toleration": "key operator value effect tolerationSeconds:integer",
    "PodStatus": "observedGeneration:integer phase conditions:[]PodCondition~type message reason "
    "nominatedNodeName hostIP hostIPs:[]object~ip podIP podIPs:[]object~ip startTime "
    "initContainerStatuses:[]ContainerStatus containerStatuses:[]ContainerStatus qosClass "
    "allocatedResources:map ephemeralContainerStatuses:[]ContainerStatus extendedResourceClaimStatus:object "
    "nodeAllocatableResourceClaimStatuses:[]object resize resourceClaimStatuses:[]object~name "
    "resources:ResourceRequirements",
    "PodCondition": "type observedGeneration:integer status lastProbeTime! lastTransitionTime! reason "
    "message",
    "ContainerStatus": "name state:object lastState:object ready:boolean restartCount:integer image imageID "
    "containerID started:boolean allocatedResources:map allocatedResourcesStatus:[]object~name "
    "resources:ResourceRequirements stopSignal user:object volumeMounts:[]object~mountPath",
    "NodeSpec": "podCIDR podCIDRs:[]string~ providerID unschedulable:boolean taints:[]Taint",
    "Taint": "key value effect timeAdded",
    "NodeStatus": "capacity:map allocatable:map phase conditions:[]NodeCondition~type "
    "addresses:[]NodeAddress~type daemonEndpoints:object nodeInfo:NodeSystemInfo images:[]ContainerImage "
    "declaredFeatures:[]string runtimeHandlers:[]object volumesAttached:[]object volumesInUse:[]string",
    "NodeCondition": "type status lastHeartbeatTime! lastTransitionTime! reason message",
    "NodeAddress": "type address",
    "NodeSystemInfo": "machineID systemUUID bootID kernelVersion osImage containerRuntimeVersion "
    "kubeletVersion kubeProxyVersion operatingSystem architecture swap:object",
    "ContainerImage": "names:[]string sizeBytes:integer",
}
_OBJECT = "kind apiVersion metadata:ObjectMeta"
"""The fields of a kind that is not in the tables, as far as they are known."""


class Field:
    """A field of a type.

    merge_key: of the elements of a list that a strategic merge patch merges; empty: its elements are values;
    None: it is replaced.
    """

    __slots__ = ("always", "is_list", "merge_key", "name", "type")

    def __init__(self, definition: str) -> None:
        """Read a definition of the tables."""
        definition, merged, key = definition.partition("~")
        self.merge_key = key if merged else None
        self.always = definition.endswith("!")
        self.name, _, kind = definition.rstrip("!").partition(":")
        self.is_list = kind.startswith("[]")
        self.type = kind.removeprefix("[]") or "string"

    def schema(self) -> dict[str, Any]:
        """Return the field's OpenAPI schema."""
        item: dict[str, Any] = {"type": self.type}
        if self.type == "map":
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


def in_field_order(obj: dict[str, Any]) -> dict[str, Any]:
    """A copy of an API object with its fields ordered by its `kind`, and without null ones."""
    return dict(_ordered_fields(obj, fields_of_kind(obj.get("kind", ""))))


def _ordered(value: Any, kind: str) -> Any:
    if isinstance(value, list):
        return [_ordered(element, kind) for element in value]
    if not isinstance(value, dict):
        return value
    if kind == "map":
        return {name: value[name] for name in sorted(value)}
    return dict(_ordered_fields(value, FIELDS.get(kind, {})))


def _ordered_fields(value: dict[str, Any], fields: Mapping[str, Field]) -> Iterable[tuple[str, Any]]:
    for name, field in fields.items():
        if value.get(name) is not None:
            yield name, _ordered(value[name], field.type)
        elif field.always:
            yield name, None
    yield from ((name, item) for name, item in value.items() if name not in fields and item is not None)


def unknown_fields(obj: dict[str, Any], kind: str) -> Iterator[str]:
    """Find the paths of fields that the kind does not have; none of kinds that are not in the tables.

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
