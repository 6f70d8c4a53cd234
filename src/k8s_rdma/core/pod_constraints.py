"""Kubernetes' own constraints of a pod: scheduling gates, and the nodes that its specification selects.

A node is judged as kube-scheduler judges it: it must have the labels of `nodeSelector` and be selected by the
required node affinity. Of the affinity's terms one must match, with all of its requirements. A term without
requirements, or with one that Kubernetes does not accept, matches no node.

Source: `nodeaffinity.go` of `k8s.io/component-helpers/scheduling/corev1/nodeaffinity`, `NewRequirement` of
`k8s.io/apimachinery/pkg/labels`, `ValidateNodeFieldSelectorRequirement` of `pkg/apis/core/validation`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

LABEL_OPERATORS = frozenset({"In", "NotIn", "Exists", "DoesNotExist"})
"""The operators of label selectors. A node affinity has `Gt` and `Lt`, too."""

NODE_NAME = "metadata.name"
"""The only field of a node that `matchFields` may compare."""

_LABEL_KEY = re.compile(
    r"(?:(?=[^/]{1,253}/)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*/)?"
    r"(?=.{1,63}$)[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?"
)
_LABEL_VALUE = re.compile(r"(?=.{0,63}$)(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_INT64 = 2**63

_MAX_SHOWN = 200


def meets(value: str | None, operator: str, values: Collection[str]) -> bool:
    """Report whether a label meets an expression of a label selector or of a node affinity.

    No label meets an unknown operator.

    value: None if there is no such label.
    """
    match operator:
        case "In" | "NotIn":
            return (value in values) is (operator == "In")
        case "Exists" | "DoesNotExist":
            return (value is not None) is (operator == "Exists")
        case "Gt" | "Lt":
            return _is_beyond(_integer(value), operator, _integer(next(iter(values), None)))
    return False


def _is_beyond(number: int | None, operator: str, bound: int | None) -> bool:
    if number is None or bound is None:
        return False
    return number > bound if operator == "Gt" else number < bound


def _integer(text: str | None) -> int | None:
    """Read a 64-bit integer as `strconv.ParseInt` does, if the text is such an integer."""
    if text is None or len(text) > _MAX_SHOWN or _INTEGER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if -_INT64 <= number < _INT64 else None


@dataclass(frozen=True, slots=True)
class NodeRequirement:
    """A requirement of a term. of_field: whether it is one of `matchFields`, else of `matchExpressions`."""

    key: str
    operator: str
    values: tuple[str, ...] = ()
    of_field: bool = False

    def fault(self) -> str:
        """Return the reason for which Kubernetes does not accept it; empty if it does."""
        if self.of_field:
            return self._field_fault()
        if _LABEL_KEY.fullmatch(self.key) is None:
            return f"key {self.key!r} is no name of a label"
        if fault := self._values_fault():
            return fault
        wrong = next((value for value in self.values if _LABEL_VALUE.fullmatch(value) is None), None)
        return "" if wrong is None else f"{wrong!r} is no value of a label"

    def _values_fault(self) -> str:
        match self.operator:
            case "In" | "NotIn":
                return "" if self.values else f"{self.operator} needs a value"
            case "Exists" | "DoesNotExist":
                return f"{self.operator} takes no values" if self.values else ""
            case "Gt" | "Lt":
                is_integer = len(self.values) == 1 and _integer(self.values[0]) is not None
                return "" if is_integer else f"{self.operator} needs one integer"
        return f"operator {self.operator!r} is none of In, NotIn, Exists, DoesNotExist, Gt, Lt"

    def _field_fault(self) -> str:
        if self.key != NODE_NAME:
            return f"key {self.key!r} is not {NODE_NAME}"
        if self.operator not in ("In", "NotIn"):
            return f"operator {self.operator!r} of a field is none of In, NotIn"
        return "" if len(self.values) == 1 else f"{self.operator} of a field needs one value"

    def is_met(self, node: str, labels: Mapping[str, str]) -> bool:
        """Report whether a node meets it, which must be without a fault."""
        return meets(node if self.of_field else labels.get(self.key), self.operator, self.values)

    def __str__(self) -> str:
        """Format it for people: `zone In a, b`."""
        return " ".join(filter(None, (self.key, self.operator, ", ".join(self.values))))


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """A term of a node affinity."""

    requirements: tuple[NodeRequirement, ...]
    is_valid: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_valid", not any(entry.fault() for entry in self.requirements))

    def matches(self, node: str, labels: Mapping[str, str]) -> bool:
        """Report whether a node meets all requirements; one without any matches no node."""
        return (
            bool(self.requirements)
            and self.is_valid
            and all(requirement.is_met(node, labels) for requirement in self.requirements)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSelection:
    """The nodes that a pod may be on by its specification.

    labels: of `nodeSelector`.
    terms: of the required node affinity, if the pod has any.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    terms: tuple[NodeTerm, ...] | None = None

    def __bool__(self) -> bool:
        """Report whether it may leave a node out."""
        return bool(self.labels) or self.terms is not None

    def selects(self, node: str, labels: Mapping[str, str]) -> bool:
        """Report whether the pod may be on a node of that name with those labels."""
        return self.labels.items() <= labels.items() and (
            self.terms is None or any(term.matches(node, labels) for term in self.terms)
        )

    def __str__(self) -> str:
        """Format it for people: `nodeSelector net=fast and required node affinity zone In a`."""
        text = " and ".join(self._parts())
        return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."

    def _parts(self) -> Iterator[str]:
        if self.labels:
            yield f"nodeSelector {', '.join(f'{key}={value}' for key, value in self.labels.items())}"
        if self.terms is not None:
            terms = (
                " and ".join(map(str, term.requirements)) or "without requirements" for term in self.terms
            )
            yield f"required node affinity {' or '.join(terms) or 'without terms'}"


EVERY_NODE = NodeSelection()


def gates_obstacles(gates: Sequence[str]) -> tuple[str, ...]:
    """Describe how scheduling gates keep a pod from every node, if it has any.

    A bound pod has no gates: kube-scheduler binds no pod with gates, and gates are never added later.
    """
    if not gates:
        return ()
    kueue = any(name.startswith("kueue.x-k8s.io/") for name in gates)
    hint = "; Kueue removes its own when it admits the pod's Workload" if kueue else ""
    names = ", ".join(gates)
    return (f"schedulingGates {names}: kube-scheduler does not try it before they are removed{hint}",)
