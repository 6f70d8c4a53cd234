"""Which pods would have to go from each node for a pod to fit, and which node is chosen.

Values in, values out. Source: `SelectVictimsOnNode`, `plugins/defaultpreemption`; `DryRunPreemption`,
`filterPodsWithPDBViolation` and `pickOneNodeForPreemption`, `framework/preemption`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from k8s_rdma.sim.cluster.extender_preemption import Victims
from k8s_rdma.sim.cluster.fit import Refusal
from k8s_rdma.sim.cluster.go_json import go_quote
from k8s_rdma.sim.cluster.label_selector import selects
from k8s_rdma.sim.cluster.objects import (
    labels_of,
    name_of,
    namespace_of,
    priority_of,
    spec_of,
    status_of,
    uid_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from k8s_rdma.sim.cluster.objects import JsonObject

NO_VICTIMS = Refusal(reasons=("No preemption victims found for incoming pod",), unresolvable=True)
NOT_HELPFUL = Refusal(reasons=("Preemption is not helpful for scheduling",), unresolvable=True)

_NOT_STARTED = "~"
"""Sorts behind every time: kube-scheduler takes the start of such a pod to be now."""


@dataclass(slots=True)
class DryRun:
    """What was found: victims by node, and for the other nodes why there are none, or what went wrong."""

    candidates: dict[str, Victims] = field(default_factory=dict)
    refusals: dict[str, Refusal] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)


def dry_run(
    pod: JsonObject,
    nodes: Mapping[str, tuple[JsonObject, ...]],
    budgets: Iterable[JsonObject],
    fits: Callable[[str, tuple[JsonObject, ...]], Refusal | None],
) -> DryRun:
    """Try the evictions on each node.

    nodes: those where it might help, with their pods. fits: why the pod does not fit on a node that has these
    pods; by the scheduler's own filters, extenders are not asked.
    """
    found, known = DryRun(), list(budgets)
    for node, pods in nodes.items():
        lesser = [each for each in pods if priority_of(each) < priority_of(pod)]
        if not lesser:
            found.refusals[node] = NO_VICTIMS
            continue
        greater = tuple(each for each in pods if each not in lesser)
        refusal = fits(node, greater)
        if refusal is not None:
            found.refusals[node] = refusal
            continue
        victims = _victims(node, greater, sorted(lesser, key=_rank), known, fits)
        if victims.pods:
            found.candidates[node] = victims
        else:
            found.errors.append(f"expected at least one victim pod on node {go_quote(node)}")
    return found


def pick_node(candidates: Mapping[str, Victims]) -> str:
    """The node whose evictions hurt least; the first by name among equals."""
    return min(sorted(candidates), key=lambda node: _hurt(candidates[node]))


def _victims(
    node: str,
    staying: tuple[JsonObject, ...],
    lesser: list[JsonObject],
    budgets: list[JsonObject],
    fits: Callable[[str, tuple[JsonObject, ...]], Refusal | None],
) -> Victims:
    """Put back whoever need not go: those first that no budget allows to evict, the important ones first."""
    violating = _violating(lesser, budgets)
    victims: list[JsonObject] = []
    for each in sorted(lesser, key=lambda pod: uid_of(pod) not in violating):
        if fits(node, (*staying, each)) is None:
            staying = (*staying, each)
        else:
            victims.append(each)
    violations = sum(uid_of(each) in violating for each in victims)
    return Victims(tuple(sorted(victims, key=_rank)), violations)


def _violating(pods: Iterable[JsonObject], budgets: list[JsonObject]) -> set[str]:
    left = [int(status_of(budget).get("disruptionsAllowed", 0)) for budget in budgets]
    violating = set()
    for pod in pods:
        for at, budget in enumerate(budgets):
            if not _covers(budget, pod) or name_of(pod) in (status_of(budget).get("disruptedPods") or {}):
                continue
            left[at] -= 1
            if left[at] < 0:
                violating.add(uid_of(pod))
    return violating


def _covers(budget: JsonObject, pod: JsonObject) -> bool:
    """A budget that selects by nothing is for no pod here, unlike for evictions."""
    selector = spec_of(budget).get("selector") or {}
    if not (selector.get("matchLabels") or selector.get("matchExpressions")) or not labels_of(pod):
        return False
    return namespace_of(budget) == namespace_of(pod) and selects(selector, labels_of(pod))


def _rank(pod: JsonObject) -> tuple[int, str]:
    """The higher priority first, then who has run for longer."""
    return -priority_of(pod), _started(pod)


def _started(pod: JsonObject) -> str:
    return str(status_of(pod).get("startTime") or _NOT_STARTED)


def _hurt(victims: Victims) -> tuple[int, int, int, int, _Later]:
    priorities = [priority_of(pod) for pod in victims.pods]
    highest = [pod for pod in victims.pods if priority_of(pod) == max(priorities)]
    total = sum(priority + 2**31 for priority in priorities)
    earliest = min(_started(pod) for pod in highest)
    return victims.violations, priorities[0], total, len(priorities), _Later(earliest)


@dataclass(frozen=True, slots=True)
class _Later:
    """Sorts times the other way round."""

    time: str

    def __lt__(self, other: _Later) -> bool:
        return self.time > other.time
