"""Pods that do not get the interfaces that they ask for, and why."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.doctor.cluster.rates import RatesFact
from k8s_rdma.doctor.cluster.scheduler import Profile
from k8s_rdma.doctor.subject import Subject
from k8s_rdma.wire.pod_group import VERSIONS, first_readable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.doctor.finding import Finding

PODS = Subject(
    "pods",
    "Pods",
    "Unfinished pods with the annotation or a placement: the worst 20 findings, by the latest 20 "
    "events of the first 500 pods. Missing interfaces are found a minute after a start, on nodes that"
    " publish themselves. [Policies](namespace-policies.md) are those of the ConfigMap "
    "`k8s-rdma-policies`.",
)
PODS_OK = PODS.ok()
REFUSED = PODS.warning("refused")
NOT_STARTED = PODS.warning("not-started")
WAITING = PODS.warning("waiting")
UNPLACED = PODS.warning("unplaced")
OTHER_SCHEDULER = PODS.error("other-scheduler")
WITHOUT_INTERFACES = PODS.error("without-interfaces")
UNKNOWN_ANNOTATION = PODS.warning("unknown-annotation")
HOST_NETWORK = PODS.error("host-network")
NOT_ALLOWED = PODS.warning("not-allowed")
POLICIES_UNUSABLE = PODS.error("policies-unusable")
UNREADABLE_GROUP = PODS.error("unreadable-group")
OTHER_KEY = PODS.error("other-key")

_SHOWN = 20
_KEY_SIGN = "not made with this cluster's key"
"""Part of the message in which an agent refuses a placement (`wire.placement_annotation`)."""
FAILED_SCHEDULING = "FailedScheduling"
_SANDBOX_FAILED = "FailedCreatePodSandBox"
_BY_US = re.compile(r'plugin type="[^"]*k8s-rdma-cni[^"]*"(?: name="[^"]*")? failed \(add\): (.*)', re.DOTALL)
"""Our plugin's error in kubelet's message (`pluginDescription`, `AddNetworkList` in libcni/api.go)."""
_HAS_SANDBOX = frozenset({"Pulling", "Pulled", "Created", "Started", "BackOff", "Failed"})
"""Reasons of kubelet's events once a pod's network is there (pkg/kubelet/events/event.go)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFact:
    """A pod that has not finished, and asks for interfaces or misspells the annotation.

    node: its node; empty while it is unbound.
    has_request: whether it asks for interfaces, or has some.
    unknown_keys: a sentence for each misspelt annotation.
    placed: whether it has a placement.
    running: whether its containers were started.
    host_network: whether it is in its node's network.
    holds_interfaces: whether its node reports its interfaces, if that is known.
    group: the PodGroup that its specification names.
    scheduler: the scheduler that its specification names.
    key: the key that its placement names (`key_named_in`).
    not_allowed: a sentence on the keys that its namespace's policy refuses now.
    rates: its rates, if it has a placement and is running.
    events: of any component, the latest last: reason and message.
    said_s_ago: the age of the latest event by which its scheduler did not bind it, if there is one.
    """

    name: str
    node: str
    placed: bool
    running: bool
    host_network: bool = False
    has_request: bool = True
    unknown_keys: tuple[str, ...] = ()
    group: str = ""
    holds_interfaces: bool | None = None
    scheduler: str = "default-scheduler"
    key: str = ""
    not_allowed: str = ""
    rates: RatesFact | None = None
    events: tuple[tuple[str, str], ...] = ()
    said_s_ago: float | None = None

    def last_said(self) -> tuple[str, str]:
        """Return the latest failure that extender, agent or plugin reported and that still holds, if any."""
        for reason, message in reversed(self.events):
            if reason in _HAS_SANDBOX:
                break
            if reason.startswith("Rdma"):
                return reason, message
            if reason == _SANDBOX_FAILED and (found := _BY_US.search(message)):
                return reason, found[1]
        return "", ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """Pods, and the facts of the cluster that explain them.

    schedulers: the known ones.
    extender_binds: whether the extender binds pods; false with `binder: scheduler`.
    policies_failure: why the operator's policies for namespaces cannot be used.
    group_versions: the versions in which the API server has PodGroups, if it was queried.
    """

    pods: tuple[PodFact, ...]
    schedulers: tuple[Profile, ...] = ()
    extender_binds: bool = True
    policies_failure: str = ""
    group_versions: tuple[str, ...] | None = None

    def profiles_without_extender(self) -> dict[str, Profile]:
        """Return schedulers by name that never ask the extender, by their configuration and their events."""
        extended = {scheduler.name for scheduler in self.schedulers if scheduler.has_extender}
        extended |= {pod.scheduler for pod in self.pods if pod.placed}
        return {scheduler.name: scheduler for scheduler in self.schedulers if scheduler.name not in extended}

    def scheduler_names(self) -> tuple[str, ...]:
        """Return the names that pods can have for a scheduler that asks the extender."""
        return tuple(dict.fromkeys(scheduler.name for scheduler in self.schedulers if scheduler.has_extender))


@PODS.check(PodFacts)
def check_pods(facts: PodFacts) -> Iterator[Finding]:
    """Check pods that wait for interfaces; report the first of many."""
    if facts.policies_failure:
        yield POLICIES_UNUSABLE(
            f"previous policies stay in use, restarts fail: {facts.policies_failure}",
            source="ConfigMap k8s-rdma-policies",
            expected="policies as in docs/namespace-policies.md",
            fix="correct what the message names",
        )
    unasking = facts.profiles_without_extender()
    pods = [pod for pod in facts.pods if pod.has_request]
    allowed = [pod for pod in pods if not (pod.not_allowed or pod.host_network)]
    found = [finding for pod in allowed for finding in _check_pod(pod, unasking.get(pod.scheduler), facts)]
    found += [_not_allowed(pod) for pod in pods if pod.not_allowed]
    found += [_in_host_network(pod) for pod in pods if pod.host_network]
    found += [_unknown_annotation(pod) for pod in facts.pods if pod.unknown_keys]
    found += _unreadable_group(facts)
    yield from sorted(found, key=lambda finding: -finding.severity.rank)[:_SHOWN]
    if len(found) > _SHOWN:
        yield WAITING(
            f"and {len(found) - _SHOWN} more pods",
            source="pods",
            expected="running",
            fix="k8s-rdma top; k8s-rdma explain pod NAMESPACE/NAME",
        )
    if not found:
        yield PODS_OK(f"none of {len(pods)} pods that ask for interfaces is stuck", source="pods; events")


def _unreadable_group(facts: PodFacts) -> Iterator[Finding]:
    waiting = [pod for pod in facts.pods if pod.group and not pod.node]
    if waiting and facts.group_versions is not None and not first_readable(facts.group_versions):
        served = ", ".join(facts.group_versions) or "no version"
        others_wait = f", as {len(waiting) - 1} more pods" if len(waiting) > 1 else ""
        yield UNREADABLE_GROUP(
            f"is not bound{others_wait}: the API server has its PodGroup {waiting[0].group} in {served}",
            about=waiting[0].name,
            source="API group scheduling.k8s.io",
            expected=f"one of {', '.join(VERSIONS)}",
            fix="install a release that knows the version, or turn on GenericWorkload: docs/extender.md",
        )


def _check_pod(pod: PodFact, profile: Profile | None, facts: PodFacts) -> Iterator[Finding]:
    """Check a pod. profile: its scheduler, if that never asks the extender."""
    if pod.running and (pod.placed or not facts.extender_binds):
        if pod.holds_interfaces is False:
            yield _without_interfaces(pod)
        return
    reason, message = pod.last_said()
    if _KEY_SIGN in message:
        yield OTHER_KEY(
            f"node {pod.node} refuses its placement: {message}",
            about=pod.name,
            source="events",
            expected="a signing key that all agents accept",
            fix="give all agents the extender's signing key: docs/howto-keys.md",
        )
    elif profile is not None and not pod.running:  # before what comes of that on its node
        yield _of_other_scheduler(pod, profile, facts.scheduler_names())
    elif pod.node and not pod.placed and facts.extender_binds:
        yield _unplaced(pod, message, facts.scheduler_names())
    elif reason == _SANDBOX_FAILED and not pod.running:
        yield NOT_STARTED(
            f"is not started on {pod.node}: {message}",
            about=pod.name,
            source=f"events, {reason}",
            expected="interfaces",
            fix=f"docs/cni.md; k8s-rdma doctor node on {pod.node}; its agent's log",
        )
    elif reason and not pod.running:
        yield REFUSED(
            f"{reason}: {message}",
            about=pod.name,
            source="events",
            expected="interfaces",
            fix=f"k8s-rdma explain pod {pod.name}; docs/cni.md",
        )
    elif not pod.node:
        failure = next(
            (message for reason, message in reversed(pod.events) if reason == FAILED_SCHEDULING), ""
        )
        if (
            not failure
            and facts.schedulers
            and all(scheduler.name != pod.scheduler for scheduler in facts.schedulers)
        ):
            failure = "no scheduler of that name is known, and the pod has no events"
        yield WAITING(
            f"is not bound by {pod.scheduler}" + (f": {failure}{_ago(pod)}" if failure else ""),
            about=pod.name,
            source="pods; events",
            expected="a node",
            fix=f"k8s-rdma explain pod {pod.name}",
        )


def _ago(pod: PodFact) -> str:
    """Return the age of the scheduler's event, because it may be of an outage that is over."""
    return "" if pod.said_s_ago is None else f" ({pod.said_s_ago:.0f} s ago)"


def _not_allowed(pod: PodFact) -> Finding:
    state = "waits" if not pod.node else "its next sandbox is refused"
    if pod.node and not pod.running:
        state = f"is refused on {pod.node}"
    return NOT_ALLOWED(
        f"{state}: {pod.not_allowed}",
        about=pod.name,
        source="ConfigMap k8s-rdma-policies",
        expected="a request that its namespace's policy allows",
        fix="request less, or change the policy: docs/namespace-policies.md",
    )


def _without_interfaces(pod: PodFact) -> Finding:
    return WITHOUT_INTERFACES(
        f"got no interfaces from the agent of {pod.node}",
        about=pod.name,
        source=f"rdmanode {pod.node}, allocations",
        expected="the interfaces that it requests",
        fix=f"k8s-rdma doctor node on {pod.node}, then recreate the pod",
    )


def _unknown_annotation(pod: PodFact) -> Finding:
    return UNKNOWN_ANNOTATION(
        "; ".join(pod.unknown_keys),
        about=pod.name,
        source="metadata.annotations",
        expected="annotations of docs/annotation.md",
        fix="correct the annotation in the pod template, then recreate the pod",
    )


def _in_host_network(pod: PodFact) -> Finding:
    state = f"runs on {pod.node} without interfaces" if pod.running else "cannot have interfaces"
    return HOST_NETWORK(
        f"{state}: hostNetwork is true",
        about=pod.name,
        source="spec.hostNetwork",
        expected="a network of its own",
        fix="leave hostNetwork out of the pod template, or the annotation",
    )


def _unplaced(pod: PodFact, message: str, schedulers: tuple[str, ...]) -> Finding:
    """Return the finding for an unplaced pod. message: its node's message about it, if there is one."""
    fix = "request one of managedResources, or set the extender's schedulerName"
    if schedulers and pod.scheduler not in schedulers:
        fix = _rename(schedulers[0])
    return UNPLACED(
        f"{pod.scheduler} bound it to {pod.node} without a placement" + (f"; {message}" if message else ""),
        about=pod.name,
        source="annotation k8s-rdma.io/placement",
        expected="a placement",
        fix=fix,
    )


def _rename(scheduler: str) -> str:
    return f"schedulerName: {scheduler} in the pod template, then recreate the pod"


def _of_other_scheduler(pod: PodFact, profile: Profile, schedulers: tuple[str, ...]) -> Finding:
    return OTHER_SCHEDULER(
        f"gets no placement: {profile.name} does not call the extender",
        about=pod.name,
        source=f"spec.schedulerName; {profile.location}",
        expected=" or ".join(schedulers) or "a scheduler that calls the extender",
        fix=_rename(schedulers[0] if schedulers else "NAME"),
    )
