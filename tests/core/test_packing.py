"""Each part of the packing by itself: `place` asks most of them only when those before have failed."""

from __future__ import annotations

import random

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from k8s_rdma.core.packing import (
    Demand,
    NoPacking,
    OutOfWorkError,
    Room,
    Search,
    Work,
    attainable,
    balanced_fit,
    best_fit,
    pack,
    surely_too_much,
)
from packing_oracle import INSTANCES, alike, cut, fits, near_misses

_Instance = tuple[list[int], list[Room]]
PLENTY = 10_000_000


def _usable(instance: _Instance) -> tuple[Demand, list[Room]]:
    """As `pack` hands it to its parts: something to place, and rooms that can take something."""
    rates, rooms = instance
    demand = Demand.from_rates(rates)
    useful = [room for room in rooms if room.vfs and demand.sizes and room.mbps >= demand.sizes[-1]]
    assume(useful)
    return demand, useful


def _assert_packs(packing: list[dict[int, int]], demand: Demand, rooms: list[Room]) -> None:
    placed: dict[int, int] = {}
    for fill, room in zip(packing, rooms, strict=True):
        assert sum(rate * number for rate, number in fill.items()) <= room.mbps
        assert sum(fill.values()) <= room.vfs
        for rate, number in fill.items():
            placed[rate] = placed.get(rate, 0) + number
    assert placed == dict(zip(demand.sizes, demand.counts, strict=True))


@settings(max_examples=500)
@given(INSTANCES)
@example(([5, 5], [Room(9, 9)] * 3))  # every room wastes as much as a left-over rate allows
def test_search_finds_a_packing_exactly_when_there_is_one(instance: _Instance) -> None:
    demand, rooms = _usable(instance)
    packing = Search(demand, rooms).run(Work(PLENTY))
    assert (packing is not None) == fits(demand.descending, rooms)
    if packing is not None:
        _assert_packs(packing, demand, rooms)


@given(INSTANCES, st.integers(1, 60))
def test_search_remembers_truly_when_it_is_interrupted_again_and_again(
    instance: _Instance, portion: int
) -> None:
    demand, rooms = _usable(instance)
    search = Search(demand, rooms)
    packing: list[dict[int, int]] | None = None
    for doublings in range(32):
        try:
            packing = search.run(Work(portion << doublings))
            break
        except OutOfWorkError:
            continue
    assert (packing is not None) == fits(demand.descending, rooms)


@given(near_misses() | alike())
def test_proofs_are_silent_when_a_packing_exists(instance: _Instance) -> None:
    demand, rooms = _usable(instance)
    assume(fits(demand.descending, rooms))
    assert not surely_too_much(demand, rooms, Work(PLENTY))
    lowered = attainable(demand, rooms, Work(PLENTY))
    assert lowered is not None
    assert fits(demand.descending, lowered)


@given(st.integers(0, 2**32), st.integers(2, 8), st.integers(10, 40))
def test_proofs_are_silent_when_many_rates_were_cut_from_full_rooms(seed: int, pfs: int, number: int) -> None:
    rng = random.Random(seed)
    rooms, rates = [], []
    for _ in range(pfs):
        pieces = cut(rng, rng.randrange(100, 100_000), max(2, number // pfs))
        rooms.append(Room(sum(pieces), len(pieces)))
        rates += pieces
    demand = Demand.from_rates(rates)
    assert not surely_too_much(demand, rooms, Work(PLENTY))
    assert attainable(demand, rooms, Work(PLENTY)) is not None


@pytest.mark.parametrize(
    ("rates", "rooms"),
    [
        pytest.param([60, 60], [Room(100, 9)], id="sum"),
        pytest.param([1, 1, 1], [Room(100, 2)], id="vfs"),
        pytest.param([51] * 3 + [1], [Room(100, 9), Room(100, 9)], id="just over a half"),
        pytest.param([34] * 5, [Room(100, 9), Room(100, 9)], id="just over a third"),
        pytest.param([30, 30, 30, 1, 1], [Room(200, 2), Room(31, 9)], id="bandwidth where VFs are few"),
    ],
)
def test_counting_alone_excludes_it_when_it_is_plain(rates: list[int], rooms: list[Room]) -> None:
    assert surely_too_much(Demand.from_rates(rates), rooms, Work(PLENTY))


def test_attainable_lowers_a_room_to_the_largest_sum_that_fits() -> None:
    assert attainable(Demand.from_rates([30, 20]), [Room(49, 3), Room(60, 3)], Work(PLENTY)) == [
        Room(30, 3),
        Room(50, 3),
    ]


def test_attainable_is_none_when_large_rates_leave_gaps() -> None:
    demand = Demand.from_rates([40, 40, 40, 15])
    rooms = [Room(70, 9), Room(70, 9)]
    assert attainable(demand, rooms, Work(PLENTY)) is None


@pytest.mark.parametrize(
    ("rates", "rooms"),
    [
        pytest.param([4, 4, 3, 3, 3, 3], [Room(10, 9)] * 2, id="two rates"),
        pytest.param(
            [4, 4, 3, 3, 3, 3, 3], [Room(10, 9), Room(3, 1), Room(10, 9)], id="a room of the smallest"
        ),
        pytest.param([50, 20, 20], [Room(60, 2), Room(100, 1)], id="scarce VFs"),
    ],
)
def test_pack_finds_it_when_best_fit_does_not(rates: list[int], rooms: list[Room]) -> None:
    demand = Demand.from_rates(rates)
    assert best_fit(demand.descending, rooms) is None
    packing = pack(demand, rooms, Work(PLENTY))
    assert not isinstance(packing, NoPacking)
    _assert_packs(packing, demand, rooms)


@given(INSTANCES)
def test_greedy_fits_are_valid_when_they_answer(instance: _Instance) -> None:
    demand, rooms = _usable(instance)
    for greedy in (best_fit, balanced_fit):
        chosen = greedy(demand.descending, rooms)
        if chosen is not None:
            packing: list[dict[int, int]] = [{} for _ in rooms]
            for rate, at in zip(demand.descending, chosen, strict=True):
                packing[at][rate] = packing[at].get(rate, 0) + 1
            _assert_packs(packing, demand, rooms)


@given(st.integers(1, 50), st.integers(1, 12), INSTANCES)
def test_best_fit_is_exact_when_all_rates_are_equal(rate: int, number: int, instance: _Instance) -> None:
    _, rooms = instance
    takes = sum(min(room.vfs, room.mbps // rate) for room in rooms)
    assert (best_fit([rate] * number, rooms) is not None) == (number <= takes)


def test_balanced_fit_succeeds_although_best_fit_fails_when_vfs_are_scarce() -> None:
    rates, rooms = [50, 20, 20], [Room(60, 2), Room(100, 1)]
    assert best_fit(rates, rooms) is None
    assert balanced_fit(rates, rooms) is not None


def test_pack_is_undecided_when_it_has_no_work_to_spend() -> None:
    assert pack(Demand.from_rates([6, 5, 4, 3]), [Room(9, 9), Room(9, 9)], Work(0)) is NoPacking.UNDECIDED


def test_work_returns_the_unspent_part_of_a_share() -> None:
    work = Work(100)
    with work.share(40) as part:
        assert work.remaining == 60
        part.spend(15)
    assert work.remaining == 85
