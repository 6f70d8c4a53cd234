"""Node affinity of pods (`core/v1` Affinity): the parts that exclude nodes by their labels and fields.

Source: k8s.io/api/core/v1, types.go (Kubernetes 1.36).
"""

from __future__ import annotations

import msgspec

from k8s_rdma.core.pod_constraints import NodeRequirement
from k8s_rdma.wire.objects.meta import PassedOver


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


class Affinity(PassedOver, frozen=True, kw_only=True, rename="camel", gc=True):
    """The `spec.affinity` of a pod: the parts that exclude nodes by their labels and fields."""

    node_affinity: _NodeAffinity | None = None

    def terms(self) -> tuple[NodeSelectorTerm, ...] | None:
        """Return the terms of the required node affinity, if the pod has any."""
        required = (self.node_affinity or _NodeAffinity()).required_during_scheduling_ignored_during_execution
        return None if required is None else required.node_selector_terms or ()
