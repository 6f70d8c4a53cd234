"""Preemption: a dry run on each node, the choice of a node, and the eviction of its victims.

Writes to the API finish before the pod returns to the queue; kube-scheduler does both at once.

Source: `SelectVictimsOnNode` and `PodEligibleToPreemptOthers`, `plugins/defaultpreemption`;
`DryRunPreemption`, `filterPodsWithPDBViolation`, `pickOneNodeForPreemption`, `Evaluator.Preempt` and
`prepareCandidate`, `pkg/scheduler/framework/preemption`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import structlog

from k8s_rdma_demo.cluster.assignments import Assignments
from k8s_rdma_demo.cluster.client import ApiClient, ApiError, EventRecorder
from k8s_rdma_demo.cluster.extender_client import ExtenderError, Extenders, Victims
from k8s_rdma_demo.cluster.fit import Refusal, Unfit
from k8s_rdma_demo.cluster.objects import (
    POD_DISRUPTION_BUDGETS,
    PODS,
    Clock,
    JsonObject,
    condition_of,
    go_quote,
    is_terminating,
    key_of,
    labels_of,
    name_of,
    namespace_of,
    priority_of,
    spec_of,
    status_of,
    timestamp,
    uid_of,
)
from k8s_rdma_demo.cluster.selection import selects

NO_VICTIMS = Refusal(reasons=("No preemption victims found for incoming pod",), unresolvable=True)
NOT_HELPFUL = Refusal(reasons=("Preemption is not helpful for scheduling",), unresolvable=True)

_NOT_STARTED = "~"
"""Sorts behind every time: kube-scheduler takes the start of such a pod to be now."""

_DISRUPTION = "DisruptionTarget"
_BY_PREEMPTION = "PreemptionByScheduler"
_NO_CLAIMS, _CLAIMS = "no new claims to deallocate", "still not schedulable"
"""The messages of the plugin DynamicResources, which runs first, on pods without and with claims."""

_NOT_FOUND = 404
_log = structlog.get_logger()

Fits = Callable[["JsonObject", str, "tuple[JsonObject, ...]"], "Refusal | None"]


@dataclass(slots=True)
class DryRun:
    """The victims by node, and for the other nodes the reasons or errors."""

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
    found, all_budgets = DryRun(), list(budgets)
    for node, pods in nodes.items():
        lesser = [candidate for candidate in pods if priority_of(candidate) < priority_of(pod)]
        if not lesser:
            found.refusals[node] = NO_VICTIMS
            continue
        greater = tuple(pod for pod in pods if pod not in lesser)
        refusal = fits(node, greater)
        if refusal is not None:
            found.refusals[node] = refusal
            continue
        victims = _victims(node, greater, sorted(lesser, key=_rank), all_budgets, fits)
        if victims.pods:
            found.candidates[node] = victims
        else:
            found.errors.append(f"expected at least one victim pod on node {go_quote(node)}")
    return found


def pick_node(candidates: Mapping[str, Victims]) -> str:
    """The node whose evictions hurt least; the first by name among equals."""
    return min(sorted(candidates), key=lambda node: _cost(candidates[node]))


def _victims(
    node: str,
    staying: tuple[JsonObject, ...],
    lesser: list[JsonObject],
    budgets: list[JsonObject],
    fits: Callable[[str, tuple[JsonObject, ...]], Refusal | None],
) -> Victims:
    """Return the victims after reprieves: pods whose budget allows no eviction first, by priority."""
    violating = _violating(lesser, budgets)
    victims: list[JsonObject] = []
    for candidate in sorted(lesser, key=lambda pod: uid_of(pod) not in violating):
        if fits(node, (*staying, candidate)) is None:
            staying = (*staying, candidate)
        else:
            victims.append(candidate)
    violations = sum(uid_of(victim) in violating for victim in victims)
    return Victims(tuple(sorted(victims, key=_rank)), violations)


def _violating(pods: Iterable[JsonObject], budgets: list[JsonObject]) -> set[str]:
    allowed = [int(status_of(budget).get("disruptionsAllowed", 0)) for budget in budgets]
    violating = set()
    for pod in pods:
        for index, budget in enumerate(budgets):
            if not _covers(budget, pod) or name_of(pod) in (status_of(budget).get("disruptedPods") or {}):
                continue
            allowed[index] -= 1
            if allowed[index] < 0:
                violating.add(uid_of(pod))
    return violating


def _covers(budget: JsonObject, pod: JsonObject) -> bool:
    """Report whether a budget covers the pod; an empty selector covers no pod, unlike for evictions."""
    selector = spec_of(budget).get("selector") or {}
    if not (selector.get("matchLabels") or selector.get("matchExpressions")) or not labels_of(pod):
        return False
    return namespace_of(budget) == namespace_of(pod) and selects(selector, labels_of(pod))


def _rank(pod: JsonObject) -> tuple[int, str]:
    """The higher priority first, then the one that has run longer."""
    return -priority_of(pod), _started(pod)


def _started(pod: JsonObject) -> str:
    return str(status_of(pod).get("startTime") or _NOT_STARTED)


def _cost(victims: Victims) -> tuple[int, int, int, int, _Later]:
    priorities = [priority_of(pod) for pod in victims.pods]
    highest = [pod for pod in victims.pods if priority_of(pod) == max(priorities)]
    total = sum(priority + 2**31 for priority in priorities)
    earliest = min(_started(pod) for pod in highest)
    return victims.violations, priorities[0], total, len(priorities), _Later(earliest)


@dataclass(frozen=True, slots=True)
class _Later:
    """A time that sorts before earlier ones."""

    time: str

    def __lt__(self, earlier: _Later) -> bool:
        return self.time > earlier.time


@dataclass(frozen=True, slots=True)
class Outcome:
    """A preemption's result. node: the nominated node; empty: no node; unset: the nomination stays."""

    node: str | None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemptor:
    """Evicts. fits: why a pod does not fit on a node with these pods, by the scheduler's own filters."""

    client: ApiClient
    extenders: Extenders
    recorder: EventRecorder
    assignments: Assignments
    fits: Fits
    component: str
    clock: Clock

    async def make_room(self, pod: JsonObject, refusals: Mapping[str, Refusal], nodes: int) -> Outcome:
        """Evict the necessary pods on the node where that hurts least."""
        obstacle = self._ineligibility(pod, refusals)
        claims = _CLAIMS if spec_of(pod).get("resourceClaims") else _NO_CLAIMS
        if obstacle:
            return Outcome(None, f"{claims}, preemption: {obstacle}")
        resolvable = [node for node, refusal in refusals.items() if not refusal.unresolvable]
        try:
            found = dry_run(
                pod,
                {node: self.assignments.on(node) for node in resolvable},
                (await self.client.list(POD_DISRUPTION_BUDGETS))[0] if resolvable else [],
                lambda node, pods: self.fits(pod, node, pods),
            )
            if found.errors and not found.candidates:
                return Outcome(None, f"preemption: {_aggregate(found.errors)}")
            if not found.candidates:
                helpless = {node: found.refusals.get(node, NOT_HELPFUL) for node in refusals}
                why = Unfit(nodes=nodes, refusals=helpless).message
                return Outcome("", f"{claims}, preemption: {why}")
            candidates = await self.extenders.preempt(pod, found.candidates, self.assignments.on)
            if not candidates:
                return Outcome(None, f"{claims}, preemption: no candidate node for preemption")
            node = pick_node(candidates)
            await self._evict(pod, node, candidates[node])
        except (ExtenderError, ApiError) as error:
            return Outcome(None, f"preemption: {error.message}")
        return Outcome(node)

    def _ineligibility(self, pod: JsonObject, refusals: Mapping[str, Refusal]) -> str:
        """Return why the pod may not preempt; empty when it may."""
        if spec_of(pod).get("preemptionPolicy") == "Never":
            return "not eligible due to preemptionPolicy=Never."
        node = self.assignments.nominated(uid_of(pod))
        if not node or (node in refusals and refusals[node].unresolvable):
            return ""
        if any(
            priority_of(victim) < priority_of(pod) and _is_preempted(victim)
            for victim in self.assignments.on(node)
        ):
            return "not eligible due to a terminating pod on the nominated node."
        return ""

    async def _evict(self, pod: JsonObject, node: str, victims: Victims) -> None:
        for victim in victims.pods:
            if not is_terminating(victim):
                await self._delete(pod, victim)
            message = f"Preempted by pod {uid_of(pod)} on node {node}"
            await self.recorder.normal(victim, "Preempted", message)
        for nominated in self.assignments.nominated_on(node):
            if priority_of(nominated) < priority_of(pod):
                self.assignments.nominate(nominated, "")
                await self.client.patch_status(PODS, key_of(nominated), {"nominatedNodeName": None})

    async def _delete(self, pod: JsonObject, victim: JsonObject) -> None:
        condition = {
            "type": _DISRUPTION,
            "observedGeneration": victim["metadata"].get("generation", 1),
            "status": "True",
            "lastTransitionTime": timestamp(self.clock()),
            "reason": _BY_PREEMPTION,
            "message": f"{self.component}: preempting to accommodate a higher priority pod",
        }
        try:
            await self.client.patch_status(PODS, key_of(victim), {"conditions": [condition]})
            await self.client.delete(PODS, victim)
        except ApiError as error:
            if error.code != _NOT_FOUND:
                raise
        _log.info("pod.preempted", pod=name_of(victim), by=name_of(pod))


def _is_preempted(pod: JsonObject) -> bool:
    condition = condition_of(pod, _DISRUPTION) or {}
    return is_terminating(pod) and condition.get("reason") == _BY_PREEMPTION


def _aggregate(errors: list[str]) -> str:
    """Join error messages as `utilerrors.NewAggregate` does."""
    different = list(dict.fromkeys(errors))
    return different[0] if len(different) == 1 else f"[{', '.join(different)}]"
