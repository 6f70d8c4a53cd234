"""Custom resources, as their CustomResourceDefinitions describe them.

Objects are served in their storage version alone, and checked for unknown fields but not against the rest of
the schema.

Source: `k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1/types.go` and `validation`,
`k8s.io/client-go/util/jsonpath`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from k8s_rdma_demo.cluster.fields import unknown_fields
from k8s_rdma_demo.cluster.objects import (
    CUSTOM_RESOURCE_DEFINITIONS,
    JsonObject,
    ResourceType,
    name_of,
    spec_of,
)
from k8s_rdma_demo.cluster.status import bad_request, invalid

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma_demo.cluster.store import Store

Step: TypeAlias = str | int | tuple[str, str]
"""A step of a JSON path: a field, an index, or the elements whose field has a value."""

_STEP = re.compile(
    r"\.(?P<field>[\w-]+)"
    r"|\['(?P<quoted>(?:[^'\\]|\\.)+)'\]"
    r"|\[(?P<index>\d+)\]"
    r"""|\[\?\(\s*@\.(?P<key>[\w-]+)\s*==\s*(?P<quote>["'])(?P<value>[^"']*)(?P=quote)\s*\)\]"""
)


class CustomColumn(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`CustomResourceColumnDefinition`."""

    name: str
    type: str
    json_path: str = msgspec.field(name="jsonPath")
    format: str = ""
    description: str = ""
    priority: int = 0


class _Names(msgspec.Struct, frozen=True, rename="camel"):
    plural: str
    kind: str
    singular: str = ""
    list_kind: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()


class _Version(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    served: bool
    storage: bool
    subresources: dict[str, Any] = {}
    additional_printer_columns: tuple[CustomColumn, ...] = ()
    schema: dict[str, Any] = {}


class _Spec(msgspec.Struct, frozen=True):
    group: str
    scope: str
    names: _Names
    versions: tuple[_Version, ...]

    @property
    def stored(self) -> _Version:
        """The storage version."""
        return next(version for version in self.versions if version.storage)


def _decoded(definition: JsonObject) -> _Spec:
    try:
        return msgspec.convert(spec_of(definition), _Spec)
    except msgspec.ValidationError as error:
        raise bad_request(f"CustomResourceDefinition: spec: {error}") from error


def checked_definition(definition: JsonObject, now: str) -> JsonObject:
    """Return the definition with its names established at `now`; StatusError 400 or 422 for a wrong one."""
    spec = _decoded(definition)
    name = name_of(definition)
    if name != f"{spec.names.plural}.{spec.group}":
        why = f'Invalid value: "{name}": must be spec.names.plural+"."+spec.group'
        raise _invalid(name, "metadata.name", why)
    if sum(version.storage for version in spec.versions) != 1:
        why = "Invalid value: must have exactly one version marked as storage version"
        raise _invalid(name, "spec.versions", why)
    for index, version in enumerate(spec.versions):
        for number, column in enumerate(version.additional_printer_columns):
            if parse_json_path(column.json_path) is None:
                path = f"spec.versions[{index}].additionalPrinterColumns[{number}].jsonPath"
                raise _invalid(name, path, f'Invalid value: "{column.json_path}": unrecognized JSON path')
    status = definition.get("status") or {}
    conditions = status.get("conditions") or [
        {"type": kind, "status": "True", "lastTransitionTime": now, "reason": reason, "message": message}
        for kind, reason, message in (
            ("NamesAccepted", "NoConflicts", "no conflicts found"),
            ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        )
    ]
    status = {
        "conditions": conditions,
        "acceptedNames": spec_of(definition)["names"],
        "storedVersions": [spec.stored.name],
    }
    return {**definition, "status": status}


def _invalid(name: str, path: str, why: str) -> Exception:
    return invalid(CUSTOM_RESOURCE_DEFINITIONS, name, path, "FieldValueInvalid", why)


def served_resources(store: Store) -> tuple[ResourceType, ...]:
    """Return the resources that the definitions in the store describe."""
    return tuple(map(resource_of, store.items(CUSTOM_RESOURCE_DEFINITIONS)))


def resource_of(definition: JsonObject) -> ResourceType:
    """Return the resource that a definition describes."""
    spec = _decoded(definition)
    return ResourceType(
        group=spec.group,
        version=spec.stored.name,
        plural=spec.names.plural,
        kind=spec.names.kind,
        namespaced=spec.scope == "Namespaced",
        has_status="status" in spec.stored.subresources,
        unconditional_update=False,
        custom=True,
        short_names=spec.names.short_names,
        categories=spec.names.categories,
    )


def _definition_of(resource: ResourceType, store: Store) -> _Version | None:
    definition = store.get(CUSTOM_RESOURCE_DEFINITIONS, ("", resource.qualified))
    return _decoded(definition).stored if definition is not None else None


def printer_columns(resource: ResourceType, store: Store) -> tuple[CustomColumn, ...]:
    """Return the columns of a resource's definition; empty without a definition or columns."""
    definition = _definition_of(resource, store)
    return definition.additional_printer_columns if definition else ()


def schema_of(resource: ResourceType, store: Store) -> JsonObject | None:
    """Return the `openAPIV3Schema` of a resource's definition, if there is one."""
    definition = _definition_of(resource, store)
    return definition.schema.get("openAPIV3Schema") if definition else None


def unknown_fields_of(obj: JsonObject, resource: ResourceType, store: Store) -> Iterator[str]:
    """Find the paths of fields that the resource's kind does not have, as far as they are known."""
    yield from unknown_fields(obj, "" if resource.custom else resource.kind)
    if schema := schema_of(resource, store):
        own: JsonObject = {name: {} for name in ("kind", "apiVersion", "metadata")}
        yield from _unknown(obj, {**schema, "properties": schema.get("properties", {}) | own}, "")


def _unknown(value: Any, schema: JsonObject, path: str) -> Iterator[str]:
    if isinstance(value, list):
        for index, element in enumerate(value):
            yield from _unknown(element, schema.get("items") or {}, f"{path.removesuffix('.')}[{index}].")
    if not isinstance(value, dict) or "properties" not in schema:
        return
    for name, item in value.items():
        if name in schema["properties"]:
            yield from _unknown(item, schema["properties"][name], f"{path}{name}.")
        elif not schema.get("x-kubernetes-preserve-unknown-fields"):
            yield f"{path}{name}"


def parse_json_path(text: str) -> tuple[Step, ...] | None:
    """Parse a path of fields, indices and equality filters, as `.a[?(@.b=="c")].d`; None if malformed."""
    steps: list[Step] = []
    position = 0
    while match := _STEP.match(text, position):
        position = match.end()
        if match["key"]:
            steps.append((match["key"], match["value"]))
        elif match["index"]:
            steps.append(int(match["index"]))
        else:
            steps.append(match["field"] or re.sub(r"\\(.)", r"\1", match["quoted"]))
    return tuple(steps) if steps and position == len(text) else None


def find(obj: JsonObject, path: tuple[Step, ...]) -> Any:
    """Return the first value at a path, if there is one."""
    value: Any = obj
    for step in path:
        match value, step:
            case dict(), str():
                value = value.get(step)
            case list(), int():
                value = value[step] if step < len(value) else None
            case list(), (key, expected):
                elements = (element for element in value if isinstance(element, dict))
                value = next((element for element in elements if element.get(key) == expected), None)
            case _:
                return None
    return value
