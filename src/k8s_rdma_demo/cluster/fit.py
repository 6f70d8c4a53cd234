"""The filters of kube-scheduler that matter here, and the refusal that they make.

A node without `status.allocatable` has room for everything; one that does not list `cpu`, `memory`,
`ephemeral-storage` or `pods` has enough of it, since most nodes in tests have only a name.

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
    labels_of,
    spec_of,
    status_of,
)

NO_NODES = "no nodes available to schedule pods"
_KEEPS_AWAY = frozenset({"NoSchedule", "NoExecute"})
_NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
_UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}

_NATIVE = frozenset({"cpu", "memory", "ephemeral-storage"})
_ZERO = Fraction(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The reason why a pod cannot go to a node. unresolvable: evicting other pods would not help."""

    reasons: tuple[str, ...]
    unresolvable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfit:
    """The refusal: how many nodes there are, and why each of those with a reason was refused.

    preemption: the result of trying to make room; empty when room is being made.
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
    """Return why taints or labels keep a pod off a node, if they do."""
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
    """Return the refusal, if the node has not enough left beside its pods.

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
