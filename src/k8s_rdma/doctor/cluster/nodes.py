"""Checks of the RdmaNodes that nodes publish."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from k8s_rdma.doctor.subject import Subject
from k8s_rdma.wire.node_clock import MOST_SKEW_S, skew_text

if TYPE_CHECKING:
    from k8s_rdma.doctor.finding import Finding

NODES = Subject("nodes", "Nodes")
NODES_OK = NODES.ok()
EVERY_DEVICE = NODES.warning("every-device")
BY_HTTP = NODES.note("by-http")
NONE = NODES.warning("none")
NOT_PUBLISHED = NODES.warning("not-published")
NO_LEASE = NODES.error("no-lease")
STALE = NODES.error("stale")
CLOCK_SKEW = NODES.warning("clock-skew")
PROBLEM = NODES.warning("problem")
NOT_READY = NODES.error("not-ready")

_PROBLEMS_SHOWN = 20
_SKEWS_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedNode:
    """An RdmaNode.

    ready: the status of its condition; empty without a condition.
    has_lease: whether it has a Lease that was ever renewed.
    silence: why the extender refuses the node, by its answer or by the Lease; empty if it does not.
    skew_s: seconds by which its clock is ahead of the API server's, negative if it is behind; 0 if unknown.
    problems: of the node and its PFs, one sentence each.
    """

    name: str
    ready: str
    message: str = ""
    has_lease: bool = True
    silence: str = ""
    skew_s: float = 0.0
    problems: tuple[str, ...] = ()

    @property
    def is_alive(self) -> bool:
        """Report whether the node is ready and the extender counts on its Lease."""
        return self.ready == "True" and not self.silence


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedNodeFacts:
    """Nodes that publish themselves, or should.

    published: all RdmaNodes.
    agents: nodes with a pod of our DaemonSet.
    lease_namespace: the namespace of nodes' Leases.
    needed: whether the extender reads RdmaNodes; true if that is not known.
    mounts: resources by which nodes offer all of their `/dev/infiniband`, with those nodes.
    """

    published: tuple[PublishedNode, ...]
    agents: frozenset[str]
    lease_namespace: str
    needed: bool = True
    mounts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@NODES.check(PublishedNodeFacts)
def check_nodes(facts: PublishedNodeFacts) -> Iterator[Finding]:
    """Check each node that publishes itself, or should, and resources beyond reservations."""
    yield from _check_mounts(facts.mounts)
    if not facts.needed:
        yield BY_HTTP(
            "source: http: k8s-rdma top shows the reports",
            source="the extender's configuration",
        )
        return
    names = {node.name for node in facts.published}
    if not names and not facts.agents:
        yield NONE(
            "no node publishes itself, and no k8s-rdma-node pod runs",
            source="rdmanodes; pods with app.kubernetes.io/component=node",
            expected="agents, with publish: {rdmaNode: true} where the extender has source: crd",
            fix="install the chart; kubectl -n k8s-rdma get daemonset",
        )
    for name in sorted(facts.agents - names):
        yield NOT_PUBLISHED(
            "no RdmaNode: its agent does not start, or does not publish",
            about=name,
            source="rdmanodes",
            expected="publish: {rdmaNode: true}, where the extender has source: crd",
            fix="its agent's log; k8s-rdma doctor node there",
        )
    for node in facts.published:
        yield _check_node(node, facts)
    yield from _check_problems(facts.published)
    yield from _check_clocks(facts.published)


def _check_clocks(nodes: Iterable[PublishedNode]) -> Iterator[Finding]:
    """Check that clocks agree, those that differ most first."""
    skewed = sorted((node for node in nodes if node.skew_s), key=lambda node: -abs(node.skew_s))
    for node in skewed[:_SKEWS_SHOWN]:
        yield CLOCK_SKEW(
            f"its clock is {skew_text(node.skew_s)}",
            about=node.name,
            source=f"node {node.name}: lastHeartbeatTime of Ready, beside its time in metadata.managedFields",
            expected=f"clocks that differ by at most {MOST_SKEW_S:.0f} s",
            fix="synchronise it (chronyc tracking, timedatectl): certificates and tokens are judged by it, "
            "and logs and events have its time; reservations and the extender do not depend on it",
        )
    if len(skewed) > _SKEWS_SHOWN:
        yield CLOCK_SKEW(
            f"and {len(skewed) - _SKEWS_SHOWN} other nodes whose clocks differ less",
            source="nodes, lastHeartbeatTime and metadata.managedFields",
            expected=f"clocks that differ by at most {MOST_SKEW_S:.0f} s",
            fix="synchronise them",
        )


def _check_problems(nodes: Iterable[PublishedNode]) -> Iterator[Finding]:
    """Check problems of nodes; report a problem that many nodes share once."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        for problem in node.problems:
            found.setdefault(problem, []).append(node.name)
    for problem, names in islice(found.items(), _PROBLEMS_SHOWN):
        suffix = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield PROBLEM(
            problem,
            about=f"{names[0]}{suffix}",
            source="rdmanodes, status.problems and status.pfs",
            expected="none",
            fix="docs/operating-a-node.md",
        )
    if len(found) > _PROBLEMS_SHOWN:
        yield PROBLEM(
            f"and {len(found) - _PROBLEMS_SHOWN} other problems",
            source="rdmanodes, status.problems and status.pfs",
            expected="none",
            fix="k8s-rdma top --sort problems",
        )


def _check_mounts(mounts: Mapping[str, tuple[str, ...]]) -> Iterator[Finding]:
    for resource, nodes in sorted(mounts.items()):
        suffix = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
        yield EVERY_DEVICE(
            f"{nodes[0]}{suffix} offer it: containers of any namespace that request it reach every device, "
            "beyond all reservations and caps",
            about=resource,
            source="nodes, status.allocatable",
            expected="trusted pods, or k8s-rdma.io/slot in its place",
            fix="remove mode: mount (node.devicePlugin.mount: false) once pods request k8s-rdma.io/slot; "
            f"until then a ResourceQuota, requests.{resource}: 0, in other namespaces",
        )


def _check_node(node: PublishedNode, facts: PublishedNodeFacts) -> Finding:
    lease = f"lease {facts.lease_namespace}/{node.name}"
    if not node.has_lease:
        return NO_LEASE(
            "has no Lease: the extender schedules no pod there",
            about=node.name,
            source=lease,
            expected="one, renewed by its agent",
            fix="publish.leaseNamespace of agents must be the extender's nodeLeaseNamespace",
        )
    if node.silence:
        return STALE(
            f"{node.silence}, as when it is down or cut off from the API server: the extender schedules no "
            "pod there",
            about=node.name,
            source=lease,
            expected="a renewal that names what the node publishes, within the extender's staleS or the "
            "Lease's own duration",
            fix="its agent's log; k8s-rdma doctor node there",
        )
    if node.ready != "True":
        return NOT_READY(
            f"is not ready: {node.message or 'it has published nothing yet'}",
            about=node.name,
            source=f"rdmanode {node.name}, conditions",
            expected="Ready",
            fix="correct what the message names; k8s-rdma doctor node there",
        )
    return NODES_OK("is ready", about=node.name, source=f"rdmanode {node.name}; {lease}")
