"""What nodes publish of themselves, and pods that do not get what they ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.doctor.cluster.scheduler_file import Profile
from k8s_rdma.doctor.finding import Subject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.doctor.finding import Finding

NODES = Subject("nodes", "Nodes")
NODES_OK = NODES.ok()
BY_HTTP = NODES.note("by-http")
NONE = NODES.warning("none")
NOT_PUBLISHED = NODES.warning("not-published")
NO_LEASE = NODES.error("no-lease")
STALE = NODES.error("stale")
NOT_READY = NODES.error("not-ready")

PODS = Subject("pods", "Pods")
PODS_OK = PODS.ok()
REFUSED = PODS.warning("refused")
WAITING = PODS.warning("waiting")
UNPLACED = PODS.warning("unplaced")
OTHER_SCHEDULER = PODS.error("other-scheduler")
OTHER_KEY = PODS.error("other-key")

STALE_S = 60.0
"""The extender's `staleS`."""
_SHOWN = 20
_KEY_SIGN = "not made with this cluster's key"
"""Of the message in which an agent refuses a placement (`wire.placement_annotation`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedNode:
    """An RdmaNode. ready: its condition's status, empty without one. lease_age_s: None without a Lease."""

    name: str
    ready: str
    message: str = ""
    lease_age_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """published: all RdmaNodes. agents: nodes with a pod of our DaemonSet. lease_namespace: of the Leases.

    needed: whether the extender reads them; what is not known counts as yes.
    """

    published: tuple[PublishedNode, ...]
    agents: frozenset[str]
    lease_namespace: str
    stale_s: float = STALE_S
    needed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFact:
    """A pod that asks for interfaces and has not finished. node: empty while it is unbound.

    placed: whether it has a placement. running: whether its containers were started. scheduler: whose it is.
    events: of ours and of the scheduler's, the latest last: reason and message.
    """

    name: str
    node: str
    placed: bool
    running: bool
    scheduler: str = "default-scheduler"
    events: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """All of them. schedulers: those that are known of. extender_binds: not with `binder: scheduler`."""

    pods: tuple[PodFact, ...]
    schedulers: tuple[Profile, ...] = ()
    extender_binds: bool = True

    def unasking(self) -> dict[str, Profile]:
        """By name: schedulers that never ask the extender, by their configuration and by what they did."""
        asking = {each.name for each in self.schedulers if each.asks}
        asking |= {pod.scheduler for pod in self.pods if pod.placed}
        return {each.name: each for each in self.schedulers if each.name not in asking}

    def asking(self) -> tuple[str, ...]:
        """The names that pods can have for a scheduler that asks the extender."""
        return tuple(dict.fromkeys(each.name for each in self.schedulers if each.asks))


def check_nodes(facts: NodeFacts) -> Iterator[Finding]:
    """Each node that publishes itself, or should."""
    if not facts.needed:
        yield BY_HTTP(
            "the extender asks nodes' servers (source: http): k8s-rdma top shows what it hears",
            source="the extender's configuration",
        )
        return
    names = {each.name for each in facts.published}
    if not names and not facts.agents:
        yield NONE(
            "no node publishes itself, and no pod of k8s-rdma-node runs",
            source="rdmanodes; pods with app.kubernetes.io/component=node",
            wanted="agents, with publish: {rdmaNode: true} where the extender has source: crd",
            fix="install the chart; kubectl -n k8s-rdma get daemonset",
        )
    for name in sorted(facts.agents - names):
        yield NOT_PUBLISHED(
            "an agent should run there, and there is no RdmaNode: it does not publish, or does not start",
            about=name,
            source="rdmanodes",
            wanted="publish: {rdmaNode: true}, where the extender has source: crd",
            fix="kubectl -n k8s-rdma logs ds/k8s-rdma-node -c agent; k8s-rdma doctor node there",
        )
    for each in facts.published:
        yield _check_node(each, facts)


def _check_node(node: PublishedNode, facts: NodeFacts) -> Finding:
    lease = f"lease {facts.lease_namespace}/{node.name}"
    if node.lease_age_s is None:
        return NO_LEASE(
            "has no Lease: the extender takes it for unreadable, and no pod comes there",
            about=node.name,
            source=lease,
            wanted="one, renewed every 10 s",
            fix="publish.leaseNamespace of agents and nodeLeaseNamespace of the extender are the same",
        )
    if node.lease_age_s > facts.stale_s:
        return STALE(
            f"its Lease was renewed {node.lease_age_s:.0f} s ago: its agent is dead, or reaches no API "
            "server; no pod comes there",
            about=node.name,
            source=lease,
            wanted=f"less than {facts.stale_s:g} s",
            fix="the agent's log on that node; k8s-rdma doctor node there",
        )
    if node.ready != "True":
        return NOT_READY(
            f"is not ready: {node.message or 'it has published nothing yet'}",
            about=node.name,
            source=f"rdmanode {node.name}, conditions",
            wanted="Ready",
            fix="what the message names; k8s-rdma doctor node there",
        )
    return NODES_OK("is ready", about=node.name, source=f"rdmanode {node.name}; {lease}")


def check_pods(facts: PodFacts) -> Iterator[Finding]:
    """Pods that wait for interfaces, and why; the first of many."""
    unasking = facts.unasking()
    found = [finding for pod in facts.pods for finding in _check_pod(pod, unasking.get(pod.scheduler), facts)]
    yield from sorted(found, key=lambda each: -each.severity.rank)[:_SHOWN]
    if len(found) > _SHOWN:
        yield WAITING(
            f"and {len(found) - _SHOWN} more pods",
            source="pods",
            wanted="running",
            fix="k8s-rdma top; k8s-rdma explain pod NAMESPACE/NAME",
        )
    if not found:
        yield PODS_OK(
            f"none of {len(facts.pods)} pods that ask for interfaces is stuck", source="pods; events"
        )


def _check_pod(pod: PodFact, other: Profile | None, facts: PodFacts) -> Iterator[Finding]:
    """other: its scheduler, where that never asks the extender."""
    if pod.running and (pod.placed or not facts.extender_binds):
        return
    ours = [(reason, message) for reason, message in pod.events if reason.startswith("Rdma")]
    if any(_KEY_SIGN in message for _, message in ours):
        yield OTHER_KEY(
            f"node {pod.node} refuses its placement: {ours[-1][1]}",
            about=pod.name,
            source="events",
            wanted="one key for the extender and all agents",
            fix="the Secret of placementKeyFile is the same everywhere; restart who has the older one",
        )
    elif ours and not pod.running:
        yield REFUSED(
            f"{ours[-1][0]}: {ours[-1][1]}",
            about=pod.name,
            source="events",
            wanted="interfaces",
            fix=f"k8s-rdma explain pod {pod.name}; docs/cni.md, Errors",
        )
    elif other is not None and not pod.running:
        yield _of_other_scheduler(pod, other, facts.asking())
    elif not pod.node:
        said = next((message for reason, message in reversed(pod.events) if reason == "FailedScheduling"), "")
        if not said and facts.schedulers and all(each.name != pod.scheduler for each in facts.schedulers):
            said = "nothing was seen of a scheduler of that name, and nothing is said of the pod"
        yield WAITING(
            f"is not bound by {pod.scheduler}" + (f": {said}" if said else ""),
            about=pod.name,
            source="pods; events",
            wanted="a node",
            fix=f"k8s-rdma explain pod {pod.name}",
        )
    elif not pod.placed and facts.extender_binds:
        yield UNPLACED(
            f"was bound to {pod.node} without a placement by {pod.scheduler}: not by the extender",
            about=pod.name,
            source="annotation k8s-rdma.io/placement",
            wanted="a placement",
            fix="the pod requests one of the extender's managedResources, or names its scheduler",
        )


def _of_other_scheduler(pod: PodFact, other: Profile, asking: tuple[str, ...]) -> Finding:
    name = asking[0] if asking else "NAME"
    return OTHER_SCHEDULER(
        f"is left to {other.name}, which does not ask the extender: it gets no placement",
        about=pod.name,
        source=f"spec.schedulerName; {other.where}",
        wanted=" or ".join(asking) or "a scheduler that asks the extender",
        fix=f"schedulerName: {name} in what makes the pod; a pod's own cannot be changed",
    )
