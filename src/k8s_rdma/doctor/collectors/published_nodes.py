"""Collects the facts of nodes that publish themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from k8s_rdma.doctor.cluster.nodes import PublishedNode
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.rdma_node import Condition, RdmaNodeStatus, read_status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.kube.node_liveness import NodeLiveness

PublishedStatus: TypeAlias = RdmaNodeStatus | MalformedError | None
_READY = "True"


def published_status(node: dict[str, Any]) -> PublishedStatus:
    """Read the status of an RdmaNode, if it has one; the error if it cannot be read."""
    if not node.get("status"):
        return None
    try:
        return read_status(node)
    except MalformedError as error:
        return error


def published_node(
    name: str, published: PublishedStatus, liveness: NodeLiveness, skew_s: float | None
) -> PublishedNode:
    """Return the facts of an RdmaNode. skew_s: of the node's clock, if it is known."""
    status, condition = _status(published)
    ready = condition.status if condition else ""
    why = liveness.why_refused(name, status.generation if status else "", skew_s)
    # Of a node that is not ready, the extender says that, and not how long its agent has been silent.
    is_unread = status is None and condition is not None
    is_unready = is_unread or (liveness.is_by_extender(name) and ready != _READY)
    return PublishedNode(
        name=name,
        ready=ready,
        message=condition.message if condition else "",
        has_lease=liveness.has_lease(name),
        silence="" if is_unready else why,
        skew_s=skew_s or 0.0,
        problems=tuple(_problems(status)) if status else (),
    )


def _status(published: PublishedStatus) -> tuple[RdmaNodeStatus | None, Condition | None]:
    """Return the status and its condition, which says why if the extender cannot read the status."""
    if isinstance(published, MalformedError):
        return None, Condition(type="Ready", status="False", reason="Unreadable", message=published.message)
    return published, published.ready() if published else None


def _problems(status: RdmaNodeStatus) -> Iterator[str]:
    """Yield problems of a node, then those of its PFs, which name the PF."""
    yield from status.problems
    for pf in status.pfs:
        yield from pf.problems
