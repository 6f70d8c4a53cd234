"""Which devices are best for a container: those that are near each other, and near to its GPUs."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from heapq import nlargest
from itertools import accumulate, combinations, islice, takewhile
from math import comb
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from k8s_rdma.core.devices.device_plugin_api import Neighbour

MOST_PAIRS = 100_000
"""Pairs of PFs in all combinations that are compared, some 100 ms; of more, one that is good is taken."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a device is. pf: of which it is a function; all of unknown place are in one."""

    pf: str = ""
    numa_node: int | None = None
    pcie_path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A device. last: whether it is to be taken only when no other is left."""

    id: str
    place: Place = Place()
    last: bool = False


def preferred(
    candidates: Sequence[Candidate], must: Sequence[str], size: int, beside: Sequence[Neighbour] = ()
) -> tuple[str, ...]:
    """The best `size` of them, with those that must be among them.

    Best is, each only among those that are equal by all before it: the fewest that are to be taken last; the
    fewest PFs; the fewest NUMA nodes; PFs below the same PCIe switches (the sum over pairs of them of how
    many bridges they share); devices near what they are to be beside (the sum over devices of how many
    bridges each shares with the nearest, one more on its NUMA node). Exact where that takes no more than
    `MOST_PAIRS`, such as 6 of 13 PFs; what is to be taken last, and the number of PFs, are always
    so. Of equals those with the first names, numbers in names being counted as numbers.
    """
    in_order = sorted({each.id: each for each in candidates}.values(), key=lambda each: natural(each.id))
    wanted = set(must)
    fixed = [each for each in in_order if each.id in wanted]
    others = [each for each in in_order if each.id not in wanted]
    first = [each for each in others if not each.last]
    if len(fixed) + len(first) < size:
        fixed, first = fixed + first, [each for each in others if each.last]
    chosen = fixed + _nearest(fixed, first, size - len(fixed), beside)
    return tuple(each.id for each in sorted(chosen, key=lambda each: natural(each.id)))


def natural(name: str) -> tuple[tuple[str, int], ...]:
    """A key that sorts `mlx5_2` before `mlx5_10`."""
    return tuple((text, int(digits or -1)) for text, digits in re.findall(r"(\D*)(\d*)", name))


def _nearest(
    fixed: Sequence[Candidate], free: Sequence[Candidate], count: int, beside: Sequence[Neighbour]
) -> list[Candidate]:
    """The best `count` of the free ones, beside those that are fixed."""
    by_place: dict[Place, list[Candidate]] = {each.place: [] for each in (*fixed, *free)}
    for each in free:
        by_place[each.place].append(each)
    pfs = [
        _Pf(place=place, free=len(of_it), nearness=_nearness(place, beside))
        for place, of_it in by_place.items()
    ]
    used = frozenset(each.place for each in fixed)
    chosen = _best_pfs(
        [pf for pf in pfs if pf.place in used], [pf for pf in pfs if pf.place not in used], count
    )
    found: list[Candidate] = []
    for pf in sorted(chosen, key=_distance):
        found += by_place[pf.place][: count - len(found)]
    return found


@dataclass(frozen=True, slots=True)
class _Pf:
    """A PF with devices to choose from. nearness: of each of them to what they are to be beside."""

    place: Place
    free: int
    nearness: int


def _nearness(place: Place, beside: Iterable[Neighbour]) -> int:
    return max(
        (
            _shared(place.pcie_path, each.pcie_path)
            + (place.numa_node is not None and place.numa_node == each.numa_node)
            for each in beside
        ),
        default=0,
    )


@lru_cache(maxsize=4096)
def _shared(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """How many bridges two paths have in common."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _free(pfs: Iterable[_Pf]) -> int:
    return sum(pf.free for pf in pfs)


def _best_pfs(used: Sequence[_Pf], others: Sequence[_Pf], count: int) -> list[_Pf]:
    """Those that are used anyway, and the best of the others, as few as have `count` free with these."""
    lacking = count - _free(used)
    fewest = _fewest(others, lacking)
    if fewest in (0, len(others)):
        return [*used, *others[:fewest]]
    if comb(len(others), fewest) * comb(len(used) + fewest, 2) > MOST_PAIRS:
        return [*used, *_good_pfs(used, others, fewest, lacking)]
    best = [[*used, *tried] for tried in combinations(others, fewest) if _free(tried) >= lacking]
    for measure in (_numa_nodes, _apart, _far(count)):
        least = min(map(measure, best))
        best = [each for each in best if measure(each) == least]
    return best[0]


def _fewest(pfs: Sequence[_Pf], lacking: int) -> int:
    """How many of them must be used to get so many devices."""
    largest_first = accumulate(sorted((pf.free for pf in pfs), reverse=True), initial=0)
    return next(number for number, free in enumerate(largest_first) if free >= lacking)


def _numa_nodes(pfs: Sequence[_Pf]) -> int:
    return len({pf.place.numa_node for pf in pfs})


def _apart(pfs: Sequence[_Pf]) -> int:
    return -sum(_shared(one.place.pcie_path, other.place.pcie_path) for one, other in combinations(pfs, 2))


def _far(count: int) -> Callable[[Sequence[_Pf]], int]:
    """How far `count` devices are from what they are to be beside, the nearest being taken."""

    def far(pfs: Sequence[_Pf]) -> int:
        nearest_first = (pf for pf in sorted(pfs, key=_distance) for _ in range(min(pf.free, count)))
        return sum(map(_distance, islice(nearest_first, count)))

    return far


def _distance(pf: _Pf) -> int:
    return -pf.nearness


def _good_pfs(used: Sequence[_Pf], others: Sequence[_Pf], fewest: int, lacking: int) -> list[_Pf]:
    """Good ones, where there are too many to compare them all: beside one PF, or as many NUMA nodes need."""
    anchor = used[0] if used else max(others, key=lambda pf: (pf.nearness, pf.free))
    numa_nodes = {pf.place.numa_node for pf in used or [anchor]}
    liked = sorted(
        others,
        key=lambda pf: (
            pf.place.numa_node not in numa_nodes,
            -_shared(anchor.place.pcie_path, pf.place.pcie_path),
            -pf.nearness,
            -pf.free,
        ),
    )

    def chosen(large: int) -> list[_Pf]:
        """The most liked but some, and the largest of the rest in their place."""
        kept = fewest - large
        return liked[:kept] + nlargest(large, liked[kept:], key=lambda pf: pf.free)

    # The more of the largest, the more devices.
    return chosen(bisect_left(range(fewest + 1), lacking, key=lambda large: _free(chosen(large))))
