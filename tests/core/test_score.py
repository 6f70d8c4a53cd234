from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.core.inventory import Used
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.score import MAX_SCORE, score
from packing_oracle import NODE, inventory, pci

FOUR = inventory(*[(100_000, 10)] * 4)


def _on(*placed: tuple[int, int]) -> Placement:
    """A placement given as (PF, Mb/s)."""
    return Placement(
        node=NODE,
        interfaces=tuple(PlacedInterface(pf=pci(at), min_tx_rate_mbps=mbps) for at, mbps in placed),
    )


USED = st.lists(st.builds(Used, st.integers(0, 12), st.integers(0, 120_000)), min_size=4, max_size=4)
PLACED = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50_000)), max_size=6)


@given(PLACED, USED)
def test_score_is_a_whole_number_from_0_to_10_whatever_is_used(
    placed: list[tuple[int, int]], used: list[Used]
) -> None:
    found = score(_on(*placed), FOUR, {pci(at): there for at, there in enumerate(used)})
    assert isinstance(found, int)
    assert 0 <= found <= MAX_SCORE


@given(PLACED, USED, st.integers(0, 3), st.builds(Used, st.integers(0, 4), st.integers(0, 30_000)))
def test_score_never_falls_when_more_is_used(
    placed: list[tuple[int, int]], used: list[Used], at: int, more: Used
) -> None:
    before = {pci(index): there for index, there in enumerate(used)}
    after = {**before, pci(at): before[pci(at)] + more}
    assert score(_on(*placed), FOUR, after) >= score(_on(*placed), FOUR, before)


@pytest.mark.parametrize(
    ("placed", "used", "expected"),
    [
        pytest.param([], {}, 0, id="nothing placed"),
        pytest.param([(0, 1_000)], {}, 0, id="a little on an empty node"),
        pytest.param([(0, 100_000)], {}, 6, id="a whole PF of four: (1 + 1/4) / 2"),
        pytest.param([(0, 50_000), (1, 50_000)], {}, 3, id="half of two PFs: (1/2 + 1/4) / 2"),
        pytest.param([(0, 10_000)], {0: Used(1, 90_000)}, 6, id="finishes off a PF: (1 + 1/4) / 2"),
        pytest.param([(1, 10_000)], {0: Used(1, 90_000)}, 1, id="breaks into another: (1/10 + 1/4) / 2"),
        pytest.param([(0, 0)], {0: Used(9, 0)}, 6, id="VFs run out first: (1 + 1/4) / 2"),
        pytest.param([(0, 1)], dict.fromkeys(range(4), Used(10, 0)), 10, id="full node"),
    ],
)
def test_score_is_the_mean_of_the_pfs_fullness_and_the_nodes(
    placed: list[tuple[int, int]], used: dict[int, Used], expected: int
) -> None:
    assert score(_on(*placed), FOUR, {pci(at): there for at, there in used.items()}) == expected


def test_score_counts_vfs_only_when_the_link_is_unknown() -> None:
    assert score(_on((0, 0)), inventory((None, 2)), {pci(0): Used(1, 0)}) == MAX_SCORE
