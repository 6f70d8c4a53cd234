"""Label and field selectors (source: `k8s.io/apimachinery/pkg/labels` and `/fields`).

`metav1.LabelSelector` on an object's labels.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from k8s_rdma_demo.cluster.objects import JsonObject, labels_of, name_of, namespace_of
from k8s_rdma_demo.cluster.resources import EVENTS, NODES, PODS, ResourceType
from k8s_rdma_demo.cluster.status import bad_request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def selects(selector: JsonObject, labels: Mapping[str, str]) -> bool:
    """Whether all that the selector demands is so; one that demands nothing selects everything."""
    wanted: dict[str, str] = selector.get("matchLabels") or {}
    expressions: list[JsonObject] = selector.get("matchExpressions") or []
    return wanted.items() <= labels.items() and all(_meets(labels, expression) for expression in expressions)


def _meets(labels: Mapping[str, str], expression: JsonObject) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or ()
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[expression["operator"]]


Predicate: TypeAlias = "Callable[[JsonObject], bool]"

_FIELDS = {
    PODS: ("spec.nodeName", "spec.schedulerName", "spec.restartPolicy", "status.phase", "status.podIP"),
    NODES: ("spec.unschedulable",),
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
    """What a list or watch is about: the objects of a namespace (empty: all) that every predicate takes."""

    namespace: str = ""
    predicates: tuple[Predicate, ...] = ()

    def takes(self, obj: JsonObject | None) -> bool:
        """Whether the object is there and selected."""
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
        return _one_of(match["key"], values, wanted=match["operator"] == "in")
    if match := _EQUAL.match(term):
        return _one_of(match["key"], {match["value"]}, wanted=match["operator"] != "!=")
    if match := _EXISTS.match(term):
        key, absent = match["key"], bool(match["absent"])
        return lambda obj: (key in labels_of(obj)) is not absent
    raise bad_request(f"unable to parse requirement: {term}")


def _one_of(key: str, values: set[str], *, wanted: bool) -> Predicate:
    # An object without the label is none of the values: `!=` and `notin` take it.
    return lambda obj: (labels_of(obj).get(key) in values) is wanted


def _field_term(resource: ResourceType, term: str) -> Predicate:
    match = _EQUAL.match(term)
    if match is None:
        raise bad_request(f"invalid field selector: {term}")
    path, value, wanted = match["key"], match["value"], match["operator"] != "!="
    if path == "metadata.name":
        return lambda obj: (name_of(obj) == value) is wanted
    if path == "metadata.namespace":
        return lambda obj: (namespace_of(obj) == value) is wanted
    if path not in _FIELDS.get(resource, ()):
        raise bad_request(f"field label not supported: {path}")
    return lambda obj: (_field(obj, path) == value) is wanted


def _field(obj: JsonObject, path: str) -> str:
    value: object = obj
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
