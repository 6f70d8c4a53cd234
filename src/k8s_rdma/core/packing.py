"""Packing a demand into rooms, exactly, within a budget of work.

This is vector bin packing in two dimensions, bandwidth and number: NP-hard, and users write the
instances. So the cheap and usual is tried first, proofs of impossibility come before the search,
and everything counts its work.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from k8s_rdma.core.bounds import attainable, surely_too_much
from k8s_rdma.core.rooms import Demand, OutOfWorkError, Room, Verdict, Work
from k8s_rdma.core.search import Search

if TYPE_CHECKING:
    from collections.abc import Sequence

Packing = list[dict[int, int]]
"""For each room the number of each rate."""


def pack(demand: Demand, rooms: Sequence[Room], work: Work) -> Packing | Verdict:
    """Put the demand into the rooms, or say why not; takes what it does off `work`.

    To be asked after `best_fit` has failed, which it does not repeat.
    """
    unit = demand.unit
    small = demand.in_units(unit)
    useful = [at for at, room in enumerate(rooms) if room.vfs > 0 and room.mbps >= demand.sizes[-1]]
    if not useful or len(demand.sizes) == 1:  # best fit is exact for one rate
        return Verdict.IMPOSSIBLE
    try:
        found = _pack(small, [Room(rooms[at].mbps // unit, rooms[at].vfs) for at in useful], work)
    except OutOfWorkError:
        return Verdict.UNDECIDED
    if found is None:
        return Verdict.IMPOSSIBLE
    packing: Packing = [{} for _ in rooms]
    for at, fill in zip(useful, found, strict=True):
        packing[at] = {size * unit: number for size, number in fill.items()}
    return packing


def _pack(demand: Demand, rooms: Sequence[Room], work: Work) -> Packing | None:
    """The steps in order; None when it is proved that there is no packing."""
    if surely_too_much(demand, rooms, work):
        return None
    work.spend(1 + len(demand.descending) * len(rooms) // 4)
    chosen = balanced_fit(demand.descending, rooms)
    if chosen is not None:
        return _grouped(demand.descending, chosen, len(rooms))
    try:
        with work.share(30) as some:
            lowered = attainable(demand, rooms, some)
    except OutOfWorkError:
        return Search(demand, rooms).run(work)
    if lowered is None or surely_too_much(demand, lowered, work):
        return None
    return Search(demand, lowered).run(work)


def _grouped(descending: Sequence[int], chosen: Sequence[int], rooms: int) -> Packing:
    """A room for each rate, as the number of each rate for each room."""
    packing: Packing = [{} for _ in range(rooms)]
    for rate, at in zip(descending, chosen, strict=True):
        packing[at][rate] = packing[at].get(rate, 0) + 1
    return packing


def best_fit(descending: Sequence[int], rooms: Sequence[Room]) -> list[int] | None:
    """Give each rate, largest first, to the room it leaves least bandwidth in; None when one fits nowhere.

    Returns the index of a room for each rate. Ties go to fewer free VFs, then to the earlier room.
    Rates of 0 go where bandwidth is scarcest: a VF there is of least use to others.
    """
    mbps = [room.mbps for room in rooms]
    vfs = [room.vfs for room in rooms]
    everywhere = range(len(rooms))
    chosen: list[int] = []
    for rate in descending:
        best, least = -1, inf
        for index in everywhere:
            free = mbps[index]
            if rate <= free <= least and vfs[index] and (free < least or vfs[index] < vfs[best]):
                best, least = index, free
        if best < 0:
            return None
        mbps[best] -= rate
        vfs[best] -= 1
        chosen.append(best)
    return chosen


def balanced_fit(descending: Sequence[int], rooms: Sequence[Room]) -> list[int] | None:
    """Give each rate, largest first, to the room with most bandwidth per free VF; None as `best_fit`.

    Finds packings where VFs are as scarce as bandwidth: it keeps both running out together.
    """
    mbps = [room.mbps for room in rooms]
    vfs = [room.vfs for room in rooms]
    per_vf = [room.mbps / room.vfs if room.vfs else -1.0 for room in rooms]
    everywhere = range(len(rooms))
    chosen: list[int] = []
    for rate in descending:
        best, most = -1, -1.0
        for index in everywhere:
            if per_vf[index] > most and mbps[index] >= rate:
                best, most = index, per_vf[index]
        if best < 0:
            return None
        mbps[best] -= rate
        vfs[best] -= 1
        per_vf[best] = mbps[best] / vfs[best] if vfs[best] else -1.0
        chosen.append(best)
    return chosen
