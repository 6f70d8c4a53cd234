"""Rates that drivers take: ranges of whole steps, and weights."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.rate_ranges import RANGES
from k8s_rdma.core.rate_ability import RateAbility, RateRange
from k8s_rdma.core.types import MAX_RATE_MBPS


@pytest.mark.parametrize(
    "bounds",
    [
        {"step": 0},
        {"smallest": 0},
        {"smallest": 5, "largest": 4},
        {"largest": MAX_RATE_MBPS + 1},
        {"step": 50, "smallest": 50},  # the largest rate there is falls between two steps
        {"step": 50, "smallest": 75, "largest": 100},
        {"step": 50, "smallest": 1, "largest": 100},
    ],
)
def test_range_is_refused_when_it_holds_no_rate_or_ends_between_steps(bounds: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="no range of rates"):
        RateRange(**bounds)


@given(RANGES, st.integers(1, 40_000))
def test_range_rounds_up_and_down_to_the_nearest_that_it_takes(takes: RateRange, rate: int) -> None:
    every = range(takes.smallest, takes.largest + 1, takes.step)
    assert takes.round_up(rate) == min((each for each in every if each >= rate), default=None)
    assert takes.round_down(rate) == max((each for each in every if each <= rate), default=None)


def test_weights_are_refused_if_no_vf_could_have_a_share() -> None:
    assert RateAbility(weights=1).weights == 1
    with pytest.raises(ValueError, match="weights: 0 is no largest share"):
        RateAbility(weights=0)
