"""Hard instances: 60 interfaces, and others that users may write. All are decided within the budget."""

from __future__ import annotations

import random

import pytest

from k8s_rdma.core.placement import Placement, place
from k8s_rdma.errors import Reason
from packing_oracle import cut, inventory, request

EIGHT = [(100_000, 120)] * 8


def _reason(rates: list[int], pfs: list[tuple[int, int]]) -> Reason | None:
    found = place(request(*rates), inventory(*pfs), {})
    return None if isinstance(found, Placement) else found.reason


@pytest.mark.parametrize(
    ("number", "expected"), [(58, None), (59, Reason.EXCEEDS_CAPACITY), (60, Reason.EXCEEDS_CAPACITY)]
)
def test_place_decides_when_equal_interfaces_fill_two_pfs(number: int, expected: Reason | None) -> None:
    assert _reason([3_334] * number, [(100_000, 120)] * 2) is expected


@pytest.mark.parametrize(
    ("number", "expected"), [(58, None), (59, Reason.EXCEEDS_CAPACITY), (60, Reason.EXCEEDS_CAPACITY)]
)
def test_place_decides_when_almost_equal_interfaces_fill_two_pfs(
    number: int, expected: Reason | None
) -> None:
    assert _reason([3_334 + at % 7 for at in range(number)], [(100_000, 120)] * 2) is expected


@pytest.mark.parametrize(("extra", "expected"), [(0, None), (1, Reason.EXCEEDS_CAPACITY)])
@pytest.mark.parametrize("parts", [2, 3, 4])
def test_place_decides_when_sizes_are_just_over_a_fraction(
    parts: int, extra: int, expected: Reason | None
) -> None:
    large = [100_000 // parts + 1 + at for at in range(8 * (parts - 1) + extra)]
    assert _reason(large + [101 + at for at in range(60 - len(large))], EIGHT) is expected


@pytest.mark.parametrize(("extra", "expected"), [(0, None), (1, Reason.EXCEEDS_CAPACITY)])
def test_place_decides_when_halves_and_thirds_are_mixed(extra: int, expected: Reason | None) -> None:
    rates = [50_001 + at for at in range(4)] + [33_334 + at for at in range(4 + 8 + extra)]
    assert _reason(rates + [500 + at for at in range(60 - len(rates))], EIGHT) is expected


@pytest.mark.parametrize("seed", range(8))
def test_place_finds_it_when_sixty_pieces_fill_eight_pfs_exactly(seed: int) -> None:
    rng = random.Random(seed)
    rates = [piece for at in range(8) for piece in cut(rng, 100_000, 8 if at < 4 else 7)]
    assert len(rates) == 60
    rng.shuffle(rates)
    assert _reason(rates, EIGHT) is None


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("permille", [990, 995, 999])
def test_place_finds_it_when_random_sizes_load_eight_pfs_almost_fully(seed: int, permille: int) -> None:
    rng = random.Random(seed)
    drawn = [rng.randrange(1_000, 50_000) for _ in range(60)]
    rates = [rate * 800 * permille // sum(drawn) for rate in drawn]
    assert _reason(rates, EIGHT) is None


@pytest.mark.parametrize(("spare", "expected"), [(0, None), (-1, Reason.EXCEEDS_CAPACITY)])
def test_place_decides_when_vfs_bind_and_bandwidth_does_not(spare: int, expected: Reason | None) -> None:
    rates = [3_000 + 37 * at for at in range(60)]
    pfs = [(100_000, 3), (90_000, 3), (80_000, 4), (70_000, 10), (60_000, 10), (50_000, 10), (95_000, 10)]
    assert _reason(rates, [*pfs, (100_000, 10 + spare)]) is expected


def test_place_decides_when_few_rates_leave_a_gap_on_every_pf() -> None:
    """Two Mb/s a PF more than needed in total, but no PF can be filled that well."""
    rates = [27_000] * 20 + [17_001] * 20 + [11_003] * 20
    assert _reason(rates, [(sum(rates) // 16 + 2, 120)] * 16) is Reason.EXCEEDS_CAPACITY


def test_place_reports_undecided_when_only_trying_all_would_decide() -> None:
    rng = random.Random(1)
    rates = [piece for at in range(16) for piece in cut(rng, 100_000, 4 if at < 12 else 3)]
    assert _reason(rates, [(100_000, 120)] * 16) is Reason.UNDECIDED


def test_place_answers_when_sizes_pfs_and_links_are_beyond_any_hardware() -> None:
    rng = random.Random(1)
    rates = [rng.randrange(2**31, 2**32) for _ in range(600)]
    found = _reason(rates, [(sum(rates) // 40 + 2**20, 20)] * 40)
    assert found in {None, Reason.UNDECIDED}
