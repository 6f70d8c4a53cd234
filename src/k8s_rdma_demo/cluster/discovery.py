"""Discovery and OpenAPI documents: clients read them before they use the API.

Aggregated discovery is left out, since clients fall back to the lists by group. Built-in kinds are described
by their fields' names and types alone.

Sources: `k8s.io/apimachinery/pkg/apis/meta/v1/types.go` (`APIResourceList`), OpenAPI 3.0.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

from k8s_rdma_demo.cluster.bodies import JSON, MERGE, STRATEGIC
from k8s_rdma_demo.cluster.fields import FIELDS, fields_of_kind
from k8s_rdma_demo.cluster.objects import (
    DEPLOYMENTS,
    PODS,
    REPLICA_SETS,
    SERVICE_ACCOUNTS,
    VERSION,
    JsonObject,
    ResourceType,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SchemaOf: TypeAlias = Callable[[ResourceType], JsonObject | None]
"""The schema of a custom resource, if it is known."""

_SCALE: JsonObject = {
    "group": "autoscaling",
    "version": "v1",
    "kind": "Scale",
    "verbs": ["get", "patch", "update"],
}

_SUBRESOURCES: Mapping[ResourceType, tuple[JsonObject, ...]] = {
    PODS: (
        {"name": "pods/binding", "kind": "Binding"},
        {"name": "pods/eviction", "group": "policy", "version": "v1", "kind": "Eviction"},
    ),
    **{
        resource: ({"name": f"{resource.plural}/scale", **_SCALE},)
        for resource in (DEPLOYMENTS, REPLICA_SETS)
    },
    SERVICE_ACCOUNTS: (
        {
            "name": "serviceaccounts/token",
            "group": "authentication.k8s.io",
            "version": "v1",
            "kind": "TokenRequest",
        },
    ),
}
"""The subresources beside `status`, which are created only if they name no verbs."""


def discovery(path: str, resources: Sequence[ResourceType], schema_of: SchemaOf) -> JsonObject | None:
    """Return the document at a URL path, if there is one."""
    match path:
        case "/api":
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case "/apis":
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": list(_groups(resources).values())}
        case "/openapi/v3":
            prefixes = sorted({resource.prefix for resource in resources})
            return {"paths": {prefix[1:]: {"serverRelativeURL": f"{path}{prefix}"} for prefix in prefixes}}
    if served := [resource for resource in resources if resource.prefix == path]:
        return _resource_list(served)
    if served := [resource for resource in resources if f"/openapi/v3{resource.prefix}" == path]:
        return _openapi(served, schema_of)
    group = _groups(resources).get(path.removeprefix("/apis/"))
    return {"kind": "APIGroup", "apiVersion": "v1", **group} if group else None


def _groups(resources: Sequence[ResourceType]) -> dict[str, JsonObject]:
    versions = sorted(
        {(resource.group, resource.version) for resource in resources if resource.group}, reverse=True
    )
    groups = {}
    for group, of_group in groupby(
        sorted(versions, key=lambda version: version[0]), key=lambda version: version[0]
    ):
        listed = [{"groupVersion": f"{group}/{version}", "version": version} for _, version in of_group]
        groups[group] = {"name": group, "versions": listed, "preferredVersion": listed[0]}
    return groups


def _resource_list(resources: Sequence[ResourceType]) -> JsonObject:
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": resources[0].api_version,
        "resources": sorted(
            (entry for resource in resources for entry in _entries(resource)), key=lambda entry: entry["name"]
        ),
    }


def _entries(resource: ResourceType) -> list[JsonObject]:
    """Return the `APIResource` of a resource and those of its subresources."""
    scope = {"singularName": "", "namespaced": resource.namespaced}
    entry: JsonObject = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    entries = [
        entry,
        *({**scope, "verbs": ["create"], **subresource} for subresource in _SUBRESOURCES.get(resource, ())),
    ]
    if resource.has_status:
        name, verbs = f"{resource.plural}/status", ["get", "patch", "update"]
        entries.append({"name": name, **scope, "kind": resource.kind, "verbs": verbs})
    return entries


def _openapi(resources: Sequence[ResourceType], schema_of: SchemaOf) -> JsonObject:
    types = {
        name: {"type": "object", "properties": {field.name: field.schema() for field in fields.values()}}
        for name, fields in FIELDS.items()
    }
    kinds = {resource.kind: _schema(resource, schema_of(resource)) for resource in resources}
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": VERSION["gitVersion"]},
        "paths": {path: item for resource in resources for path, item in _paths(resource).items()},
        "components": {"schemas": types | kinds},
    }


def _kind(resource: ResourceType) -> JsonObject:
    return {"group": resource.group, "version": resource.version, "kind": resource.kind}


def _schema(resource: ResourceType, schema: JsonObject | None) -> JsonObject:
    properties = {field.name: field.schema() for field in fields_of_kind(resource.kind).values()}
    if schema is not None:
        properties = schema.get("properties", {}) | properties
    described = {**(schema or {}), "type": "object", "properties": properties}
    return described | {"x-kubernetes-group-version-kind": [_kind(resource)]}


def _paths(resource: ResourceType) -> JsonObject:
    """Describe how objects are read, and that patches take `dryRun` and `fieldValidation`."""
    kind = {"x-kubernetes-group-version-kind": _kind(resource)}
    answer = {"200": {"description": "OK"}}
    parameters = [
        {"name": name, "in": "query", "schema": {"type": "string"}} for name in ("dryRun", "fieldValidation")
    ]
    patches = (JSON, MERGE) if resource.custom else (JSON, MERGE, STRATEGIC)
    body = {"content": {content_type: {"schema": {"type": "object"}} for content_type in patches}}
    namespace = "{namespace}" if resource.namespaced else ""
    read = {"get": {**kind, "responses": answer}}
    patch = {"patch": {**kind, "parameters": parameters, "requestBody": body, "responses": answer}}
    return {
        resource.path(namespace=namespace): read,
        resource.path(namespace=namespace, name="{name}"): read | patch,
    }
