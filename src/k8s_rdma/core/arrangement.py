"""A PF for each of a request's interfaces, where PFs differ in their rooms alone: exact packing."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from k8s_rdma.core.packing import best_fit, pack
from k8s_rdma.core.rooms import Demand, Room, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from k8s_rdma.core.packing import Packing
    from k8s_rdma.core.rooms import Work


def arrange(rates: Sequence[int], rooms: Sequence[Room], work: Work) -> list[int] | Verdict:
    """A room's index for each rate; rates fall. OutOfWorkError on the way."""
    if len(rates) > sum([room.vfs for room in rooms]) or sum(rates) > sum([room.mbps for room in rooms]):
        return Verdict.IMPOSSIBLE
    work.spend(len(rates) * len(rooms) // 8)
    chosen = best_fit(rates, rooms)
    if chosen is not None:
        return chosen
    demand = Demand.of(rates)
    if not demand.sizes:
        return Verdict.IMPOSSIBLE
    packing = pack(demand, rooms, work)
    return packing if isinstance(packing, Verdict) else _dealt(rates, packing, rooms)


def _dealt(rates: Sequence[int], packing: Packing, rooms: Sequence[Room]) -> list[int]:
    """A packing as a room's index for each rate; what reserves nothing takes the VFs that are left."""
    homes: dict[int, deque[int]] = {}
    left = list(rooms)
    for at, fill in enumerate(packing):
        for rate, number in fill.items():
            homes.setdefault(rate, deque()).extend([at] * number)
            left[at] = Room(left[at].mbps - rate * number, left[at].vfs - number)
    free = best_fit([rate for rate in rates if not rate], left)
    homes[0] = deque(free or ())
    return [homes[rate].popleft() for rate in rates]
