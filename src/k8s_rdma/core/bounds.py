"""Proofs that a demand fits no arrangement, from the cheapest to the dearest.

Each is sound: it speaks only when there is no packing. None is complete.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from k8s_rdma.core.rooms import Room

if TYPE_CHECKING:
    from collections.abc import Sequence

    from k8s_rdma.core.rooms import Demand, Work

MAX_BITS = 1 << 21
"""Longest bit set made: sums up to 2 Tb/s in units of 1 Mb/s. Larger numbers go without that proof."""


def surely_too_much(demand: Demand, rooms: Sequence[Room], work: Work) -> bool:
    """Whether counting alone excludes a packing: sums, places for large rates, VFs against bandwidth."""
    if demand.total > sum(room.mbps for room in rooms):
        return True
    if len(demand.descending) > sum(room.vfs for room in rooms):
        return True
    return _too_few_places(demand, rooms, work) or _too_few_vfs_where_bandwidth_is(demand, rooms)


def _too_few_places(demand: Demand, rooms: Sequence[Room], work: Work) -> bool:
    """Report whether for some rate more interfaces are that large than the rooms have places of that size.

    Dual feasible functions for sizes just over a half, a third and so on are cases of this.
    """
    needed = 0
    for size, count in zip(demand.sizes, demand.counts, strict=True):
        work.spend(1 + len(rooms) // 4)
        needed += count
        if needed > places(size, rooms):
            return True
    return False


def places(size: int, rooms: Sequence[Room]) -> int:
    """How many interfaces of this rate the rooms take."""
    return sum(min(room.vfs, room.mbps // size) for room in rooms)


def _too_few_vfs_where_bandwidth_is(demand: Demand, rooms: Sequence[Room]) -> bool:
    """Report whether the rooms richest in bandwidth per VF cannot take enough even of the largest rates.

    Let them take as many of the largest as they have VFs: the remainder must fit into the others.
    """
    vfs = 0
    elsewhere = sum(room.mbps for room in rooms)
    for room in sorted(rooms, key=lambda room: room.mbps / room.vfs, reverse=True):
        vfs = min(vfs + room.vfs, len(demand.descending))
        elsewhere -= room.mbps
        if demand.total - demand.largest[vfs] > elsewhere:
            return True
    return False


def attainable(demand: Demand, rooms: Sequence[Room], work: Work) -> list[Room] | None:
    """The rooms, each lowered to the largest sum of rates that fits it; None when these are too small.

    A bit set (bit n: some of the rates add up to n) grows from the largest rate down, and at every
    rate the sums reached must have room for all so far. Rooms too long for a bit set stay as they are.
    """
    longest = max(room.mbps for room in rooms)
    if longest > MAX_BITS:
        return list(rooms)
    mask = (2 << longest) - 1
    alike = Counter(room.mbps for room in rooms)
    sums, needed = 1, 0
    for size, count in zip(demand.sizes, demand.counts, strict=True):
        sums = add_copies(sums, size, count, mask, work)
        work.spend(len(alike) * (1 + (longest >> 15)))
        needed += size * count
        if needed > sum(rooms_alike * _top(sums, mbps) for mbps, rooms_alike in alike.items()):
            return None
    return [Room(_top(sums, room.mbps), room.vfs) for room in rooms]


def add_copies(sums: int, size: int, count: int, mask: int, work: Work) -> int:
    """The bit set `sums` with up to `count` copies of `size` added, cut off at `mask`.

    Copies are added in portions 1, 2, 4, ... and the remainder, which reach every number of copies.
    """
    cost = 1 + (mask.bit_length() >> 13)
    portion = 1
    while count > 0:
        work.spend(cost)
        portion = min(portion, count)
        sums |= (sums << size * portion) & mask
        count -= portion
        portion *= 2
    return sums


def _top(sums: int, limit: int) -> int:
    """The largest sum in the bit set that is at most `limit`."""
    return (sums & ((2 << limit) - 1)).bit_length() - 1
