"""The store of the API server: objects, revisions, changes for watches, preconditions and selectors.

Source: `k8s.io/apimachinery/pkg/labels` and `/fields`.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from k8s_rdma_demo.cluster.objects import (
    EVENTS,
    NODES,
    PODS,
    RESOURCE_SLICES,
    JsonObject,
    Key,
    ResourceType,
    key_of,
    labels_of,
    metadata,
    name_of,
    namespace_of,
)
from k8s_rdma_demo.cluster.status import bad_request, conflict, expired

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Predicate: TypeAlias = "Callable[[JsonObject], bool]"

_FIELDS = {
    PODS: ("spec.nodeName", "spec.schedulerName", "spec.restartPolicy", "status.phase", "status.podIP"),
    NODES: ("spec.unschedulable",),
    RESOURCE_SLICES: ("spec.nodeName", "spec.driver"),
    EVENTS: (
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "reason",
        "type",
    ),
}
_SET = re.compile(r"^(?P<key>\S+)\s+(?P<operator>in|notin)\s+\((?P<values>[^()]*)\)$")
_EQUAL = re.compile(r"^(?P<key>[^=!\s]+)\s*(?P<operator>==|!=|=)\s*(?P<value>[^=!\s]*)$")
_EXISTS = re.compile(r"^(?P<absent>!?)\s*(?P<key>[^=!\s()]+)$")
_COMMA_OUTSIDE_PARENTHESES = re.compile(r",(?![^()]*\))")

ChangeType: TypeAlias = Literal["ADDED", "MODIFIED", "DELETED"]


def selects(selector: JsonObject, labels: Mapping[str, str]) -> bool:
    """Report whether the labels meet the selector; an empty one selects everything."""
    match_labels: dict[str, str] = selector.get("matchLabels") or {}
    expressions: list[JsonObject] = selector.get("matchExpressions") or []
    return match_labels.items() <= labels.items() and all(
        _meets(labels, expression) for expression in expressions
    )


def _meets(labels: Mapping[str, str], expression: JsonObject) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or ()
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[expression["operator"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The selection of a list or watch: the objects of a namespace (empty: all) that match all predicates."""

    namespace: str = ""
    predicates: tuple[Predicate, ...] = ()

    def matches(self, obj: JsonObject | None) -> bool:
        """Report whether the object exists and is selected."""
        if obj is None or (self.namespace and namespace_of(obj) != self.namespace):
            return False
        return all(predicate(obj) for predicate in self.predicates)


def parse_selection(resource: ResourceType, namespace: str, query: dict[str, str]) -> Selection:
    """The selection that a request's `labelSelector` and `fieldSelector` describe; StatusError 400."""
    labels = [_label_term(term) for term in _terms(query.get("labelSelector", ""))]
    fields = [_field_term(resource, term) for term in _terms(query.get("fieldSelector", ""))]
    return Selection(namespace=namespace, predicates=(*labels, *fields))


def _terms(selector: str) -> list[str]:
    return [term.strip() for term in _COMMA_OUTSIDE_PARENTHESES.split(selector) if term.strip()]


def _label_term(term: str) -> Predicate:
    if match := _SET.match(term):
        values = {value.strip() for value in match["values"].split(",")}
        return _label_in(match["key"], values, expected=match["operator"] == "in")
    if match := _EQUAL.match(term):
        return _label_in(match["key"], {match["value"]}, expected=match["operator"] != "!=")
    if match := _EXISTS.match(term):
        key, absent = match["key"], bool(match["absent"])
        return lambda obj: (key in labels_of(obj)) is not absent
    raise bad_request(f"unable to parse requirement: {term}")


def _label_in(key: str, values: set[str], *, expected: bool) -> Predicate:
    # An object without the label is none of the values: `!=` and `notin` take it.
    return lambda obj: (labels_of(obj).get(key) in values) is expected


def _field_term(resource: ResourceType, term: str) -> Predicate:
    match = _EQUAL.match(term)
    if match is None:
        raise bad_request(f"invalid field selector: {term}")
    path, value, expected = match["key"], match["value"], match["operator"] != "!="
    if path == "metadata.name":
        return lambda obj: (name_of(obj) == value) is expected
    if path == "metadata.namespace":
        return lambda obj: (namespace_of(obj) == value) is expected
    if path not in _FIELDS.get(resource, ()):
        raise bad_request(f"field label not supported: {path}")
    return lambda obj: (_field(obj, path) == value) is expected


def _field(obj: JsonObject, path: str) -> str:
    value: object = obj
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preconditions:
    """A request's preconditions on the object; empty: none."""

    uid: str = ""
    resource_version: str = ""

    def check(self, resource: ResourceType, obj: JsonObject) -> None:
        """Refuse (StatusError 409) another object, in the words of the API server's storage."""
        found = metadata(obj)
        for name, expected, field_name in (
            ("UID", self.uid, "uid"),
            ("ResourceVersion", self.resource_version, "resourceVersion"),
        ):
            if expected and expected != found[field_name]:
                key = "/".join(part for part in (resource.plural, namespace_of(obj), name_of(obj)) if part)
                why = (
                    f"StorageError: invalid object, Code: 4, Key: /registry/{key}, ResourceVersion: 0, "
                    f"AdditionalErrorMsg: Precondition failed: {name} in precondition: {expected}, "
                    f"{name} in object meta: {found[field_name]}"
                )
                raise conflict(resource, name_of(obj), why)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOptions:
    """`metav1.DeleteOptions`, as far as it is heeded; grace_period_s None: the object's own.

    orphans: the objects that it owns stay.
    """

    grace_period_s: int | None = None
    preconditions: Preconditions = Preconditions()
    dry_run: bool = False
    orphans: bool = False


def parse_delete_options(document: JsonObject) -> DeleteOptions:
    """Read `metav1.DeleteOptions`; StatusError 400 names what is wrong."""
    try:
        options = msgspec.convert(document, _DeleteOptions)
    except msgspec.ValidationError as error:
        raise bad_request(f"DeleteOptions: {error}") from error
    preconditions = options.preconditions or _Preconditions()
    for directive in options.dry_run or ():
        require_dry_run(directive)
    return DeleteOptions(
        grace_period_s=options.grace_period_seconds,
        preconditions=Preconditions(
            uid=preconditions.uid or "", resource_version=preconditions.resource_version or ""
        ),
        dry_run=bool(options.dry_run),
        orphans=options.propagation_policy == "Orphan",
    )


def require_dry_run(directive: str) -> None:
    """Refuse (StatusError 400) a `dryRun` other than that of all stages."""
    if directive != "All":
        raise bad_request(f'dryRun: Unsupported value: "{directive}": supported values: "All"')


class _Preconditions(msgspec.Struct, frozen=True, rename="camel"):
    uid: str | None = None
    resource_version: str | None = None


class _DeleteOptions(msgspec.Struct, frozen=True, rename="camel"):
    grace_period_seconds: int | None = None
    preconditions: _Preconditions | None = None
    dry_run: tuple[str, ...] | None = None
    propagation_policy: Literal["Orphan", "Background", "Foreground"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One write. previous: the object before it, None when it was created."""

    revision: int
    type: ChangeType
    resource: ResourceType
    object: JsonObject
    previous: JsonObject | None


class Store:
    """Objects by resource and key, in memory, for one event loop.

    Invariants: revisions only grow, by one a write; a stored object carries the revision of its last write
    as `metadata.resourceVersion`, as text, and is never changed in place.
    """

    def __init__(self, *, history_limit: int = 10_000) -> None:
        self.revision = 1
        self._objects: dict[ResourceType, dict[Key, JsonObject]] = {}
        self._history: deque[Change] = deque(maxlen=history_limit)
        self._grown = asyncio.Event()

    def get(self, resource: ResourceType, key: Key) -> JsonObject | None:
        """Return the object, or None."""
        return self._objects.get(resource, {}).get(key)

    def items(self, resource: ResourceType, namespace: str = "") -> list[JsonObject]:
        """All objects, of one namespace where it is given, in the order of their keys as etcd has them."""
        found = self._objects.get(resource, {})
        return [found[key] for key in sorted(found) if not namespace or key[0] == namespace]

    def put(self, resource: ResourceType, obj: JsonObject) -> JsonObject:
        """Create or replace; writing what is there already changes nothing. Returns what is stored."""
        key = key_of(obj)
        previous = self.get(resource, key)
        if previous is not None and _without_revision(previous) == _without_revision(obj):
            return previous
        stored = self._record("ADDED" if previous is None else "MODIFIED", resource, obj, previous)
        self._objects.setdefault(resource, {})[key] = stored
        return stored

    def remove(self, resource: ResourceType, key: Key) -> JsonObject:
        """Delete; returns the object as its watchers see it go. KeyError when it is not there."""
        previous = self._objects[resource].pop(key)
        return self._record("DELETED", resource, previous, previous)

    def resources(self) -> list[ResourceType]:
        """List the resources that there are objects of."""
        return [resource for resource, objects in self._objects.items() if objects]

    def draft(self) -> Store:
        """Return a store of the same objects, whose writes reach neither this one nor a watch."""
        draft = _Draft(history_limit=0)
        draft.revision = self.revision
        draft._objects = {resource: dict(objects) for resource, objects in self._objects.items()}
        return draft

    def changes_after(self, revision: int) -> list[Change]:
        """The writes since a revision, oldest first; StatusError 410 when they are not all known."""
        oldest = self.revision - len(self._history)
        if revision < oldest:
            raise expired(revision, oldest)
        newest_first = takewhile(lambda change: change.revision > revision, reversed(self._history))
        return list(newest_first)[::-1]

    async def wait_after(self, revision: int) -> None:
        """Return when there has been a write after that revision."""
        while self.revision <= revision:
            await self._grown.wait()

    def _record(
        self, kind: ChangeType, resource: ResourceType, obj: JsonObject, previous: JsonObject | None
    ) -> JsonObject:
        self.revision += 1
        stored = {**obj, "metadata": {**metadata(obj), "resourceVersion": str(self.revision)}}
        self._history.append(
            Change(revision=self.revision, type=kind, resource=resource, object=stored, previous=previous)
        )
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()
        return stored


class _Draft(Store):
    def _record(
        self, _kind: ChangeType, _resource: ResourceType, obj: JsonObject, _previous: JsonObject | None
    ) -> JsonObject:
        return obj


def _without_revision(obj: JsonObject) -> JsonObject:
    fields = {name: value for name, value in metadata(obj).items() if name != "resourceVersion"}
    return {**obj, "metadata": fields}
