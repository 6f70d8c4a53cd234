"""Bounded tables of pods: whatever is put into one, it stays within its limits, and the greediest pays."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.core.pod_table import PodLimits, PodTable
from k8s_rdma.core.types import PodUid

Value = tuple[str, int]
"""A pod's namespace, and the number of its interfaces."""


def table(pods: int = 4, weight: float = 10) -> PodTable[Value]:
    limits = PodLimits(pods=pods, weight=weight, age_s=5.0)
    return PodTable(limits, weigh=lambda value: value[1], owner=lambda value: value[0])


def put(found: PodTable[Value], *pods: tuple[str, str, int]) -> None:
    for uid, namespace, interfaces in pods:
        found.put(PodUid(uid), (namespace, interfaces))
        found.trim()


def test_oldest_pod_of_the_greediest_namespace_goes_beyond_the_number_of_pods() -> None:
    found = table()
    put(found, ("p", "modest", 1), *((f"q{number}", "greedy", 1) for number in range(4)))
    assert list(found.by_uid) == ["p", "q1", "q2", "q3"]


def test_weight_of_all_pods_is_bounded_and_the_heaviest_owner_loses_entries() -> None:
    found = table()
    put(found, ("p", "a", 4), ("q", "b", 3), ("r", "a", 3), ("s", "b", 1))
    assert list(found.by_uid) == ["q", "r", "s"]


def test_pod_heavier_than_the_limit_is_not_kept() -> None:
    found = table()
    put(found, ("p", "a", 11))
    assert len(found.by_uid) == 0
    assert found.by_uid.get(PodUid("p")) is None


def test_oldest_pod_is_dropped_if_pods_have_no_owners() -> None:
    found: PodTable[None] = PodTable(PodLimits(pods=2))
    for uid in ("p", "q", "p", "r"):
        found.put(PodUid(uid), None)
        found.trim()
    assert list(found.by_uid) == ["p", "r"]
    assert list(reversed(found.by_uid)) == ["r", "p"]


def test_entries_are_expired_beyond_their_age_and_replacing_one_does_not_renew_it() -> None:
    found = table()
    found.put(PodUid("p"), ("a", 1), entered_at=1.0)
    found.put(PodUid("q"), ("a", 1), entered_at=2.0)
    found.replace(PodUid("p"), ("a", 1))
    assert found.expired(6.5) == ["p"]
    assert found.entered_before(3.0) == ["p", "q"]


PODS = st.lists(st.tuples(st.sampled_from("pqrstuv"), st.sampled_from("abc"), st.integers(0, 6)), max_size=30)


@given(PODS, st.sets(st.sampled_from("pqrstuv")))
def test_table_stays_within_its_limits_and_counts_its_entries(
    pods: list[tuple[str, str, int]], gone: set[str]
) -> None:
    found = table()
    for index, pod in enumerate(pods):
        put(found, pod)
        if index % 3 == 0:
            for uid in sorted(gone):
                found.pop(PodUid(uid))
        held = list(found.by_uid.values())
        assert len(held) == len(found.by_uid) <= 4
        assert sum(weight for _, weight in held) <= 10
        weights = Counter[str]()
        for namespace, weight in held:
            weights[namespace] += weight
        assert all(value in held for value in found.by_uid.values())
        assert found.excess() is None
