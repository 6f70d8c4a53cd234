"""The scheduler's cache of pods by node, and the filters of kube-scheduler that matter here.

The cache holds bound, assumed and nominated pods. A node without `status.allocatable` has room for
everything; one that does not list `cpu`, `memory`, `ephemeral-storage` or `pods` has enough of it, since
most nodes in tests have only a name.

Source: `pkg/scheduler/framework/types.go` (FitError); the plugins NodeAffinity, NodeUnschedulable,
TaintToleration and NodeResourcesFit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from k8s_rdma.wire.pod_spec import quantity
from k8s_rdma_demo.cluster.objects import (
    JsonObject,
    condition_of,
    is_finished,
    labels_of,
    node_name_of,
    priority_of,
    spec_of,
    status_of,
    uid_of,
)

NO_NODES = "no nodes available to schedule pods"
_KEEPS_AWAY = frozenset({"NoSchedule", "NoExecute"})
_NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
_UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}

_NATIVE = frozenset({"cpu", "memory", "ephemeral-storage"})
_ZERO = Fraction(0)


class Assignments:
    """Pods by node. Source: `pkg/scheduler/backend/cache`, `backend/queue/nominator.go`."""

    def __init__(self) -> None:
        self._nodes: dict[str, dict[str, JsonObject]] = {}
        self._assumed: dict[str, str] = {}
        self._nominated: dict[str, tuple[str, JsonObject]] = {}

    def update(self, old: JsonObject | None, new: JsonObject | None) -> None:
        """Apply the change of a pod; old is None when it was created, new is None when it was deleted."""
        if old is not None and node_name_of(old):
            self._drop(node_name_of(old), uid_of(old))
        if new is None or is_finished(new) or node_name_of(new):
            self.forget(uid_of(new or old or {}))
            self.nominate(new or old or {}, "")
        if new is not None and node_name_of(new) and not is_finished(new):
            self._nodes.setdefault(node_name_of(new), {})[uid_of(new)] = new
        elif new is not None and not is_finished(new):
            nominated = str(status_of(new).get("nominatedNodeName") or "")
            previous = str(status_of(old or {}).get("nominatedNodeName") or "")
            if nominated != previous or uid_of(new) in self._nominated:
                self.nominate(new, nominated if nominated != previous else self.nominated(uid_of(new)))

    def assume(self, pod: JsonObject, node: str) -> None:
        """Count a pod that is being bound on its node; no room is made for it any more."""
        self.forget(uid_of(pod))
        self.nominate(pod, "")
        self._assumed[uid_of(pod)] = node
        self._nodes.setdefault(node, {})[uid_of(pod)] = pod

    def fail(self, pod: JsonObject) -> None:
        """Stop counting a pod that was not bound: the room that its status names is its own again."""
        self.forget(uid_of(pod))
        self.nominate(pod, str(status_of(pod).get("nominatedNodeName") or ""))

    def forget(self, uid: str) -> None:
        """Stop counting a pod that is not being bound any more."""
        node = self._assumed.pop(uid, None)
        if node is not None:
            self._drop(node, uid)

    def on(self, node: str) -> tuple[JsonObject, ...]:
        """Return the node's pods."""
        return tuple(self._nodes.get(node, {}).values())

    def nominate(self, pod: JsonObject, node: str) -> None:
        """Keep the room that is made for the pod on a node; an empty name: on none."""
        self._nominated.pop(uid_of(pod), None)
        if node:
            self._nominated[uid_of(pod)] = node, pod

    def nominated(self, uid: str) -> str:
        """Return the pod's nominated node; empty if it has none."""
        return self._nominated.get(uid, ("", {}))[0]

    def nominated_on(self, node: str) -> list[JsonObject]:
        """Return the pods that are nominated to the node."""
        return [pod for nominated_node, pod in self._nominated.values() if nominated_node == node]

    def nominated_rivals(self, pod: JsonObject, node: str) -> tuple[JsonObject, ...]:
        """Return the pods nominated to the node with at least this pod's priority: they count too."""
        return tuple(
            rival
            for rival in self.nominated_on(node)
            if uid_of(rival) != uid_of(pod) and priority_of(rival) >= priority_of(pod)
        )

    def _drop(self, node: str, uid: str) -> None:
        pods = self._nodes.get(node, {})
        pods.pop(uid, None)
        if not pods:
            self._nodes.pop(node, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The reason why a pod cannot go to a node. unresolvable: evicting other pods would not help."""

    reasons: tuple[str, ...]
    unresolvable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfit:
    """The refusal: how many nodes there are, and why each of those with a reason was refused.

    preemption: what came of trying to make room; empty when room is being made.
    """

    nodes: int
    refusals: Mapping[str, Refusal]
    preemption: str = ""

    @property
    def message(self) -> str:
        """`0/3 nodes are available: 1 <message a>, 2 <message b>.`: equal messages counted, then sorted."""
        if not self.nodes:
            return NO_NODES
        reasons = Counter(reason for refusal in self.refusals.values() for reason in refusal.reasons)
        counted = sorted(f"{count} {why}" for why, count in reasons.items())
        reasons_text = f" {', '.join(counted)}." if counted else ""
        suffix = f" {self.preemption}" if self.preemption else ""
        return f"0/{self.nodes} nodes are available:{reasons_text}{suffix}"


def node_refusal(pod: JsonObject, node: JsonObject) -> str | None:
    """Return why taints or labels keep a pod off a node; None when they do not."""
    tolerations: list[JsonObject] = spec_of(pod).get("tolerations") or []
    if spec_of(node).get("unschedulable") and not _tolerated(_UNSCHEDULABLE, tolerations):
        return "node(s) were unschedulable"
    if any(not _tolerated(taint, tolerations) for taint in _taints(node)):
        return "node(s) had untolerated taint(s)"
    selector: dict[str, str] = spec_of(pod).get("nodeSelector") or {}
    labels = labels_of(node)
    if any(labels.get(name) != value for name, value in selector.items()):
        return "node(s) didn't match Pod's node affinity/selector"
    return None


def _taints(node: JsonObject) -> list[JsonObject]:
    taints = [taint for taint in spec_of(node).get("taints") or [] if taint["effect"] in _KEEPS_AWAY]
    # The node lifecycle controller, which not every cluster of tests has, taints a node that is not ready.
    ready = condition_of(node, "Ready")
    return [*taints, _NOT_READY] if ready is not None and ready["status"] != "True" else taints


def _tolerated(taint: JsonObject, tolerations: list[JsonObject]) -> bool:
    """Report whether a taint is tolerated. Source: `k8s.io/api/core/v1/toleration.go`, ToleratesTaint."""
    for toleration in tolerations:
        if toleration.get("effect", "") not in {"", taint["effect"]}:
            continue
        if toleration.get("key", "") not in {"", taint["key"]}:
            continue
        exists = toleration.get("operator", "Equal") == "Exists"
        if exists or toleration.get("value", "") == taint.get("value", ""):
            return True
    return False


def requests_of(pod: JsonObject) -> dict[str, Fraction]:
    """Sum up the pod's requests (source: `PodRequests`, `k8s.io/component-helpers/resource`)."""
    spec = spec_of(pod)
    total: dict[str, Fraction] = {}
    init_total: dict[str, Fraction] = {}
    for init in spec.get("initContainers") or []:
        amounts = _amounts(init)
        if init.get("restartPolicy") == "Always":
            total = _sum(total, amounts)
            init_total = _maximum(init_total, total)
        else:
            init_total = _maximum(init_total, _sum(total, amounts))
    for container in spec.get("containers") or []:
        total = _sum(total, _amounts(container))
    overhead = {name: quantity(str(amount)) for name, amount in (spec.get("overhead") or {}).items()}
    return _sum(_maximum(total, init_total), overhead)


def resource_refusal(
    pod: JsonObject, node: JsonObject, pods: Collection[JsonObject], ignored: Collection[str] = ()
) -> Refusal | None:
    """Return why the node has not enough left beside its pods; None when it has.

    ignored: resources that do not count.
    """
    allocatable = status_of(node).get("allocatable")
    if allocatable is None:
        return None
    capacity = {name: quantity(str(amount)) for name, amount in allocatable.items()}
    reasons = [] if len(pods) + 1 <= capacity.get("pods", len(pods) + 1) else ["Too many pods"]
    requests = {
        name: amount
        for name, amount in requests_of(pod).items()
        if amount and name not in ignored and (name in capacity or name not in _NATIVE)
    }
    used = _total(requests_of(existing) for existing in pods)
    short = [n for n, amount in requests.items() if used.get(n, _ZERO) + amount > capacity.get(n, _ZERO)]
    reasons += [f"Insufficient {name}" for name in short]
    if not reasons:
        return None
    never = any(requests[name] > capacity.get(name, _ZERO) for name in short)
    return Refusal(reasons=tuple(reasons), unresolvable=never)


def _amounts(container: JsonObject) -> dict[str, Fraction]:
    requests = (container.get("resources") or {}).get("requests") or {}
    return {name: quantity(str(amount)) for name, amount in requests.items()}


def _total(parts: Iterable[Mapping[str, Fraction]]) -> dict[str, Fraction]:
    total: dict[str, Fraction] = {}
    for part in parts:
        total = _sum(total, part)
    return total


def _sum(first: Mapping[str, Fraction], second: Mapping[str, Fraction]) -> dict[str, Fraction]:
    return {**first, **{name: first.get(name, _ZERO) + amount for name, amount in second.items()}}


def _maximum(first: Mapping[str, Fraction], second: Mapping[str, Fraction]) -> dict[str, Fraction]:
    return {**first, **{name: max(first.get(name, _ZERO), amount) for name, amount in second.items()}}
