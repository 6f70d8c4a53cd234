"""The shares that mlx5 makes of minimum rates, by hand and against exact fractions."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.core.inventory import Pf
from k8s_rdma.core.pf_use import Used
from k8s_rdma.core.rate_ability import RateAbility, RateRange
from k8s_rdma.core.round_robin import RoundRobin, effective_mins, shares
from k8s_rdma.core.types import PciAddress

MINS = st.lists(
    st.sampled_from([0, 1, 2, 99, 100, 101, 149, 150, 5_000]) | st.integers(0, 120_000), max_size=12
)


def pf(link_mbps: int | None, weights: int | None = 100) -> Pf:
    return Pf(
        name="enp1s0f0",
        pci=PciAddress("0000:01:00.0"),
        capacity_vfs=128,
        link_mbps=link_mbps,
        rates=RateAbility(min=RateRange(), max=RateRange(), weights=weights),
        driver="mlx5_core",
    )


@pytest.mark.parametrize(
    ("mins", "expected"),
    [
        ([], []),
        ([0, 0], [0, 0]),
        ([10_000], [100]),
        ([10_000, 0], [100, 1]),
        ([10_000, 5_000, 1, 0], [100, 50, 1, 1]),
        ([10_099, 101], [100, 2]),  # the divider is rounded down, shares up, at most to the largest
        ([150, 100], [100, 100]),
        ([7, 3], [7, 3]),
    ],
)
def test_shares_are_those_of_the_driver(mins: list[int], expected: list[int]) -> None:
    assert shares(mins, 100) == expected


@pytest.mark.parametrize(
    ("mins", "expected"),
    [
        ([50_000, 50_000], [50_000, 50_000]),
        ([99_500, 500], [99_009, 990]),  # a small one gets twice its request, at the large one's cost
        ([50_000, 0, 0], [98_039, 980, 980]),
        ([100_000, 0], [99_009, 990]),
        ([0, 0, 0, 0], [25_000] * 4),
        ([], []),
    ],
)
def test_effective_mins_share_the_link(mins: list[int], expected: list[int]) -> None:
    assert effective_mins(mins, 100_000, 100) == expected


@given(MINS, st.integers(1, 200_000), st.integers(1, 300))
def test_effective_mins_are_the_floor_of_exact_shares_of_the_link(
    mins: list[int], link: int, most: int
) -> None:
    weights = [share or 1 for share in shares(mins, most)]
    exact = [Fraction(weight * link, sum(weights)) for weight in weights]
    assert effective_mins(mins, link, most) == [int(each) for each in exact]
    assert sum(effective_mins(mins, link, most)) <= link


@given(MINS, MINS, st.integers(0, 5), st.integers(1, 250_000))
def test_load_keeps_every_minimum_exactly_when_effective_mins_say_so(
    there: list[int], joining: list[int], others: int, link: int
) -> None:
    mins = tuple(sorted(filter(None, there), reverse=True))
    used = Used(len(mins) + others, sum(mins), mins)
    round_robin = RoundRobin.for_pf(pf(link), used)
    assert round_robin is not None
    load = round_robin.load()
    for rate in sorted(joining, reverse=True):
        load = round_robin.join(load, rate)
    everyone = [*mins, *joining, *[0] * others]
    got = effective_mins(everyone, link, 100)
    assert load.is_within_limit == all(gets >= rate for gets, rate in zip(got, everyone, strict=True))


@given(MINS, st.lists(st.integers(0, 120_000), min_size=2, max_size=8), st.integers(1, 250_000))
def test_load_that_keeps_not_never_does_when_smaller_ones_join(
    there: list[int], joining: list[int], link: int
) -> None:
    mins = tuple(sorted(filter(None, there), reverse=True))
    round_robin = RoundRobin.for_pf(pf(link), Used(len(mins), sum(mins), mins))
    assert round_robin is not None
    load = round_robin.load()
    kept = []
    for rate in sorted(joining, reverse=True):
        load = round_robin.join(load, rate)
        kept.append(load.is_within_limit)
    assert kept == sorted(kept, reverse=True)


def test_round_robin_is_unknown_when_rates_are_no_weights() -> None:
    assert RoundRobin.for_pf(pf(100, weights=None), Used(3, 7)) is None


def test_round_robin_is_refused_when_the_minima_are_unknown() -> None:
    with pytest.raises(ValueError, match="enp1s0f0: 7 Mb/s are reserved, its minimum rates are \\(\\)"):
        RoundRobin.for_pf(pf(100), Used(3, 7))
