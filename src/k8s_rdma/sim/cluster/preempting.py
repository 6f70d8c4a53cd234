"""Make room for a pod that fits nowhere, by evicting others.

Source: `Evaluator.Preempt` and `prepareCandidate`, `pkg/scheduler/framework/preemption`;
`PodEligibleToPreemptOthers`, `plugins/defaultpreemption`. What is written to the API is so before the pod
goes back into the queue, not beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.sim.cluster.assignments import Assignments
from k8s_rdma.sim.cluster.client import ApiClient, ApiError
from k8s_rdma.sim.cluster.events import EventRecorder
from k8s_rdma.sim.cluster.extender_client import ExtenderError
from k8s_rdma.sim.cluster.extenders import Extenders
from k8s_rdma.sim.cluster.fit import Refusal, Unfit
from k8s_rdma.sim.cluster.objects import (
    Clock,
    condition_of,
    is_terminating,
    key_of,
    name_of,
    priority_of,
    spec_of,
    timestamp,
    uid_of,
)
from k8s_rdma.sim.cluster.preemption import NOT_HELPFUL, dry_run, pick_node
from k8s_rdma.sim.cluster.resources import POD_DISRUPTION_BUDGETS, PODS

if TYPE_CHECKING:
    from k8s_rdma.sim.cluster.extender_preemption import Victims
    from k8s_rdma.sim.cluster.objects import JsonObject

_DISRUPTION = "DisruptionTarget"
_BY_PREEMPTION = "PreemptionByScheduler"
_NO_CLAIMS = "no new claims to deallocate"
"""What the plugin DynamicResources, which comes first, says of a pod without resource claims."""

_GONE = 404
_log = structlog.get_logger()

Fits = Callable[["JsonObject", str, "tuple[JsonObject, ...]"], "Refusal | None"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it. node: where room is made; empty: nowhere; None: what was so stays so."""

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
        """Evict what it takes on the node where that hurts least."""
        obstacle = self._obstacle(pod, refusals)
        if obstacle:
            return Outcome(None, f"{_NO_CLAIMS}, preemption: {obstacle}")
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
                return Outcome("", f"{_NO_CLAIMS}, preemption: {why}")
            candidates = await self.extenders.preempt(pod, found.candidates, self.assignments.on)
            if not candidates:
                return Outcome(None, f"{_NO_CLAIMS}, preemption: no candidate node for preemption")
            node = pick_node(candidates)
            await self._evict(pod, node, candidates[node])
        except (ExtenderError, ApiError) as error:
            return Outcome(None, f"preemption: {error.message}")
        return Outcome(node)

    def _obstacle(self, pod: JsonObject, refusals: Mapping[str, Refusal]) -> str:
        """Why the pod may not evict anybody; empty when it may."""
        if spec_of(pod).get("preemptionPolicy") == "Never":
            return "not eligible due to preemptionPolicy=Never."
        node = self.assignments.nominated(uid_of(pod))
        if not node or (node in refusals and refusals[node].unresolvable):
            return ""
        if any(
            priority_of(other) < priority_of(pod) and _goes_by_preemption(other)
            for other in self.assignments.on(node)
        ):
            return "not eligible due to a terminating pod on the nominated node."
        return ""

    async def _evict(self, pod: JsonObject, node: str, victims: Victims) -> None:
        for victim in victims.pods:
            if not is_terminating(victim):
                await self._delete(pod, victim)
            message = f"Preempted by pod {uid_of(pod)} on node {node}"
            await self.recorder.normal(victim, "Preempted", message)
        for other in self.assignments.nominated_on(node):
            if priority_of(other) < priority_of(pod):
                self.assignments.nominate(other, "")
                await self.client.patch_status(PODS, key_of(other), {"nominatedNodeName": None})

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
            if error.code != _GONE:
                raise
        _log.info("pod.preempted", pod=name_of(victim), by=name_of(pod))


def _goes_by_preemption(pod: JsonObject) -> bool:
    condition = condition_of(pod, _DISRUPTION) or {}
    return is_terminating(pod) and condition.get("reason") == _BY_PREEMPTION


def _aggregate(errors: list[str]) -> str:
    """As `utilerrors.NewAggregate` words several."""
    different = list(dict.fromkeys(errors))
    return different[0] if len(different) == 1 else f"[{', '.join(different)}]"
