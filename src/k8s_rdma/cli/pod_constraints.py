"""Kubernetes' obstacles to a pod, for `explain`: gates, and nodes that its specification leaves out.

They are read with the caller's credentials, because the extender does not know nodes' labels: kube-scheduler
asks it only about the nodes that remain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from k8s_rdma.core.pod_constraints import NodeSelection, gates_obstacles
from k8s_rdma.core.refusal import count
from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.errors import API_ERRORS
from k8s_rdma.planning.planned_cluster import may_be_on, tolerations_of
from k8s_rdma.planning.snapshot import NodeRecord
from k8s_rdma.wire.objects.node import KubeNode
from k8s_rdma.wire.objects.pod import PodSpec

if TYPE_CHECKING:
    from k8s_rdma.kube.documents import Documents

_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class PodConstraints:
    """Sentences on the reasons that keep a pod from nodes.

    obstacles: the reasons that keep it from every node.
    notes: the reasons that keep it from some.
    """

    obstacles: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def joined(self, added: PodConstraints) -> PodConstraints:
        """Return both."""
        return PodConstraints((*self.obstacles, *added.obstacles), (*self.notes, *added.notes))


UNCONSTRAINED = PodConstraints()


def read_constraints(api: Documents, pod: dict[str, Any]) -> PodConstraints:
    """Compare a pod that waits for a node with the cluster's nodes, as kube-scheduler does."""
    try:
        spec = msgspec.convert(pod.get("spec") or {}, PodSpec)
    except msgspec.ValidationError as error:
        raise MalformedError(f"pod: spec: {error}") from error
    if spec.node_name or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return UNCONSTRAINED
    obstacles = gates_obstacles([gate.name for gate in spec.scheduling_gates or ()])
    try:
        selection = spec.selection()
    except MalformedError as error:
        return PodConstraints(obstacles, (f"whether it may be on the nodes is not judged: {error.message}",))
    try:
        nodes = [_record(msgspec.convert(item, KubeNode)) for item in api.items("/api/v1/nodes")]
    except (msgspec.ValidationError, *API_ERRORS) as error:
        unknown = f"whether nodes are what {selection} selects is not known: {error}"
        return PodConstraints(obstacles, (unknown,) if selection else ())
    found = _of_nodes(spec, selection, nodes)
    return PodConstraints((*obstacles, *found.obstacles), found.notes)


def _record(node: KubeNode) -> NodeRecord:
    """Return the node as `whatif` compares it with pods."""
    return NodeRecord(
        name=node.metadata.name,
        labels=node.metadata.labels or {},
        taints=node.spec.taints or (),
        unschedulable=bool(node.spec.unschedulable),
    )


def _of_nodes(spec: PodSpec, selection: NodeSelection, nodes: list[NodeRecord]) -> PodConstraints:
    tolerations = tolerations_of(spec.lasting_tolerations())
    selected = [node for node in nodes if selection.selects(node.name, node.labels)]
    eligible = [node.name for node in selected if may_be_on(node, selection, tolerations)]
    if not nodes or len(eligible) == len(nodes):
        return UNCONSTRAINED
    if not selected:
        return PodConstraints((f"{selection}: selects no node of {len(nodes)}",))
    if not eligible:
        of_selector = f" that {selection} selects" if selection else ""
        why = "is cordoned, or has a taint that it does not tolerate"
        return PodConstraints((f"each of {count(len(selected), 'node')}{of_selector} {why}",))
    names = ", ".join(eligible[:_EXAMPLES]) + (", ..." if len(eligible) > _EXAMPLES else "")
    share = f"{len(eligible)} of {len(nodes)} nodes"
    return PodConstraints(
        notes=(f"by nodeSelector, affinity, taints and cordons it may be on {share}: {names}",)
    )
