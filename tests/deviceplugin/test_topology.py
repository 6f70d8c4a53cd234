"""Which devices are preferred, against every way to choose them."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k8s_rdma.core.devices.pod_devices import Neighbour
from k8s_rdma.deviceplugin.topology import DeviceCandidate, DevicePlace, natural, preferred

PATHS = st.lists(st.sampled_from(["a", "b"]), max_size=3).map(tuple)
NUMA_NODES = st.sampled_from([None, 0, 0, 1, 1])
NEIGHBOURS = st.lists(st.builds(Neighbour, pcie_path=PATHS, numa_node=NUMA_NODES), max_size=3)
RARELY = st.integers(0, 9).map(lambda drawn: drawn == 9)


@st.composite
def pfs(draw, number):
    """A PF and its devices; most are alike in size, so that there are many sets of few to choose from."""
    place = DevicePlace(f"pf{number}", draw(NUMA_NODES), draw(PATHS))
    names = [f"mlx5_{number + 6 * index}" for index in range(draw(st.sampled_from([1, 1, 2, 2, 3])))]
    return [DeviceCandidate(id=name, place=place, last=draw(RARELY)) for name in names]


@st.composite
def questions(draw):
    candidates = [each for number in range(draw(st.integers(1, 5))) for each in draw(pfs(number))]
    ids = [each.id for each in candidates]
    must = draw(st.just([]) | st.lists(st.sampled_from(ids), max_size=2, unique=True))
    return candidates, must, draw(st.integers(len(must), len(candidates))), draw(NEIGHBOURS)


def shared(one, other):
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def cost(chosen, beside):
    """The smaller the better; said again in other words than the algorithm's."""
    places = {each.place for each in chosen}
    near = [
        max(
            (
                shared(each.place.pcie_path, other.pcie_path)
                + int(each.place.numa_node is not None and each.place.numa_node == other.numa_node)
                for other in beside
            ),
            default=0,
        )
        for each in chosen
    ]
    return (
        sum(each.last for each in chosen),
        len({place.pf for place in places}),
        len({place.numa_node for place in places}),
        -sum(shared(a.pcie_path, b.pcie_path) for a, b in combinations(places, 2)),
        -sum(near),
    )


@settings(max_examples=500)
@given(questions())
def test_preferred_is_as_good_as_the_best_of_all_ways_to_choose(question):
    candidates, must, size, beside = question
    chosen = preferred(candidates, must, size, beside)
    assert len(set(chosen)) == len(chosen) == size
    assert set(must) <= set(chosen) <= {each.id for each in candidates}
    by_id = {each.id: each for each in candidates}
    ways = (way for way in combinations(candidates, size) if set(must) <= {each.id for each in way})
    assert cost([by_id[each] for each in chosen], beside) == min(cost(way, beside) for way in ways)


@given(questions(), st.randoms(use_true_random=False))
def test_preferred_is_the_same_whatever_the_order(question, random):
    candidates, must, size, beside = question
    shuffled = random.sample(candidates, len(candidates))
    assert preferred(shuffled, must[::-1], size, beside) == preferred(candidates, must, size, beside)


@given(questions())
def test_preferred_takes_the_first_names_of_equal_devices(question):
    candidates, must, size, beside = question
    chosen = preferred(candidates, must, size, beside)
    by_id = {each.id: each for each in candidates}
    for each in set(chosen) - set(must):
        for other in set(by_id) - set(chosen):
            if (by_id[each].place, by_id[each].last) == (by_id[other].place, by_id[other].last):
                assert natural(each) < natural(other)


def many(pfs, each):
    return [
        DeviceCandidate(
            id=f"mlx5_{pf}_{number}",
            place=DevicePlace(f"pf{pf:03}", pf % 4, (f"root{pf % 8}", f"switch{pf % 16}")),
            last=number == 0,
        )
        for pf in range(pfs)
        for number in range(each)
    ]


@pytest.mark.parametrize("size", [1, 2, 7, 20, 199, 2000, 9000, 9999, 10_000])
@pytest.mark.parametrize(("pfs", "each"), [(10_000, 1), (100, 100), (2, 5000), (1, 10_000)])
def test_preferred_of_10_000_devices_is_of_the_right_size_and_on_few_pfs(pfs, each, size):
    candidates = many(pfs, each)
    chosen = preferred(candidates, [candidates[-1].id], size, [Neighbour(pcie_path=("root3", "switch3"))])
    assert len(set(chosen)) == len(chosen) == size
    assert candidates[-1].id in chosen
    used = {name.rpartition("_")[0] for name in chosen}
    if each > 1 and size <= pfs * (each - 1):
        assert not any(name.endswith("_0") for name in chosen)
        assert len(used) == -(-size // (each - 1))
    else:
        assert len(used) >= -(-size // each)


def test_preferred_of_too_many_pfs_to_compare_is_on_one_numa_node_beside_the_gpu():
    gpu = Neighbour(pcie_path=("root3", "switch11", "gpu"), numa_node=3)
    chosen = preferred(many(64, 3), [], 8, [gpu])
    assert {int(name.split("_")[1]) for name in chosen} == {11, 27, 43, 59}


def test_preferred_of_too_many_pfs_of_different_sizes_is_on_as_few_as_there_can_be():
    sizes = [1, 1, 2, 2, 3, 3, 4, 4] * 4
    candidates = [
        DeviceCandidate(id=f"d{pf}_{number}", place=DevicePlace(f"pf{pf}", pf % 2))
        for pf, size in enumerate(sizes)
        for number in range(size)
    ]
    chosen = preferred(candidates, [], 40)
    assert len(chosen) == 40
    assert len({name.partition("_")[0] for name in chosen}) == 11


def test_preferred_of_thousands_of_pfs_of_different_sizes_is_found_before_the_test_times_out():
    candidates = [
        DeviceCandidate(id=f"d{pf}_{number}", place=DevicePlace(f"pf{pf}", pf % 2))
        for pf in range(2857)
        for number in range(1 + pf % 6)
    ]
    chosen = preferred(candidates, [], 9000)
    assert len(set(chosen)) == 9000
    free = sorted((1 + pf % 6 for pf in range(2857)), reverse=True)
    fewest = next(number for number in range(2858) if sum(free[:number]) >= 9000)
    assert len({name.partition("_")[0] for name in chosen}) == fewest


def test_natural_counts_numbers_as_numbers():
    assert sorted(["mlx5_10", "mlx5_2", "rxe0", "mlx5_2v1"], key=natural) == [
        "mlx5_2",
        "mlx5_2v1",
        "mlx5_10",
        "rxe0",
    ]
