"""Required node affinity of a pod, as it is judged. Its model is `wire.objects.affinity`."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from k8s_rdma.core.pod_constraints import NodeSelection, NodeTerm
from k8s_rdma.errors import MalformedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.wire.objects.affinity import NodeSelectorTerm

PATH = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"

MAX_REQUIREMENTS = 1000
"""The limit for requirements and values of a pod, whose owner may write 100,000: each is compared with every
node."""


def node_selection(
    labels: Mapping[str, str] | None, terms: tuple[NodeSelectorTerm, ...] | None
) -> NodeSelection:
    """Return the nodes that a pod selects.

    MalformedError names the field if there are more requirements than are judged.

    labels: of `nodeSelector`.
    terms: as of `Affinity.terms`.
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
