"""Kubernetes' own obstacles to a pod, for `explain`: gates, and nodes that its specification leaves out.

Read with the caller's own credentials. kube-scheduler asks the extender about the nodes that are left alone,
and the extender knows no labels of nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from k8s_rdma.core.refusal import count
from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.api import API_ERRORS
from k8s_rdma.planning.planned_cluster import may_be_on, tolerations_of
from k8s_rdma.planning.snapshot import NodeDemand, NodeRecord, Taint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from k8s_rdma.kube.calls import Documents

_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class PodConstraints:
    """Sentences on what keeps a pod from every node (obstacles), and from some (notes)."""

    obstacles: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def joined(self, added: PodConstraints) -> PodConstraints:
        """Return both."""
        return PodConstraints((*self.obstacles, *added.obstacles), (*self.notes, *added.notes))


UNCONSTRAINED = PodConstraints()


class _Gate(msgspec.Struct, frozen=True):
    name: str = ""


class _PodSpec(NodeDemand, frozen=True, kw_only=True, rename="camel"):
    node_name: str | None = None
    scheduling_gates: tuple[_Gate, ...] | None = None


class _NodeSpec(msgspec.Struct, frozen=True):
    unschedulable: bool | None = None
    taints: tuple[Taint, ...] | None = None


class _NodeMetadata(msgspec.Struct, frozen=True):
    name: str = ""
    labels: dict[str, str] | None = None


class _Node(msgspec.Struct, frozen=True):
    metadata: _NodeMetadata = _NodeMetadata()
    spec: _NodeSpec = _NodeSpec()

    def record(self) -> NodeRecord:
        """Return the node as `whatif` compares it with pods."""
        return NodeRecord(
            name=self.metadata.name,
            labels=self.metadata.labels or {},
            taints=self.spec.taints or (),
            unschedulable=bool(self.spec.unschedulable),
        )


def read_constraints(api: Documents, pod: dict[str, Any]) -> PodConstraints:
    """Compare a pod that waits for a node with the cluster's nodes, as kube-scheduler does."""
    try:
        spec = msgspec.convert(pod.get("spec") or {}, _PodSpec)
    except msgspec.ValidationError as error:
        raise MalformedError(f"pod: spec: {error}") from error
    if spec.node_name or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return UNCONSTRAINED
    obstacles = tuple(_gates(spec.scheduling_gates or ()))
    try:
        nodes = [msgspec.convert(item, _Node).record() for item in api.items("/api/v1/nodes")]
    except (msgspec.ValidationError, *API_ERRORS) as error:
        unknown = f"whether nodes are what {_selector(spec)} selects is not known: {error}"
        return PodConstraints(obstacles, (unknown,) if spec.node_selector else ())
    found = _of_nodes(spec, nodes)
    return PodConstraints((*obstacles, *found.obstacles), found.notes)


def _gates(gates: Iterable[_Gate]) -> Iterator[str]:
    names = [gate.name for gate in gates]
    if names:
        kueue = any(name.startswith("kueue.x-k8s.io/") for name in names)
        hint = "; Kueue removes its own when it admits the pod's Workload" if kueue else ""
        gates_text = ", ".join(names)
        yield f"schedulingGates {gates_text}: kube-scheduler does not try it before they are removed{hint}"


def _of_nodes(spec: _PodSpec, nodes: list[NodeRecord]) -> PodConstraints:
    selector, tolerations = spec.node_selector or {}, tolerations_of(spec.lasting_tolerations())
    selected = [node for node in nodes if selector.items() <= node.labels.items()]
    eligible = [node.name for node in selected if may_be_on(node, selector, tolerations)]
    if not nodes or len(eligible) == len(nodes):
        return UNCONSTRAINED
    if not selected:
        return PodConstraints((f"{_selector(spec)}: no node of {len(nodes)} has these labels",))
    if not eligible:
        of_selector = f" that {_selector(spec)} selects" if selector else ""
        why = "is cordoned, or has a taint that it does not tolerate"
        return PodConstraints((f"each of {count(len(selected), 'node')}{of_selector} {why}",))
    names = ", ".join(eligible[:_EXAMPLES]) + (", ..." if len(eligible) > _EXAMPLES else "")
    share = f"{len(eligible)} of {len(nodes)} nodes"
    return PodConstraints(notes=(f"by nodeSelector, taints and cordons it may be on {share}: {names}",))


def _selector(spec: _PodSpec) -> str:
    return f"nodeSelector {', '.join(f'{key}={value}' for key, value in (spec.node_selector or {}).items())}"
