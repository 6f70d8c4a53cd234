"""Why a pod fits on no node, in kube-scheduler's words; and the few of its own filters that matter here.

Source: `pkg/scheduler/framework/types.go` (FitError), the plugins NodeAffinity, NodeUnschedulable and
TaintToleration. Resources: `node_resources`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.sim.cluster.objects import condition_of, labels_of, spec_of

if TYPE_CHECKING:
    from k8s_rdma.sim.cluster.objects import JsonObject

NO_NODES = "no nodes available to schedule pods"
_KEEPS_AWAY = frozenset({"NoSchedule", "NoExecute"})
_NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
_UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a pod cannot go to a node. unresolvable: evicting other pods would not help."""

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
        told = f" {', '.join(counted)}." if counted else ""
        after = f" {self.preemption}" if self.preemption else ""
        return f"0/{self.nodes} nodes are available:{told}{after}"


def why_unfit(pod: JsonObject, node: JsonObject) -> str | None:
    """Why a pod cannot go to a node by what the pod and the node say themselves; None when it can."""
    tolerations: list[JsonObject] = spec_of(pod).get("tolerations") or []
    if spec_of(node).get("unschedulable") and not _tolerated(_UNSCHEDULABLE, tolerations):
        return "node(s) were unschedulable"
    if any(not _tolerated(taint, tolerations) for taint in _taints(node)):
        return "node(s) had untolerated taint(s)"
    wanted: dict[str, str] = spec_of(pod).get("nodeSelector") or {}
    labels = labels_of(node)
    if any(labels.get(name) != value for name, value in wanted.items()):
        return "node(s) didn't match Pod's node affinity/selector"
    return None


def _taints(node: JsonObject) -> list[JsonObject]:
    taints = [taint for taint in spec_of(node).get("taints") or [] if taint["effect"] in _KEEPS_AWAY]
    # The node lifecycle controller, which there is none of here, would taint a node that is not ready.
    ready = condition_of(node, "Ready")
    return [*taints, _NOT_READY] if ready is not None and ready["status"] != "True" else taints


def _tolerated(taint: JsonObject, tolerations: list[JsonObject]) -> bool:
    """Source: `k8s.io/api/core/v1/toleration.go`, ToleratesTaint."""
    for toleration in tolerations:
        if toleration.get("effect", "") not in {"", taint["effect"]}:
            continue
        if toleration.get("key", "") not in {"", taint["key"]}:
            continue
        exists = toleration.get("operator", "Equal") == "Exists"
        if exists or toleration.get("value", "") == taint.get("value", ""):
            return True
    return False
