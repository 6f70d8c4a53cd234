"""Selectors of lists and watches, and of the objects that select others.

Source: `k8s.io/apimachinery/pkg/labels` and `/fields`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from k8s_rdma_demo.cluster.objects import (
    EVENTS,
    NODES,
    PODS,
    RESOURCE_SLICES,
    JsonObject,
    ResourceType,
    labels_of,
    name_of,
    namespace_of,
)
from k8s_rdma_demo.cluster.status import bad_request

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
    # An object without the label has no value in the set: `!=` and `notin` take it.
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
