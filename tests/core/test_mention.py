"""Texts with names of pods, as people of other namespaces may read them."""

from __future__ import annotations

import pytest

from k8s_rdma.core.mention import pod_mention, shown

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
