"""Objects as rows of a `meta.k8s.io/v1` Table, which kubectl prints.

Sources: `pkg/printers/internalversion/printers.go` for the columns of built-in kinds,
`apiextensions-apiserver/pkg/registry/customresource/tableconvertor` for those of custom resources,
`k8s.io/apimachinery/pkg/util/duration`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from k8s_rdma_demo.cluster.custom_resources import CustomColumn, find, parse_json_path
from k8s_rdma_demo.cluster.objects import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    PRIORITY_CLASSES,
    REPLICA_SETS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    ROLE_BINDINGS,
    ROLES,
    JsonObject,
    ResourceType,
    condition_of,
    is_finished,
    is_terminating,
    labels_of,
    metadata,
    name_of,
    parse_timestamp,
    spec_of,
    status_of,
)
from k8s_rdma_demo.cluster.status import bad_request

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Cell: TypeAlias = Callable[[JsonObject, datetime], Any]
"""A cell's value, from the object and the time now."""

NONE, UNKNOWN = "<none>", "<unknown>"
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_YEAR = 365 * _DAY

_ROLE = "node-role.kubernetes.io/"


@dataclass(frozen=True, slots=True)
class Column:
    """A column; priority 1: for `--output wide` alone."""

    name: str
    cell: Cell
    type: str = "string"
    priority: int = 0
    format: str = ""
    description: str = ""

    def definition(self) -> JsonObject:
        """`TableColumnDefinition`."""
        return {
            "name": self.name,
            "type": self.type,
            "format": self.format,
            "description": self.description,
            "priority": self.priority,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The columns of a resource's Tables. include: the object in each row, `None`, `Metadata` or `Object`."""

    columns: tuple[Column, ...]
    include: str

    @classmethod
    def for_resource(cls, resource: ResourceType, printed: Sequence[CustomColumn], include: str) -> Table:
        """Find the columns of a resource; StatusError 400 for an unknown `include`.

        printed: the columns of its definition.
        """
        if include not in {"", "None", "Metadata", "Object"}:
            raise bad_request(f'includeObject: Unsupported value: "{include}"')
        columns = tuple(map(_custom, printed)) or _COLUMNS.get(resource, (_AGE,))
        if not any(column.format == "name" for column in columns):
            columns = (_NAME, *columns)
        return cls(columns=columns, include=include or "Metadata")

    def document(
        self, objects: Iterable[JsonObject], revision: str, now: datetime, *, headers: bool = True
    ) -> JsonObject:
        """Return the Table of some objects; headers: with column definitions."""
        return {
            "kind": "Table",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": {"resourceVersion": revision},
            "columnDefinitions": [column.definition() for column in self.columns] if headers else None,
            "rows": [self._row(obj, now) for obj in objects],
        }

    def _row(self, obj: JsonObject, now: datetime) -> JsonObject:
        row: JsonObject = {"cells": [column.cell(obj, now) for column in self.columns]}
        if self.include == "Object":
            row["object"] = obj
        elif self.include == "Metadata":
            kind = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
            row["object"] = {**kind, "metadata": metadata(obj)}
        return row


def human_duration(seconds: float) -> str:
    """Write a duration in its two greatest units at most, as `duration.HumanDuration` does."""
    s = int(seconds)
    if s < -1:
        return "<invalid>"
    if s < 2 * _MINUTE:
        return f"{max(s, 0)}s"
    for limit, unit, names, part in (
        (10 * _MINUTE, _MINUTE, "ms", 1),
        (3 * _HOUR, _MINUTE, "m", 0),
        (8 * _HOUR, _HOUR, "hm", _MINUTE),
        (2 * _DAY, _HOUR, "h", 0),
        (8 * _DAY, _DAY, "dh", _HOUR),
        (2 * _YEAR, _DAY, "d", 0),
        (8 * _YEAR, _YEAR, "yd", _DAY),
    ):
        if s < limit:
            whole, remainder = divmod(s, unit)
            smaller = f"{remainder // part}{names[1]}" if part and remainder // part else ""
            return f"{whole}{names[0]}{smaller}"
    return f"{s // _YEAR}y"


def since(time: Any, now: datetime) -> str:
    """Write how long ago a timestamp is; UNKNOWN if it is missing or malformed."""
    try:
        return human_duration((now - parse_timestamp(time)).total_seconds())
    except (TypeError, ValueError):
        return UNKNOWN


def _custom(column: CustomColumn) -> Column:
    path = parse_json_path(column.json_path) or ()

    def cell(obj: JsonObject, now: datetime) -> Any:
        value = find(obj, path)
        if value is None:
            return None
        if column.type == "date":
            return since(value, now)
        if column.type == "string" and not isinstance(value, str):
            return str(value).lower() if isinstance(value, bool) else str(value)
        return value

    return Column(column.name, cell, column.type, column.priority, column.format, column.description)


def _of_field(*path: str, default: Any = "") -> Cell:
    def cell(obj: JsonObject, _now: datetime) -> Any:
        value = find(obj, path)
        return default if value is None else value

    return cell


_NAME = Column("Name", lambda obj, _: name_of(obj), format="name", description="The object's name.")
_AGE = Column("Age", lambda obj, now: since(metadata(obj).get("creationTimestamp"), now))
_CREATED = Column("Created At", _of_field("metadata", "creationTimestamp"), type="date")


def _statuses(pod: JsonObject) -> list[JsonObject]:
    return status_of(pod).get("containerStatuses") or []


def _pod_ready(pod: JsonObject, _now: datetime) -> str:
    ready = sum(bool(status.get("ready")) for status in _statuses(pod))
    return f"{ready}/{len(spec_of(pod).get('containers') or ())}"


def _pod_status(pod: JsonObject, _now: datetime) -> str:
    """Return a reason if a container or the pod has one, else the phase. Source: `printPod`."""
    status = status_of(pod)
    reason = str(status.get("reason") or status.get("phase") or "")
    if (scheduled := condition_of(pod, "PodScheduled")) and scheduled.get("reason") == "SchedulingGated":
        reason = "SchedulingGated"
    waiting = _init_reason(pod)
    if waiting:
        reason = waiting
    else:
        for container in reversed(_statuses(pod)):
            reason = _container_reason(container.get("state") or {}) or reason
    if is_terminating(pod) and not is_finished(pod):
        return "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return reason


def _init_reason(pod: JsonObject) -> str:
    """Return the state of the first init container that has not succeeded; empty if all have."""
    total = len(spec_of(pod).get("initContainers") or ())
    for index, container in enumerate(status_of(pod).get("initContainerStatuses") or ()):
        state = container.get("state") or {}
        if ended := state.get("terminated"):
            if ended.get("exitCode") == 0:
                continue
            return f"Init:{_container_reason(state)}"
        if container.get("started") and container.get("ready"):
            continue  # a sidecar
        reason = (state.get("waiting") or {}).get("reason")
        if reason and reason != "PodInitializing":
            return f"Init:{reason}"
        return f"Init:{index}/{total}"
    return ""


def _container_reason(state: JsonObject) -> str:
    if reason := (state.get("waiting") or {}).get("reason"):
        return str(reason)
    ended = state.get("terminated")
    if not ended:
        return ""
    if ended.get("reason"):
        return str(ended["reason"])
    signal = ended.get("signal")
    return f"Signal:{signal}" if signal else f"ExitCode:{ended.get('exitCode', 0)}"


def _pod_restarts(pod: JsonObject, now: datetime) -> str:
    count = sum(status.get("restartCount", 0) for status in _statuses(pod))
    ends = [
        finished
        for status in _statuses(pod)
        if (finished := find(status, ("lastState", "terminated", "finishedAt")))
    ]
    return f"{count} ({since(max(ends), now)} ago)" if count and ends else str(count)


def _readiness_gates(pod: JsonObject, _now: datetime) -> str:
    gates = [gate.get("conditionType") for gate in spec_of(pod).get("readinessGates") or ()]
    if not gates:
        return NONE
    met = sum((condition_of(pod, gate) or {}).get("status") == "True" for gate in gates)
    return f"{met}/{len(gates)}"


def _node_status(node: JsonObject, _now: datetime) -> str:
    ready = condition_of(node, "Ready")
    status = "Unknown" if ready is None else "Ready" if ready.get("status") == "True" else "NotReady"
    return f"{status},SchedulingDisabled" if spec_of(node).get("unschedulable") else status


def _node_roles(node: JsonObject, _now: datetime) -> str:
    roles = {label.removeprefix(_ROLE) for label in labels_of(node) if label.startswith(_ROLE)}
    if named := labels_of(node).get("kubernetes.io/role"):
        roles.add(named)
    return ",".join(sorted(roles - {""})) or NONE


def _node_address(kind: str) -> Cell:
    def cell(node: JsonObject, _now: datetime) -> str:
        addresses = status_of(node).get("addresses") or ()
        return next((str(entry["address"]) for entry in addresses if entry.get("type") == kind), NONE)

    return cell


def _node_info(name: str, default: str = UNKNOWN) -> Cell:
    return lambda node, _: (status_of(node).get("nodeInfo") or {}).get(name) or default


def _kernel(node: JsonObject, now: datetime) -> str:
    version = str(_node_info("kernelVersion")(node, now))
    architecture = _node_info("architecture", default="")(node, now)
    return f"{version} ({architecture})" if architecture and version != UNKNOWN else version


def _first_seen(event: JsonObject, now: datetime) -> str:
    return since(event.get("firstTimestamp") or event.get("eventTime"), now)


def _last_seen(event: JsonObject, now: datetime) -> str:
    observed = find(event, ("series", "lastObservedTime")) or event.get("lastTimestamp")
    return since(observed, now) if observed else _first_seen(event, now)


def _event_count(event: JsonObject, _now: datetime) -> Any:
    return find(event, ("series", "count")) or event.get("count") or 1


def _event_object(event: JsonObject, _now: datetime) -> str:
    about = event.get("involvedObject") or {}
    return "/".join(part for part in (str(about.get("kind", "")).lower(), about.get("name")) if part)


def _event_source(event: JsonObject, _now: datetime) -> str:
    source = event.get("source") or {}
    component = source.get("component") or event.get("reportingComponent")
    host = source.get("host") or event.get("reportingInstance")
    return ", ".join(str(part) for part in (component, host) if part)


def _claim_state(claim: JsonObject, _now: datetime) -> str:
    deleted = ["deleted"] if is_terminating(claim) else []
    if not status_of(claim).get("allocation"):
        return ",".join(deleted or ["pending"])
    reserved = ["reserved"] if status_of(claim).get("reservedFor") else []
    return ",".join([*deleted, "allocated", *reserved])


def _slice_node(slice_: JsonObject, _now: datetime) -> Any:
    spec = spec_of(slice_)
    if spec.get("allNodes"):
        return "<all>"
    return spec.get("nodeName") or ("<selected>" if spec.get("nodeSelector") else NONE)


def _role_ref(binding: JsonObject, _now: datetime) -> str:
    ref = binding.get("roleRef") or {}
    return f"{ref.get('kind')}/{ref.get('name')}"


def _subjects(kind: str) -> Cell:
    def cell(binding: JsonObject, _now: datetime) -> str:
        found = [subject for subject in binding.get("subjects") or () if subject.get("kind") == kind]
        scoped = kind == "ServiceAccount"
        return ", ".join(
            f"{subject.get('namespace')}/{subject['name']}" if scoped else subject["name"]
            for subject in found
        )

    return cell


def _deployment_ready(deployment: JsonObject, _now: datetime) -> str:
    return f"{status_of(deployment).get('readyReplicas') or 0}/{spec_of(deployment).get('replicas') or 0}"


def _of_containers(name: str) -> Cell:
    def cell(workload: JsonObject, _now: datetime) -> str:
        containers = find(workload, ("spec", "template", "spec", "containers")) or ()
        return ",".join(str(container.get(name, "")) for container in containers)

    return cell


def _selector(workload: JsonObject, _now: datetime) -> str:
    labels = find(workload, ("spec", "selector", "matchLabels")) or {}
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items())) or NONE


_TEMPLATE = (
    Column("Containers", _of_containers("name"), priority=1),
    Column("Images", _of_containers("image"), priority=1),
    Column("Selector", _selector, priority=1),
)

_BINDING = (
    Column("Role", _role_ref),
    _AGE,
    Column("Users", _subjects("User"), priority=1),
    Column("Groups", _subjects("Group"), priority=1),
    Column("ServiceAccounts", _subjects("ServiceAccount"), priority=1),
)

_COLUMNS: Mapping[ResourceType, tuple[Column, ...]] = {
    PODS: (
        Column("Ready", _pod_ready),
        Column("Status", _pod_status),
        Column("Restarts", _pod_restarts),
        _AGE,
        Column("IP", _of_field("status", "podIP", default=NONE), priority=1),
        Column("Node", _of_field("spec", "nodeName", default=NONE), priority=1),
        Column("Nominated Node", _of_field("status", "nominatedNodeName", default=NONE), priority=1),
        Column("Readiness Gates", _readiness_gates, priority=1),
    ),
    NODES: (
        Column("Status", _node_status),
        Column("Roles", _node_roles),
        _AGE,
        Column("Version", _node_info("kubeletVersion", default="")),
        Column("Internal-IP", _node_address("InternalIP"), priority=1),
        Column("External-IP", _node_address("ExternalIP"), priority=1),
        Column("OS-Image", _node_info("osImage"), priority=1),
        Column("Kernel-Version", _kernel, priority=1),
        Column("Container-Runtime", _node_info("containerRuntimeVersion"), priority=1),
    ),
    EVENTS: (
        Column("Last Seen", _last_seen),
        Column("Type", _of_field("type")),
        Column("Reason", _of_field("reason")),
        Column("Object", _event_object),
        Column("Subobject", _of_field("involvedObject", "fieldPath"), priority=1),
        Column("Source", _event_source, priority=1),
        Column("Message", lambda event, _: str(event.get("message") or "").strip()),
        Column("First Seen", _first_seen, priority=1),
        Column("Count", _event_count, priority=1),
        Column("Name", lambda event, _: name_of(event), priority=1, format="name"),
    ),
    DEPLOYMENTS: (
        Column("Ready", _deployment_ready),
        Column("Up-to-date", _of_field("status", "updatedReplicas", default=0), "integer"),
        Column("Available", _of_field("status", "availableReplicas", default=0), "integer"),
        _AGE,
        *_TEMPLATE,
    ),
    REPLICA_SETS: (
        Column("Desired", _of_field("spec", "replicas", default=0), "integer"),
        Column("Current", _of_field("status", "replicas", default=0), "integer"),
        Column("Ready", _of_field("status", "readyReplicas", default=0), "integer"),
        _AGE,
        *_TEMPLATE,
    ),
    LEASES: (Column("Holder", _of_field("spec", "holderIdentity")), _AGE),
    NAMESPACES: (Column("Status", _of_field("status", "phase")), _AGE),
    CONFIG_MAPS: (
        Column("Data", lambda cm, _: len(cm.get("data") or {}) + len(cm.get("binaryData") or {})),
        _AGE,
    ),
    POD_DISRUPTION_BUDGETS: (
        Column("Min Available", lambda pdb, _: str(spec_of(pdb).get("minAvailable", "N/A"))),
        Column("Max Unavailable", lambda pdb, _: str(spec_of(pdb).get("maxUnavailable", "N/A"))),
        Column("Allowed Disruptions", _of_field("status", "disruptionsAllowed", default=0), "integer"),
        _AGE,
    ),
    PRIORITY_CLASSES: (
        Column("Value", _of_field("value", default=0), "integer"),
        Column("Global-Default", _of_field("globalDefault", default=False), "boolean"),
        _AGE,
        Column("PreemptionPolicy", _of_field("preemptionPolicy", default="PreemptLowerPriority")),
    ),
    RESOURCE_CLAIMS: (Column("State", _claim_state), _AGE),
    RESOURCE_SLICES: (
        Column("Node", _slice_node),
        Column("Driver", _of_field("spec", "driver")),
        Column("Pool", _of_field("spec", "pool", "name")),
        _AGE,
    ),
    ROLES: (_CREATED,),
    CLUSTER_ROLES: (_CREATED,),
    CUSTOM_RESOURCE_DEFINITIONS: (_CREATED,),
    ROLE_BINDINGS: _BINDING,
    CLUSTER_ROLE_BINDINGS: _BINDING,
}
"""The columns after the name; a column with the format `name` replaces that one."""
