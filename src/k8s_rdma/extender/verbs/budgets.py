"""Disruption budgets, and which evictions they do not allow, by kube-scheduler's rule.

Source: `filterPodsWithPDBViolation`, `pkg/scheduler/framework/preemption`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from k8s_rdma.extender.cluster.following import follow
from k8s_rdma.kube.api import Changed, Gone, Listed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from k8s_rdma.core.ids import PodUid
    from k8s_rdma.extender.cluster.occupants import Occupant
    from k8s_rdma.kube.api import BudgetView, ClusterApi, Event


class Budgets:
    """The budgets of the cluster; while they cannot be read, those of before.

    known: whether they were ever listed, or nobody wants them heeded; until then nobody may be chosen to be
    evicted. awaited: somebody is not chosen for that.
    """

    def __init__(self, budgets: Iterable[BudgetView] = (), *, known: bool = True) -> None:
        self.known = known
        self.awaited = False
        self._budgets = {(budget.namespace, budget.name): budget for budget in budgets}

    def take(self, event: Event[BudgetView]) -> None:
        """One event."""
        match event:
            case Listed(budgets):
                self.known = True
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


async def follow_budgets(api: ClusterApi, budgets: Budgets, on_known: Callable[[], None]) -> NoReturn:
    """Keep up with them. on_known: told when they come to be known after `Budgets.awaited` was set.

    A refusal, too, is asked again within 1 to 30 s: an API server that has just started refuses everybody
    (403) until it has read its roles.
    """

    def take(event: Event[BudgetView]) -> None:
        budgets.take(event)
        if budgets.known and budgets.awaited:
            budgets.awaited = False
            on_known()

    await follow("disruption budgets", api.follow_budgets, take, delay_s=1.0)
