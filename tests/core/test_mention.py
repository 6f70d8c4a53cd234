"""Texts with names of pods, as people of other namespaces may read them."""

from __future__ import annotations

import pytest

from k8s_rdma.core.mention import listed_for, pod_mention, pods_named, shown

MENTIONS = (pod_mention("team", "a"), pod_mention("team", "a-1"), pod_mention("own", "b"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pod team/a: lost; pod own/b: lost", "a pod of another namespace: lost; pod own/b: lost"),
        ("which pod team/a-1 has, too", "which a pod of another namespace has, too"),
        ("which pod team/a has.", "which a pod of another namespace has."),
        ("pod team/a.b and pod team/a_b stay", "pod team/a.b and pod team/a_b stay"),
        ("no pod at all", "no pod at all"),
    ],
)
def test_text_names_no_pod_of_a_namespace_that_its_reader_may_not_see(text: str, expected: str):
    assert shown(text, MENTIONS, lambda namespace: namespace == "own") == expected
    assert shown(text, MENTIONS, lambda _: True) == text


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        (["own/a"], "own/a"),
        (["own/a", "own/b", "own/c", "own/d"], "own/a, own/b, own/c and 1 more"),
        (["team/x", "own/a", "owner/y"], "own/a and 2 of other namespaces"),
        (["team/x"], "1 of other namespaces"),
    ],
)
def test_list_names_pods_of_one_namespace_and_counts_the_others(pods: list[str], expected: str):
    assert listed_for("own", pods) == expected


def test_pods_are_found_in_texts_of_writers_that_pass_on_no_mentions():
    text = "pod a/b.c: lost; VF 1, which pod x-1/y has, is gone; tripod no/pod; pod of PF 0000:01:00.0/1"
    assert pods_named(text) == (pod_mention("a", "b.c"), pod_mention("x-1", "y"))
