from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.core.inventory import CLAIMS_POOL, Inventory, Pf
from k8s_rdma.core.offers import WHOLE
from k8s_rdma.core.pf_use import Used
from k8s_rdma.core.placement import PlacedInterface, Placement, place, score
from k8s_rdma.core.types import Strategy
from packing_oracle import NODE, inventory, pci
from placement_oracle import REQUESTS, nodes

if TYPE_CHECKING:
    from k8s_rdma.core.request import Request
    from placement_oracle import Situation

FOUR = inventory(*[(100_000, 10)] * 4)


def _on(*placed: tuple[int, int]) -> Placement:
    """A placement given as (PF, Mb/s)."""
    return Placement(
        node=NODE,
        interfaces=tuple(PlacedInterface(pf=pci(at), min_tx_rate_mbps=mbps) for at, mbps in placed),
    )


USED = st.lists(st.builds(Used, st.integers(0, 12), st.integers(0, 120_000)), min_size=4, max_size=4)
PLACED = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50_000)), max_size=6)


@given(PLACED, USED, st.sampled_from(Strategy))
def test_score_is_a_number_of_thousandths_whatever_is_used(
    placed: list[tuple[int, int]], used: list[Used], strategy: Strategy
) -> None:
    found = score(_on(*placed), FOUR, {pci(at): there for at, there in enumerate(used)}, strategy)
    assert isinstance(found, int)
    assert 0 <= found <= WHOLE


@given(PLACED, USED, st.integers(0, 3), st.builds(Used, st.integers(0, 4), st.integers(0, 30_000)))
def test_score_never_falls_when_more_is_used_and_never_rises_when_pods_are_spread(
    placed: list[tuple[int, int]], used: list[Used], at: int, more: Used
) -> None:
    before = {pci(index): there for index, there in enumerate(used)}
    after = {**before, pci(at): before[pci(at)] + more}
    assert score(_on(*placed), FOUR, after) >= score(_on(*placed), FOUR, before)
    emptier, fuller = (score(_on(*placed), FOUR, each, Strategy.SPREAD) for each in (before, after))
    assert emptier >= fuller


@pytest.mark.parametrize(
    ("placed", "used", "expected"),
    [
        pytest.param([], {}, 0, id="nothing placed"),
        pytest.param([(0, 1_000)], {}, 6, id="a little on an empty node"),
        pytest.param([(0, 100_000)], {}, 625, id="a whole PF of four: (4 * 1 + 1) / 8"),
        pytest.param([(0, 50_000), (1, 50_000)], {}, 375, id="half of two PFs: (4 / 2 + 1) / 8"),
        pytest.param([(0, 10_000)], {0: Used(1, 90_000)}, 625, id="finishes off a PF: (4 * 1 + 1) / 8"),
        pytest.param([(1, 10_000)], {0: Used(1, 90_000)}, 175, id="breaks into another: (4 / 10 + 1) / 8"),
        pytest.param(
            [(0, 10_000)], {0: Used(9, 0)}, 62, id="bandwidth counts, not VFs: (4 / 10 + 1 / 10) / 8"
        ),
        pytest.param(
            [(0, 0)], {0: Used(9, 0)}, 625, id="VFs count where nothing is reserved: (4 * 1 + 1) / 8"
        ),
        pytest.param([(0, 1)], dict.fromkeys(range(4), Used(9, 100_000)), 1000, id="full node"),
    ],
)
def test_score_is_the_mean_over_the_nodes_pfs_and_four_times_that_over_the_placed_ones(
    placed: list[tuple[int, int]], used: dict[int, Used], expected: int
) -> None:
    assert score(_on(*placed), FOUR, {pci(at): there for at, there in used.items()}) == expected


def test_more_pfs_make_the_node_count_more() -> None:
    """A placement that fills a PF of an otherwise empty node."""
    scores = [score(_on((0, 100_000)), inventory(*[(100_000, 10)] * pfs), {}) for pfs in (1, 2, 8)]
    assert scores == [1000, (4 * 1000 + 1000) // 6, (4 * 1000 + 1000) // 12]


def test_score_counts_vfs_only_when_the_link_is_unknown() -> None:
    assert score(_on((0, 0)), inventory((None, 2)), {pci(0): Used(1, 0)}) == WHOLE


SHARES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=4, max_size=4)


@given(SHARES, SHARES)
def test_balanced_prefers_the_node_on_which_the_shares_end_closest(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    """Shares in tenths of each PF's VFs and bandwidth; the placement takes a tenth of every PF."""

    def gap_and_score(shares: list[tuple[int, int]]) -> tuple[int, int]:
        used = {pci(at): Used(vfs, mbps * 10_000) for at, (vfs, mbps) in enumerate(shares)}
        everywhere = _on(*[(at, 10_000) for at in range(4)])
        return sum(abs(vfs - mbps) for vfs, mbps in shares), score(everywhere, FOUR, used, Strategy.BALANCED)

    (gap, points), (other_gap, other_points) = gap_and_score(one), gap_and_score(other)
    if gap < other_gap:
        assert points >= other_points
    if gap + 4 <= other_gap:  # a tenth of every PF's
        assert points > other_points


@pytest.mark.parametrize(
    ("strategy", "placed", "used", "expected"),
    [
        pytest.param(Strategy.SPREAD, [(0, 1_000)], {}, 937, id="nearly all of an empty node is left"),
        pytest.param(Strategy.SPREAD, [(0, 100_000)], {}, 375, id="a PF is full: (4 * 0 + 3) / 8"),
        pytest.param(Strategy.SPREAD, [], {}, 0, id="nothing placed"),
        pytest.param(Strategy.BALANCED, [(0, 10_000)], {}, 1000, id="a tenth of both"),
        pytest.param(
            Strategy.BALANCED, [(0, 60_000)], {}, 687, id="far apart on one PF: (4 / 2 + 7 / 2) / 8"
        ),
        pytest.param(
            Strategy.BALANCED, [(0, 60_000)], {0: Used(5, 0)}, 1000, id="bandwidth where VFs are gone"
        ),
    ],
)
def test_score_is_computed_by_the_strategy(
    strategy: Strategy, placed: list[tuple[int, int]], used: dict[int, Used], expected: int
) -> None:
    there = {pci(at): taken for at, taken in used.items()}
    assert score(_on(*placed), FOUR, there, strategy) == expected


def test_balanced_counts_no_gap_on_a_pf_without_bandwidth() -> None:
    assert score(_on((0, 0)), inventory((None, 2)), {}, Strategy.BALANCED) == WHOLE


CLAIMS_PFS = st.lists(
    st.tuples(st.sampled_from([None, 50, 400]), st.integers(1, 8), st.integers(0, 400)),
    min_size=1,
    max_size=3,
)


@given(REQUESTS, nodes(), CLAIMS_PFS, st.sampled_from(Strategy))
def test_pfs_for_claims_change_neither_decision_nor_score(
    request: Request,
    situation: Situation,
    claims_pfs: list[tuple[int | None, int, int]],
    strategy: Strategy,
) -> None:
    alone, used = situation
    beside, both_used = [], dict(used)
    for at, (mbps, vfs, reserved) in enumerate(claims_pfs, start=10):
        pf = Pf(name=f"enp{at}", pci=pci(at), capacity_vfs=0, link_mbps=mbps, pools={CLAIMS_POOL: vfs})
        beside.append(pf)
        both_used[pf.pci] = Used(0, reserved)
    both = Inventory.of_node(NODE, (*beside, *alone.pfs))
    found = place(request, both, both_used, strategy=strategy)
    assert found == place(request, alone, used, strategy=strategy)
    if isinstance(found, Placement):
        assert score(found, both, both_used, strategy) == score(found, alone, used, strategy)
