"""An independent answer to "does it fit", and instances that are hard to answer for.

The oracle does not know of rates in order, bounds or best fit: it forms every subset of the interfaces
that one PF can take, and joins subsets PF by PF. Good for some ten interfaces.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from k8s_rdma.core.inventory import Inventory, Pf
from k8s_rdma.core.packing import Room
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.core.types import NodeName, PciAddress

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

NODE = NodeName("w1")


def fits(rates: Sequence[int], rooms: Sequence[Room]) -> bool:
    """Whether the rates can be divided over the rooms."""
    everything = (1 << len(rates)) - 1
    covered = {0}
    for room in rooms:
        subsets = [mask for mask in range(everything + 1) if _holds(room, mask, rates)]
        covered = {done | mask for done in covered for mask in subsets if not done & mask}
        covered = _maximal(covered)
    return everything in covered


def _holds(room: Room, mask: int, rates: Sequence[int]) -> bool:
    taken = [rate for at, rate in enumerate(rates) if mask >> at & 1]
    return len(taken) <= room.vfs and sum(taken) <= room.mbps


def _maximal(masks: set[int]) -> set[int]:
    """Without those that miss a single interface which another one has: whoever covers more is as good."""
    longest = max(masks).bit_length()
    return {
        mask
        for mask in masks
        if not any(not mask >> at & 1 and mask | 1 << at in masks for at in range(longest))
    }


def request(*rates: int) -> Request:
    return Request(tuple(InterfaceRequest(min_tx_rate_mbps=rate) for rate in rates))


def pci(index: int) -> PciAddress:
    return PciAddress(f"0000:{index:02x}:00.0")


def inventory(*pfs: tuple[int | None, int]) -> Inventory:
    """PFs given as (Mb/s, VFs), in the order of their PCI addresses."""
    return Inventory(
        node=NODE,
        pfs=tuple(
            Pf(name=f"enp{index}s0", pci=pci(index), capacity_vfs=vfs, link_mbps=mbps)
            for index, (mbps, vfs) in enumerate(pfs)
        ),
    )


def cut(rng: random.Random, whole: int, pieces: int) -> list[int]:
    """Cut a whole number at random points into that many positive pieces."""
    points = [0, *sorted(rng.sample(range(1, whole), pieces - 1)), whole]
    return [high - low for low, high in pairwise(points)]


@st.composite
def near_misses(
    draw: st.DrawFn, *, most_rates: int = 10, most_rooms: int = 4
) -> tuple[list[int], list[Room]]:
    """Rates and rooms such that it is close: rooms cut into rates, of which a few then change a little."""
    scale = draw(st.sampled_from((1, 1, 3, 1000, 7919)))
    rooms: list[Room] = []
    rates: list[int] = []
    for _ in range(draw(st.integers(1, most_rooms))):
        pieces = draw(st.lists(st.integers(1, 40), min_size=0, max_size=5))[: most_rates - len(rates)]
        spare = draw(st.sampled_from((0, 0, 0, 1, 2, 9)))
        rooms.append(Room(scale * (sum(pieces) + spare), len(pieces) + draw(st.sampled_from((0, 0, 0, 1)))))
        rates += [scale * piece for piece in pieces]
    for at in draw(st.lists(st.integers(0, 9), max_size=3)):
        if at < len(rates):
            rates[at] = max(0, rates[at] + draw(st.sampled_from((-1, 1, 1, 2))))
    return draw(st.permutations(rates)), rooms


def anything(*, most_rates: int = 10, most_rooms: int = 4) -> st.SearchStrategy[tuple[list[int], list[Room]]]:
    """Rates and rooms without any relation but their size."""
    return st.tuples(
        st.lists(st.integers(0, 25), max_size=most_rates),
        st.lists(st.builds(Room, st.integers(0, 60), st.integers(0, 5)), min_size=1, max_size=most_rooms),
    )


@st.composite
def alike(draw: st.DrawFn, *, most_rates: int = 10) -> tuple[list[int], list[Room]]:
    """Few distinct rates and rooms, each several times; the rooms together hold a little more."""
    sizes = draw(st.lists(st.integers(2, 30), min_size=1, max_size=3))
    rates = draw(st.lists(st.sampled_from(sizes), min_size=2, max_size=most_rates))
    small, large = draw(st.integers(1, 3)), draw(st.integers(0, 1))
    spare = draw(st.integers(0, 8))
    whole = (sum(rates) + spare) // (2 * small + 3 * large)
    vfs = draw(st.integers(len(rates) // (small + large), len(rates)))
    return rates, [Room(2 * whole, max(1, vfs))] * small + [Room(3 * whole, max(1, vfs))] * large


INSTANCES = near_misses() | anything() | alike()
