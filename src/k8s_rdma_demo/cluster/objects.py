"""Kubernetes objects as JSON, and the resource types that the API server stand-in serves, with their URLs.

Timestamps and JSON are written as the API server does, which is a Go program.
"""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from k8s_rdma.errors import MalformedError

if TYPE_CHECKING:
    from collections.abc import Callable


ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
"""The name that Go has for the architecture of this machine."""

VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.2", "platform": f"linux/{ARCHITECTURE}"}
"""The version of Kubernetes that the stand-ins resemble."""

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")

# json.Marshal escapes these inside strings, so that the text is safe in HTML and JavaScript.
_ESCAPED = {
    b"&": rb"\u0026",
    b"<": rb"\u003c",
    b">": rb"\u003e",
    "\u2028".encode(): rb"\u2028",
    "\u2029".encode(): rb"\u2029",
}

JsonObject: TypeAlias = dict[str, Any]
"""An object as decoded from JSON; never changed in place once it is in a store or a cache."""

Key: TypeAlias = tuple[str, str]
"""Namespace and name; the namespace is empty for cluster-scoped objects."""

Clock: TypeAlias = "Callable[[], datetime]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceType:
    """A kind of object.

    has_status: `status` is written through the `/status` subresource only.
    unconditional_update: a PUT without `resourceVersion` is taken (`AllowUnconditionalUpdate`).
    custom: of a CustomResourceDefinition. short_names, categories, verbs: as in discovery.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    has_status: bool = False
    unconditional_update: bool = True
    custom: bool = False
    short_names: tuple[str, ...] = field(default=(), compare=False)
    categories: tuple[str, ...] = field(default=(), compare=False)
    verbs: tuple[str, ...] = field(default=VERBS, compare=False)

    @property
    def singular(self) -> str:
        """The name for one object."""
        return self.kind.lower()

    @property
    def api_version(self) -> str:
        """The `apiVersion` of the kind: `v1`, or `<group>/<version>`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """`pods`, or `leases.coordination.k8s.io`: how error messages call it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def prefix(self) -> str:
        """The path under which the API serves it, without namespaces."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, *, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The URL path of the collection (of one namespace, or of all), an object or its subresource."""
        scope = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        tail = "".join(f"/{part}" for part in (name, subresource) if part)
        return f"{self.prefix}{scope}/{self.plural}{tail}"


PODS = ResourceType(
    group="",
    version="v1",
    plural="pods",
    kind="Pod",
    namespaced=True,
    has_status=True,
    short_names=("po",),
    categories=("all",),
)
NODES = ResourceType(
    group="",
    version="v1",
    plural="nodes",
    kind="Node",
    namespaced=False,
    has_status=True,
    short_names=("no",),
)
EVENTS = ResourceType(
    group="", version="v1", plural="events", kind="Event", namespaced=True, short_names=("ev",)
)
LEASES = ResourceType(
    group="coordination.k8s.io",
    version="v1",
    plural="leases",
    kind="Lease",
    namespaced=True,
    unconditional_update=False,
)
POD_DISRUPTION_BUDGETS = ResourceType(
    group="policy",
    version="v1",
    plural="poddisruptionbudgets",
    kind="PodDisruptionBudget",
    namespaced=True,
    has_status=True,
    unconditional_update=False,
    short_names=("pdb",),
)

PRIORITY_CLASSES = ResourceType(
    group="scheduling.k8s.io",
    version="v1",
    plural="priorityclasses",
    kind="PriorityClass",
    namespaced=False,
    short_names=("pc",),
)
NAMESPACES = ResourceType(
    group="",
    version="v1",
    plural="namespaces",
    kind="Namespace",
    namespaced=False,
    has_status=True,
    short_names=("ns",),
    verbs=tuple(verb for verb in VERBS if verb != "deletecollection"),
)
SERVICE_ACCOUNTS = ResourceType(
    group="",
    version="v1",
    plural="serviceaccounts",
    kind="ServiceAccount",
    namespaced=True,
    short_names=("sa",),
)
SERVICES = ResourceType(
    group="",
    version="v1",
    plural="services",
    kind="Service",
    namespaced=True,
    short_names=("svc",),
    verbs=("get", "list", "watch"),
)
"""There are no Services; `kubectl cluster-info` lists them."""

RESOURCE_SLICES = ResourceType(
    group="resource.k8s.io", version="v1", plural="resourceslices", kind="ResourceSlice", namespaced=False
)
RESOURCE_CLAIMS = ResourceType(
    group="resource.k8s.io",
    version="v1",
    plural="resourceclaims",
    kind="ResourceClaim",
    namespaced=True,
    has_status=True,
)
RESOURCE_CLAIM_TEMPLATES = ResourceType(
    group="resource.k8s.io",
    version="v1",
    plural="resourceclaimtemplates",
    kind="ResourceClaimTemplate",
    namespaced=True,
)
DEVICE_CLASSES = ResourceType(
    group="resource.k8s.io", version="v1", plural="deviceclasses", kind="DeviceClass", namespaced=False
)
DEPLOYMENTS = ResourceType(
    group="apps",
    version="v1",
    plural="deployments",
    kind="Deployment",
    namespaced=True,
    has_status=True,
    short_names=("deploy",),
    categories=("all",),
)
REPLICA_SETS = ResourceType(
    group="apps",
    version="v1",
    plural="replicasets",
    kind="ReplicaSet",
    namespaced=True,
    has_status=True,
    short_names=("rs",),
    categories=("all",),
)
CONFIG_MAPS = ResourceType(
    group="", version="v1", plural="configmaps", kind="ConfigMap", namespaced=True, short_names=("cm",)
)
CUSTOM_RESOURCE_DEFINITIONS = ResourceType(
    group="apiextensions.k8s.io",
    version="v1",
    plural="customresourcedefinitions",
    kind="CustomResourceDefinition",
    namespaced=False,
    has_status=True,
    unconditional_update=False,
    short_names=("crd", "crds"),
)


def _of_rbac(plural: str, kind: str, *, namespaced: bool) -> ResourceType:
    group = "rbac.authorization.k8s.io"
    return ResourceType(group=group, version="v1", plural=plural, kind=kind, namespaced=namespaced)


ROLES = _of_rbac("roles", "Role", namespaced=True)
ROLE_BINDINGS = _of_rbac("rolebindings", "RoleBinding", namespaced=True)
CLUSTER_ROLES = _of_rbac("clusterroles", "ClusterRole", namespaced=False)
CLUSTER_ROLE_BINDINGS = _of_rbac("clusterrolebindings", "ClusterRoleBinding", namespaced=False)


def _review(group: str, kind: str, *, namespaced: bool = False) -> ResourceType:
    plural = f"{kind.lower()}s"
    return ResourceType(
        group=group, version="v1", plural=plural, kind=kind, namespaced=namespaced, verbs=("create",)
    )


REVIEWS = (
    _review("authentication.k8s.io", "SelfSubjectReview"),
    _review("authorization.k8s.io", "SelfSubjectAccessReview"),
    _review("authorization.k8s.io", "SelfSubjectRulesReview"),
    _review("authorization.k8s.io", "SubjectAccessReview"),
)
"""Questions about users and their rights, which are answered and not stored."""

TOKEN_REQUESTS = _review("authentication.k8s.io", "TokenRequest", namespaced=True)
"""Served as `serviceaccounts/token` alone."""

BUILT_IN = (
    PODS,
    NODES,
    EVENTS,
    LEASES,
    POD_DISRUPTION_BUDGETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    CONFIG_MAPS,
    DEPLOYMENTS,
    REPLICA_SETS,
    ROLES,
    ROLE_BINDINGS,
    CLUSTER_ROLES,
    CLUSTER_ROLE_BINDINGS,
    NAMESPACES,
    PRIORITY_CLASSES,
    RESOURCE_SLICES,
    RESOURCE_CLAIMS,
    RESOURCE_CLAIM_TEMPLATES,
    DEVICE_CLASSES,
    CUSTOM_RESOURCE_DEFINITIONS,
    *REVIEWS,
)


def parse_resource_type(text: str) -> ResourceType:
    """A custom resource as `<group>/<version>/<plural>/<Kind>[/namespaced]`, with a status subresource."""
    parts = text.split("/")
    namespaced = parts[4:] == ["namespaced"]
    if len(parts) != (5 if namespaced else 4) or not all(parts):
        msg = f"resource type {text!r}: wanted <group>/<version>/<plural>/<Kind>[/namespaced]"
        raise MalformedError(msg)
    group, version, plural, kind = parts[:4]
    return ResourceType(
        group=group,
        version=version,
        plural=plural,
        kind=kind,
        namespaced=namespaced,
        has_status=True,
        unconditional_update=False,
        custom=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The target of a URL path: a collection (no name), an object, or a subresource of one.

    proxy_path: the rest of the path after the subresource `proxy`.
    """

    resource: ResourceType
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    proxy_path: str = ""


def resolve(path: str, resources: tuple[ResourceType, ...]) -> Target | None:
    """Read a URL path (source: API conventions, "Resource URIs"), if it names one of `resources`."""
    for resource in resources:
        if not path.startswith(f"{resource.prefix}/"):
            continue
        parts = path.removeprefix(f"{resource.prefix}/").split("/")
        namespace = ""
        if resource.namespaced and parts[0] == "namespaces" and len(parts) >= 3:
            namespace, parts = parts[1], parts[2:]
        proxy_path = ""
        if parts[2:3] == ["proxy"]:
            proxy_path, parts = "/" + "/".join(parts[3:]), parts[:3]
        if parts[0] != resource.plural or len(parts) > 3 or not all(parts):
            continue
        if resource.namespaced and not namespace and len(parts) > 1:
            continue
        name, subresource = (*parts[1:], "", "")[:2]
        return Target(
            resource=resource,
            namespace=namespace,
            name=name,
            subresource=subresource,
            proxy_path=proxy_path,
        )
    return None


def go_json(value: object, *, order: Literal["deterministic"] | None = None) -> bytes:
    """Encode without white space; order "deterministic" sorts all keys, as Go does with maps."""
    encoded = msgspec.json.encode(value, order=order)
    for raw, escape in _ESCAPED.items():
        encoded = encoded.replace(raw, escape)
    return encoded


def go_quote(text: str) -> str:
    """`%q`: the text in double quotes, with unprintable characters escaped."""
    return msgspec.json.encode(text).decode()


def fields_regardless_of_case(obj: JsonObject) -> JsonObject:
    """The object with lower-case keys and without nulls, as json.Unmarshal reads it into a struct."""
    return {name.lower(): value for name, value in obj.items() if value is not None}


def untyped(obj: JsonObject) -> JsonObject:
    """Remove `kind` and `apiVersion`, which objects in lists and Go's typed objects lack."""
    return {name: value for name, value in obj.items() if name not in {"kind", "apiVersion"}}


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
    """The object's metadata; empty if absent."""
    return obj.get("metadata") or {}


def name_of(obj: JsonObject) -> str:
    """Return `metadata.name`."""
    return str(metadata(obj).get("name", ""))


def namespace_of(obj: JsonObject) -> str:
    """`metadata.namespace`; empty for cluster-scoped objects."""
    return str(metadata(obj).get("namespace", ""))


def uid_of(obj: JsonObject) -> str:
    """Return `metadata.uid`."""
    return str(metadata(obj).get("uid", ""))


def key_of(obj: JsonObject) -> Key:
    """Return namespace and name."""
    return namespace_of(obj), name_of(obj)


def annotations_of(obj: JsonObject) -> dict[str, str]:
    """`metadata.annotations`; empty if absent."""
    return metadata(obj).get("annotations") or {}


def labels_of(obj: JsonObject) -> dict[str, str]:
    """`metadata.labels`; empty if absent."""
    return metadata(obj).get("labels") or {}


def spec_of(obj: JsonObject) -> JsonObject:
    """`spec`; empty if absent."""
    return obj.get("spec") or {}


def status_of(obj: JsonObject) -> JsonObject:
    """`status`; empty if absent."""
    return obj.get("status") or {}


def node_name_of(pod: JsonObject) -> str:
    """The node a pod is bound to; empty while it is not."""
    return str(spec_of(pod).get("nodeName", ""))


def priority_of(pod: JsonObject) -> int:
    """A pod's priority; 0 if admission did not set it."""
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
