"""Victims of preemption on a node; a fit is decided by a number here: each pod frees so much."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.core.preemption import Occupant, Proposal, Victims, conclude, correct
from k8s_rdma.core.types import PodUid
from k8s_rdma.extender.preempt import Budgets, violating
from k8s_rdma.kube.api import BudgetView

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


def pod(name: str, priority: int = 0, started: str = "2026-11-21T00:00:00Z", cpu: int | None = 1) -> Occupant:
    return Occupant(
        uid=PodUid(name),
        namespace="d",
        name=name,
        priority=priority,
        started=started,
        demand=None if cpu is None else (("cpu", Fraction(cpu)),),
        labels={"name": name},
    )


def sent(
    *pods: Occupant, violations: int = 0, replaceable: bool = True, going: Collection[str] = ()
) -> Proposal:
    return Proposal(
        uids=tuple(each.uid for each in pods),
        occupants={each.uid: each for each in pods},
        terminating=frozenset(map(PodUid, going)),
        violations=violations,
        replaceable=replaceable,
    )


def protecting(*names: str, allowed: int = 0) -> Budgets:
    return Budgets(
        BudgetView(
            namespace="d",
            name=name,
            selector=lambda labels, name=name: labels["name"] == name,
            allowed=allowed,
        )
        for name in names
    )


def needing(amount: int, **frees: int):
    return lambda evicted: sum(frees.get(uid, 0) for uid in evicted) >= amount


def choice(asked: Proposal, others: Iterable[Occupant], budgets: Budgets, fits) -> Victims | None:
    others = list(others)
    spent = {pod.uid: budgets.spent_by(pod) for pod in (*others, *asked.occupants.values())}
    return conclude(correct(asked, others, partial(violating, spent=spent)), fits)


def chosen(*args, budgets: Budgets | None = None) -> tuple[list[str], int] | None:
    asked, others, fits = args
    found = choice(asked, others, budgets or Budgets(), fits)
    return None if found is None else (list(found.uids), found.violations)


def test_victims_go_back_as_they_came_when_they_are_enough():
    fits = needing(5, a=5, b=5)
    assert chosen(sent(pod("a"), violations=3), [pod("b")], fits) == (["a"], 3)


def test_node_is_dropped_when_no_eviction_helps():
    assert chosen(sent(pod("a")), [pod("b")], needing(5, a=1, b=1)) is None
    assert chosen(sent(pod("a")), [], needing(5, a=1)) is None


def test_node_without_victims_is_dropped_if_no_eviction_is_needed():
    assert chosen(sent(), [pod("b")], needing(0)) is None


def test_node_without_victims_gets_those_that_help():
    assert chosen(sent(), [pod("b")], needing(1, b=1)) == (["b"], 0)


def test_fewest_are_added_and_those_of_lowest_priority_that_came_last():
    others = [
        pod("old", 1, "2026-11-21T00:00:00Z"),
        pod("new", 1, "2026-11-21T09:00:00Z"),
        pod("important", 2),
    ]
    asked = sent(pod("a", cpu=9))
    assert chosen(asked, others, needing(5, old=5, new=5, important=5)) == (["new", "a"], 0)
    assert chosen(asked, others, needing(7, old=5, new=5, important=5)) == (["old", "new", "a"], 0)
    assert chosen(asked, others, needing(7, old=5, new=5, important=7)) == (["old", "new", "a"], 0)
    assert chosen(asked, others, needing(12, old=5, new=5, important=7)) == (["important", "new", "a"], 0)


def test_pods_that_have_not_started_go_before_those_that_run():
    others = [pod("running"), pod("waiting", started="")]
    assert chosen(sent(pod("a", cpu=9)), others, needing(5, running=5, waiting=5)) == (["a", "waiting"], 0)


def test_pods_that_no_budget_allows_to_evict_stay_when_others_do():
    others = [pod("lowest", 0), pod("higher", 5)]
    fits = needing(5, lowest=5, higher=5)
    budgets = protecting("lowest")
    assert chosen(sent(pod("a", cpu=9)), others, fits, budgets=budgets) == (["higher", "a"], 0)


def test_violations_are_counted_anew_when_victims_change():
    fits = needing(10, b=5, c=5)
    budgets = protecting("b", "a")
    asked = sent(pod("a", cpu=9), violations=1)
    assert chosen(asked, [pod("b"), pod("c")], fits, budgets=budgets) == (["a", "b", "c"], 2)
    replaced = sent(pod("a"), violations=1)
    assert chosen(replaced, [pod("b"), pod("c")], fits, budgets=budgets) == (["b", "c"], 1)


def test_violations_counted_by_the_scheduler_stand_for_unknown_victims():
    unknown = Proposal(uids=(PodUid("x"),), occupants={}, violations=1)
    found = choice(unknown, [pod("b")], protecting("b"), needing(5, b=5))
    assert found == Victims((PodUid("b"), PodUid("x")), 2)


@pytest.mark.parametrize(
    ("victim", "replaceable", "dropped"),
    [
        (pod("a", cpu=1), True, True),
        (pod("a", cpu=2), True, False),  # the added pod frees less of the scheduler's resources
        (pod("a", cpu=None), True, False),  # it may take a port, a disk, a device
        (pod("a", cpu=1), False, False),  # the pod that waits minds its neighbours
    ],
)
def test_victim_is_dropped_only_when_another_surely_takes_its_place(victim, replaceable, dropped):
    found = chosen(sent(victim, replaceable=replaceable), [pod("b", cpu=1)], needing(5, a=1, b=5))
    assert found == ((["b"] if dropped else ["a", "b"]), 0)


def test_victim_is_not_dropped_when_its_interfaces_are_needed():
    assert chosen(sent(pod("a")), [pod("b")], needing(6, a=1, b=5)) == (["a", "b"], 0)


def test_important_victim_is_dropped_first():
    asked = sent(pod("important", 5), pod("a", 1))
    assert chosen(asked, [pod("b")], needing(5, b=5)) == (["a", "b"], 0)


def test_victim_that_goes_by_itself_is_dropped_while_another_stays():
    fits = needing(1, a=1)
    assert chosen(sent(pod("gone"), pod("a"), going=["gone"]), [], fits) == (["a"], 0)
    assert chosen(sent(pod("gone"), going=["gone"]), [], needing(0)) == (["gone"], 0)


def test_first_victim_has_the_highest_priority():
    others = [pod("b", 3), pod("c", 1)]
    assert chosen(sent(pod("a", 2, cpu=9)), others, needing(10, b=5, c=5)) == (["b", "a", "c"], 0)


amounts = st.lists(st.integers(0, 6), min_size=1, max_size=5)


@given(needed=st.integers(0, 15), in_tree=amounts, more=amounts, protected=st.sets(st.sampled_from("abcde")))
def test_chosen_victims_suffice_and_no_added_one_is_needless(needed, in_tree, more, protected):
    first = [pod(f"s{i}", i % 2) for i, _ in enumerate(in_tree)]
    others = [pod("abcde"[i], i % 3) for i, _ in enumerate(more)]
    frees = {f"s{i}": amount for i, amount in enumerate(in_tree)}
    frees |= {"abcde"[i]: amount for i, amount in enumerate(more)}
    fits = needing(needed, **frees)
    found = choice(sent(*first), others, protecting(*protected), fits)
    if found is None:
        assert not fits(frees.keys())
        return
    assert fits(found.uids)
    added = {uid for uid in found.uids if not uid.startswith("s")}
    kept = {uid for uid in found.uids if uid.startswith("s")}
    assert len(found.uids) >= len(first)  # each that is dropped has one in its place
    everyone = {each.uid for each in first}
    for fewer in (set(each) for size in range(len(added)) for each in combinations(added, size)):
        assert not fits(everyone | fewer)
    assert kept | added == set(found.uids)


GROUP = frozenset(map(PodUid, "abc"))


@given(
    needed=st.integers(0, 15),
    in_tree=amounts,
    more=amounts,
    chosen_mates=st.integers(0, 2),
    whole=st.booleans(),
)
def test_group_goes_whole_or_not_at_all(needed, in_tree, more, chosen_mates, whole):
    """whole: whether all of its pods are on the node; if not, all of them must stay."""
    mates = [pod(name) for name in "abc"]
    first = [*mates[:chosen_mates], *(pod(f"s{i}", i % 2) for i, _ in enumerate(in_tree))]
    others = [*mates[chosen_mates:], *(pod(f"o{i}", i % 3) for i, _ in enumerate(more))]
    frees = {each.uid: amount for each, amount in zip(first, itertools.cycle([1, *in_tree]), strict=False)}
    frees |= {each.uid: amount for each, amount in zip(others, itertools.cycle([2, *more]), strict=False)}
    fits = needing(needed, **frees)
    asked = replace(
        sent(*first),
        bundles=dict.fromkeys(GROUP, GROUP) if whole else {},
        untouchable=frozenset() if whole else GROUP,
    )
    found = choice(asked, [each for each in others if whole or each.uid not in GROUP], Budgets(), fits)
    if found is None:
        return
    gone = GROUP.intersection(found.uids)
    assert gone in ((frozenset(), GROUP) if whole else (frozenset(),))
    assert found.uids
    assert fits(found.uids)
    assert len(found.uids) >= len(first)  # each that stays has one in its place
    assert len(set(found.uids)) == len(found.uids)
