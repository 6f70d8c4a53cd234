"""The resource types of the API server stand-in, and their URLs."""

from __future__ import annotations

from dataclasses import dataclass

from k8s_rdma.errors import MalformedError


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceType:
    """A kind of object.

    has_status: `status` is written through the `/status` subresource only.
    unconditional_update: a PUT without `resourceVersion` is taken (`AllowUnconditionalUpdate`).
    custom: of a CustomResourceDefinition.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    has_status: bool = False
    unconditional_update: bool = True
    custom: bool = False

    @property
    def api_version(self) -> str:
        """`v1`, or `<group>/<version>`."""
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


PODS = ResourceType(group="", version="v1", plural="pods", kind="Pod", namespaced=True, has_status=True)
NODES = ResourceType(group="", version="v1", plural="nodes", kind="Node", namespaced=False, has_status=True)
EVENTS = ResourceType(group="", version="v1", plural="events", kind="Event", namespaced=True)
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
)

PRIORITY_CLASSES = ResourceType(
    group="scheduling.k8s.io",
    version="v1",
    plural="priorityclasses",
    kind="PriorityClass",
    namespaced=False,
)
NAMESPACES = ResourceType(
    group="", version="v1", plural="namespaces", kind="Namespace", namespaced=False, has_status=True
)
SERVICE_ACCOUNTS = ResourceType(
    group="", version="v1", plural="serviceaccounts", kind="ServiceAccount", namespaced=True
)
CONFIG_MAPS = ResourceType(group="", version="v1", plural="configmaps", kind="ConfigMap", namespaced=True)


def _of_rbac(plural: str, kind: str, *, namespaced: bool) -> ResourceType:
    group = "rbac.authorization.k8s.io"
    return ResourceType(group=group, version="v1", plural=plural, kind=kind, namespaced=namespaced)


ROLES = _of_rbac("roles", "Role", namespaced=True)
ROLE_BINDINGS = _of_rbac("rolebindings", "RoleBinding", namespaced=True)
CLUSTER_ROLES = _of_rbac("clusterroles", "ClusterRole", namespaced=False)
CLUSTER_ROLE_BINDINGS = _of_rbac("clusterrolebindings", "ClusterRoleBinding", namespaced=False)

BUILT_IN = (
    PODS,
    NODES,
    EVENTS,
    LEASES,
    POD_DISRUPTION_BUDGETS,
    SERVICE_ACCOUNTS,
    CONFIG_MAPS,
    ROLES,
    ROLE_BINDINGS,
    CLUSTER_ROLES,
    CLUSTER_ROLE_BINDINGS,
    NAMESPACES,
    PRIORITY_CLASSES,
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
    """The target of a URL path: a collection (no name), an object, or a subresource of one."""

    resource: ResourceType
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def resolve(path: str, resources: tuple[ResourceType, ...]) -> Target | None:
    """Read a URL path (source: API conventions, "Resource URIs"); None when it names none of `resources`."""
    for resource in resources:
        if not path.startswith(f"{resource.prefix}/"):
            continue
        parts = path.removeprefix(f"{resource.prefix}/").split("/")
        namespace = ""
        if resource.namespaced and parts[0] == "namespaces" and len(parts) >= 3:
            namespace, parts = parts[1], parts[2:]
        if parts[0] != resource.plural or len(parts) > 3 or not all(parts):
            continue
        if resource.namespaced and not namespace and len(parts) > 1:
            continue
        name, subresource = (*parts[1:], "", "")[:2]
        return Target(resource=resource, namespace=namespace, name=name, subresource=subresource)
    return None
