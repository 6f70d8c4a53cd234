from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from extender.world import until
from k8s_rdma.core.preemption import Occupant
from k8s_rdma.core.types import PodUid
from k8s_rdma.extender.preempt import Budgets, follow_budgets, violating
from k8s_rdma.kube.api import BudgetView
from k8s_rdma.kube.errors import ApiRefusedError
from k8s_rdma.kube.informer import Changed, Deleted, Listed


def occupant(name: str, namespace: str = "d", **labels: str) -> Occupant:
    return Occupant(uid=PodUid(f"uid-{name}"), namespace=namespace, name=name, priority=0, labels=labels)


def budget(allowed: int, name: str = "b", disrupted: frozenset[str] = frozenset(), **labels: str):
    return BudgetView(
        namespace="d",
        name=name,
        selector=lambda found: labels.items() <= found.items(),
        allowed=allowed,
        disrupted=disrupted,
    )


PODS = [occupant("p", app="x"), occupant("q", app="x"), occupant("r", app="y")]


def names(budgets: Budgets, pods=PODS) -> list[str]:
    beyond = violating(pods, {pod.uid: budgets.spent_by(pod) for pod in pods})
    return [pod.name for pod in pods if pod.uid in beyond]


@pytest.mark.parametrize(("allowed", "protected"), [(0, ["p", "q"]), (1, ["q"]), (2, []), (-1, ["p", "q"])])
def test_eviction_violates_a_budget_once_it_is_used_up(allowed, protected):
    assert names(Budgets([budget(allowed, app="x")])) == protected


def test_eviction_that_violates_one_of_two_budgets_spends_both():
    budgets = Budgets([budget(0, "a", app="x"), budget(1, "b", app="x")])
    assert names(budgets) == ["p", "q"]


def test_pod_that_is_disrupted_already_uses_no_budget():
    budgets = Budgets([budget(1, disrupted=frozenset({"p"}), app="x")])
    assert names(budgets) == []


def test_budget_is_of_its_namespace_and_never_for_pods_without_labels():
    budgets = Budgets([budget(0)])
    pods = [occupant("elsewhere", "e", app="x"), occupant("bare"), occupant("p", app="x")]
    assert names(budgets, pods) == ["p"]


def test_budgets_follow_their_watch():
    budgets = Budgets()
    budgets.on_event(Listed((budget(0, "a", app="x"),)))
    budgets.on_event(Changed(budget(0, "b", app="y")))
    assert names(budgets) == ["p", "q", "r"]
    budgets.on_event(Changed(budget(2, "a", app="x")))
    budgets.on_event(Deleted(budget(0, "b", app="y")))
    assert names(budgets) == []


def test_only_so_many_budgets_of_a_namespace_are_heeded_and_those_of_others_are_not_counted():
    elsewhere = replace(budget(0, app="x"), namespace="e")
    others = [budget(1, f"b{number}", app="z") for number in range(1000)]
    budgets = Budgets([*others[1:], budget(0, app="x")])
    budgets.on_event(Changed(elsewhere))
    assert names(budgets) == ["p", "q"]
    budgets.on_event(Listed((*others, budget(0, app="x"))))
    assert names(budgets) == []


class Refusing:
    """Refuses in this way once, after so many budgets; the next request waits for ever."""

    def __init__(self, status: int, *budgets: BudgetView) -> None:
        self.status = status
        self.budgets = budgets
        self.asked = 0

    async def follow_budgets(self):
        self.asked += 1
        if self.budgets or self.asked > 1:
            yield Listed(self.budgets)
        if self.asked > 1:
            await asyncio.Event().wait()
        raise ApiRefusedError("no", status=self.status)


@pytest.mark.anyio
@pytest.mark.parametrize("status", [401, 403, 404, 410])
async def test_budgets_of_before_stay_in_force_while_they_may_not_be_read(status):
    api, budgets = Refusing(status, budget(0, app="x")), Budgets(synced=False)
    following = asyncio.create_task(follow_budgets(api, budgets, lambda: None))
    async with asyncio.timeout(120):
        await until(lambda: budgets.synced)
        await until(lambda: api.asked == 2)
    assert names(budgets) == ["p", "q"]
    following.cancel()


@pytest.mark.anyio
@pytest.mark.parametrize("awaited", [True, False])
async def test_refused_budgets_are_read_again_soon_and_waiting_pods_are_tried_again(awaited):
    api, budgets, told = Refusing(403), Budgets(synced=False), []
    budgets.awaited = awaited
    following = asyncio.create_task(follow_budgets(api, budgets, lambda: told.append(True)))
    async with asyncio.timeout(120):
        await until(lambda: budgets.synced)
    assert told == [True] * awaited
    following.cancel()
