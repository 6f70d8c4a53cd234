"""Required node affinity of a pod (`core/v1` Affinity), as it is written and as it is judged."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from k8s_rdma.core.pod_constraints import NodeRequirement, NodeSelection, NodeTerm
from k8s_rdma.errors import MalformedError

if TYPE_CHECKING:
    from collections.abc import Mapping

PATH = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"

MAX_REQUIREMENTS = 1000
"""The limit for requirements and values of a pod, whose owner may write 100,000: each is compared with every
node."""


class NodeSelectorRequirement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A requirement, as in Kubernetes."""

    key: str
    operator: str
    values: tuple[str, ...] | None = None


class NodeSelectorTerm(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A term, as in Kubernetes."""

    match_expressions: tuple[NodeSelectorRequirement, ...] | None = None
    match_fields: tuple[NodeSelectorRequirement, ...] | None = None

    def requirements(self) -> tuple[NodeRequirement, ...]:
        """Return the term's requirements, of labels and of fields."""
        return tuple(
            NodeRequirement(entry.key, entry.operator, entry.values or (), of_field=of_field)
            for of_field, entries in ((False, self.match_expressions), (True, self.match_fields))
            for entry in entries or ()
        )


class _NodeSelector(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    node_selector_terms: tuple[NodeSelectorTerm, ...] | None = None


class _NodeAffinity(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    required_during_scheduling_ignored_during_execution: _NodeSelector | None = None


class Affinity(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The `spec.affinity` of a pod, as far as it leaves nodes out by what they are."""

    node_affinity: _NodeAffinity | None = None

    def terms(self) -> tuple[NodeSelectorTerm, ...] | None:
        """Return the terms of the required node affinity; None if the pod has none."""
        required = (self.node_affinity or _NodeAffinity()).required_during_scheduling_ignored_during_execution
        return None if required is None else required.node_selector_terms or ()


def node_selection(
    labels: Mapping[str, str] | None, terms: tuple[NodeSelectorTerm, ...] | None
) -> NodeSelection:
    """Return the nodes that a pod selects. labels: of `nodeSelector`. terms: as of `Affinity.terms`.

    MalformedError names the field if there are more requirements than are judged.
    """
    if terms is None:
        return NodeSelection(labels=labels or {})
    found = [term.requirements() for term in terms]
    number = len(found) + sum(1 + len(entry.values) for entry in chain.from_iterable(found))
    if number > MAX_REQUIREMENTS:
        raise MalformedError(
            f"{PATH}: {number} requirements and values, at most {MAX_REQUIREMENTS} are judged"
        )
    return NodeSelection(labels=labels or {}, terms=tuple(map(NodeTerm, found)))


def require_accepted(selection: NodeSelection) -> None:
    """Raise MalformedError that names a requirement which the API server does not accept."""
    for index, term in enumerate(selection.terms or ()):
        for requirement in term.requirements:
            if fault := requirement.fault():
                raise MalformedError(f"{PATH}[{index}]: {fault}")
