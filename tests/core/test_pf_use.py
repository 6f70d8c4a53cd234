"""The use of PFs adds up, whichever way it is grouped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from core.pf_usages import USAGE, Usage
from k8s_rdma.core.pf_use import NOTHING_USED, DeviceUse, Used, total
from packing_oracle import pci

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.core.types import PciAddress

rates = st.lists(st.sampled_from([0, 1, 5, 700]), max_size=4).map(
    lambda each: tuple(sorted(each, reverse=True))
)


@st.composite
def usages(draw: st.DrawFn) -> Used:
    """Draw usages of a PF with rates as weights: every reservation is listed by itself."""
    plain = draw(rates)
    devices = tuple(
        DeviceUse(resource, max(len(mins), draw(st.integers(1, 5))), mins, draw(st.integers(0, len(mins))))
        for resource in ("a", "b")
        if (mins := draw(rates))
    )
    every = [rate for mins in (plain, *(use.mins for use in devices)) for rate in mins if rate]
    return Used(len(plain), sum(every), tuple(sorted(every, reverse=True)), devices)


@given(st.lists(usages(), min_size=1, max_size=5), st.randoms())
def test_usages_together_are_the_same_in_any_order(some: list[Used], random) -> None:
    shuffled = random.sample(some, len(some))
    assert Used.joined(some) == Used.joined(shuffled)
    assert sum(Used.joined(some).mins) == Used.joined(some).mbps


@given(usages(), usages())
def test_two_usages_together_are_their_sum(one: Used, other: Used) -> None:
    assert one + other == Used.joined([one, other])
    assert one + Used() == one


def _nonzero(usage: Mapping[PciAddress, Used]) -> Usage:
    return {address: used for address, used in usage.items() if used != NOTHING_USED}


@given(USAGE, USAGE, USAGE)
def test_total_adds_pf_by_pf_in_any_grouping(first: Usage, second: Usage, third: Usage) -> None:
    assert _nonzero(total(first, second, third)) == _nonzero(total(third, total(second, first)))
    assert _nonzero(total(first)) == _nonzero(first)
    assert total() == {}


def test_total_leaves_its_arguments_alone() -> None:
    first, second = {pci(0): Used(1, 5)}, {pci(0): Used(2, 7)}
    assert total(first, second) == {pci(0): Used(3, 12)}
    assert (first, second) == ({pci(0): Used(1, 5)}, {pci(0): Used(2, 7)})
