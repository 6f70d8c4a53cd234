"""Ranges of MACs, as a node reports them and an extender keeps them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.core.mac_ranges import NO_MACS, MacRanges

numbers = st.integers(0, 60)


@given(st.lists(st.tuples(numbers, st.integers(0, 5))), st.sets(numbers))
def test_ranges_hold_exactly_the_macs_that_were_added(made: list[tuple[int, int]], asked: set[int]):
    ranges = MacRanges.merge((first, first + more) for first, more in made)
    inside = {mac for first, more in made for mac in range(first, first + more + 1)}
    assert {mac for first, last in ranges for mac in range(first, last + 1)} == inside
    found = ranges.first_index_in(sorted(asked))
    assert (found in asked & inside) if asked & inside else found is None


def test_ranges_that_meet_are_one():
    assert list(MacRanges.merge([(4, 5), (1, 2), (3, 3), (9, 9)])) == [(1, 5), (9, 9)]
    assert list(NO_MACS) == []
