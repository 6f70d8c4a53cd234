from __future__ import annotations

import asyncio

import pytest

from extender.world import until
from k8s_rdma.core.ids import PodUid
from k8s_rdma.extender.cluster.occupants import Occupant
from k8s_rdma.extender.verbs.budgets import Budgets, follow_budgets
from k8s_rdma.kube.api import ApiRefusedError, BudgetView, Changed, Gone, Listed


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
    violating = budgets.violating(pods)
    return [pod.name for pod in pods if pod.uid in violating]


@pytest.mark.parametrize(("allowed", "violating"), [(0, ["p", "q"]), (1, ["q"]), (2, []), (-1, ["p", "q"])])
def test_eviction_violates_a_budget_once_it_is_used_up(allowed, violating):
    assert names(Budgets([budget(allowed, app="x")])) == violating


def test_eviction_that_violates_one_of_two_budgets_spends_both():
    budgets = Budgets([budget(0, "a", app="x"), budget(1, "b", app="x")])
    assert names(budgets) == ["p", "q"]


def test_pod_that_counts_as_disrupted_already_spends_nothing():
    budgets = Budgets([budget(1, disrupted=frozenset({"p"}), app="x")])
    assert names(budgets) == []


def test_budget_is_of_its_namespace_and_never_for_pods_without_labels():
    budgets = Budgets([budget(0)])
    pods = [occupant("elsewhere", "e", app="x"), occupant("bare"), occupant("p", app="x")]
    assert names(budgets, pods) == ["p"]


def test_budgets_follow_what_is_told_of_them():
    budgets = Budgets()
    budgets.take(Listed((budget(0, "a", app="x"),)))
    budgets.take(Changed(budget(0, "b", app="y")))
    assert names(budgets) == ["p", "q", "r"]
    budgets.take(Changed(budget(2, "a", app="x")))
    budgets.take(Gone(budget(0, "b", app="y")))
    assert names(budgets) == []


class Refusing:
    """Gives a budget, then refuses in this way; what is asked next waits for ever."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.asked = 0

    async def follow_budgets(self):
        self.asked += 1
        yield Listed((budget(0, app="x"),))
        if self.asked > 1:
            await asyncio.Event().wait()
        raise ApiRefusedError("no", status=self.status)


@pytest.mark.anyio
@pytest.mark.parametrize(("status", "known"), [(403, []), (410, ["p", "q"])])
async def test_budgets_that_may_not_be_read_are_none_and_a_watch_that_expired_begins_anew(status, known):
    api, budgets, taken = Refusing(status), Budgets(), []

    class Noted(Budgets):
        def take(self, event) -> None:
            taken.append(event)
            budgets.take(event)

    following = asyncio.create_task(follow_budgets(api, Noted()))
    async with asyncio.timeout(10):
        await until(lambda: len(taken) == 2)
    assert names(budgets) == known
    following.cancel()
