"""Collects the facts of nodes that publish themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from k8s_rdma.doctor.cluster.nodes import PublishedNode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from k8s_rdma.kube.node_liveness import NodeLiveness

_READY = "True"


def published_node(node: dict[str, Any], liveness: NodeLiveness, skew_s: float | None) -> PublishedNode:
    """Read the facts of an RdmaNode. skew_s: of the node's clock; None if it is not known."""
    name, status = str(node["metadata"]["name"]), node.get("status") or {}
    conditions = status.get("conditions") or ()
    condition: dict[str, Any] = next((entry for entry in conditions if entry.get("type") == "Ready"), {})
    ready = str(condition.get("status", ""))
    why = liveness.why_refused(name, str(status.get("generation", "")), skew_s)
    # Of a node that is not ready, the extender says that, and not how long its agent has been silent.
    is_unready = liveness.is_by_extender(name) and ready != _READY
    return PublishedNode(
        name=name,
        ready=ready,
        message=str(condition.get("message", "")),
        has_lease=liveness.has_lease(name),
        silence="" if is_unready else why,
        skew_s=skew_s or 0.0,
        problems=tuple(_problems(status)),
    )


def _problems(status: Mapping[str, Any]) -> Iterator[str]:
    """Problems of a node, then those of its PFs, which name the PF."""
    for subject in (status, *(status.get("pfs") or ())):
        yield from map(str, subject.get("problems") or ())
