"""Disruption budgets, and which evictions they do not allow, by kube-scheduler's rule.

Source: `filterPodsWithPDBViolation`, `pkg/scheduler/framework/preemption`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NoReturn

import structlog

from k8s_rdma.extender.cluster.following import follow
from k8s_rdma.kube.api import ApiRefusedError, Changed, Gone, Listed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterable

    from k8s_rdma.core.ids import PodUid
    from k8s_rdma.extender.cluster.occupants import Occupant
    from k8s_rdma.kube.api import BudgetView, ClusterApi, Event

_MAY_NOT = frozenset({401, 403, 404})
"""No credentials, no right, no such resource; anything else is a watch that is to begin anew."""

_REFUSED_AGAIN_S = 300.0
_log = structlog.get_logger()


class Budgets:
    """The budgets of the cluster; none where they cannot be read."""

    def __init__(self, budgets: Iterable[BudgetView] = ()) -> None:
        self._budgets = {(budget.namespace, budget.name): budget for budget in budgets}

    def take(self, event: Event[BudgetView]) -> None:
        """One event."""
        match event:
            case Listed(budgets):
                self._budgets = {(budget.namespace, budget.name): budget for budget in budgets}
            case Changed(budget):
                self._budgets[budget.namespace, budget.name] = budget
            case Gone(budget):
                self._budgets.pop((budget.namespace, budget.name), None)

    def violating(self, pods: Iterable[Occupant]) -> Collection[PodUid]:
        """Those whose eviction would go beyond a budget when they are evicted in this order."""
        left = {key: budget.allowed for key, budget in self._budgets.items()}
        return {pod.uid for pod in pods if self._spend(pod, left)}

    def _spend(self, pod: Occupant, left: dict[tuple[str, str], int]) -> bool:
        beyond = False
        for key, budget in self._budgets.items():
            if budget.namespace != pod.namespace or not pod.labels or not budget.selector(pod.labels):
                continue
            if pod.name not in budget.disrupted:
                left[key] -= 1
                beyond = beyond or left[key] < 0
        return beyond


async def follow_budgets(api: ClusterApi, budgets: Budgets) -> NoReturn:
    """Keep up with them; where they may not be read that is logged once, and tried again now and then."""
    await follow("disruption budgets", lambda: _unless_refused(api), budgets.take)


async def _unless_refused(api: ClusterApi) -> AsyncIterator[Event[BudgetView]]:
    told = False
    while True:
        try:
            async for event in api.follow_budgets():
                yield event
        except ApiRefusedError as error:
            if error.status not in _MAY_NOT:
                raise
            if not told:
                _log.warning("budgets_unknown", error=error.message, again_in_s=_REFUSED_AGAIN_S)
            told = True
            yield Listed(())
        await asyncio.sleep(_REFUSED_AGAIN_S)
