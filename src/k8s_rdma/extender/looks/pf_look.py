"""A node's PFs as one pod meets them: what is free of each, what would go there, and what is against it."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from k8s_rdma.core.devices.placement import devices_on
from k8s_rdma.core.inventory import NOTHING_USED
from k8s_rdma.core.offers import room_of
from k8s_rdma.core.programming import enforcers, objection, reserved
from k8s_rdma.core.request import class_of, unmet
from k8s_rdma.extender.looks.device_look import look_at_pfs_of_devices
from k8s_rdma.wire.explain import PfLook

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from k8s_rdma.core.inventory import Pf
    from k8s_rdma.core.placement import PlacedInterface
    from k8s_rdma.core.request import InterfaceClass, Request
    from k8s_rdma.core.rooms import Room
    from k8s_rdma.extender.cluster.state import Situation

_MOST = 3
_LOOKED_AT = 64
"""Kinds of interfaces, as in `core.refusal`: whoever writes the annotation decides how many there are."""


def look_at_pfs(
    request: Request, situation: Situation, placed: Sequence[PlacedInterface] = ()
) -> tuple[PfLook, ...]:
    """Each PF. placed: where the pod's interfaces would go, none when they do not fit."""
    devices = devices_on(request, situation.inventory)
    if devices:
        return look_at_pfs_of_devices(request, situation, devices)
    kinds = [class_of(each) for each in request.interfaces]
    return tuple(_look(pf, kinds, situation, placed) for pf in situation.inventory.pfs)


def _look(
    pf: Pf, kinds: Sequence[InterfaceClass], situation: Situation, placed: Sequence[PlacedInterface]
) -> PfLook:
    room = room_of(pf, situation.used.get(pf.pci, NOTHING_USED))
    here = [each.wanted() for each in placed if each.pf == pf.pci]
    taken = [kind for kind in kinds if not _against(pf, kind)]
    return PfLook(
        name=pf.name,
        pci=pf.pci,
        link_mbps=pf.link_mbps,
        unreserved_mbps=room.mbps,
        vfs=pf.capacity_vfs,
        free_vfs=room.vfs,
        numa_node=pf.numa_node,
        placed=len(here),
        placed_mbps=sum(reserved(pf, each.min_tx_rate_mbps) for each in here),
        room_for=_room_for(pf, taken, room),
        objections=tuple(_objections(pf, kinds, room)),
        min_by=_but_hardware(enforcers(pf, each).min for each in here if each.min_tx_rate_mbps),
        max_by=_but_hardware(enforcers(pf, each).max for each in here if each.max_tx_rate_mbps),
    )


def _but_hardware(holders: Iterable[str]) -> tuple[str, ...]:
    distinct = tuple(sorted(set(holders)))
    return () if distinct == ("hardware",) else distinct


def _against(pf: Pf, kind: InterfaceClass) -> str:
    return unmet(pf, kind.needs) or objection(pf, kind)


def _room_for(pf: Pf, kinds: Sequence[InterfaceClass], room: Room) -> int:
    """How many of the interfaces fit on this PF, the smallest first."""
    left, count = room.mbps, 0
    for cost in islice(sorted(reserved(pf, kind.min_tx_rate_mbps) for kind in kinds), room.vfs):
        left -= cost
        if left < 0:
            break
        count += 1
    return count


def _objections(pf: Pf, kinds: Sequence[InterfaceClass], room: Room) -> Iterator[str]:
    distinct = list(islice(dict.fromkeys(kinds), _LOOKED_AT))
    yield from islice(dict.fromkeys(filter(None, (_against(pf, kind) for kind in distinct))), _MOST)
    taken = [reserved(pf, kind.min_tx_rate_mbps) for kind in distinct if not _against(pf, kind)]
    if not taken:
        return
    if not room.vfs:
        yield "no VF is free"
    if pf.link_mbps is None and max(taken):
        yield "its link speed is not known (link down?), so that nothing can be reserved"
    elif room.vfs and min(taken) > room.mbps:
        yield f"{room.mbps} Mb/s unreserved, and the smallest interface needs {min(taken)}"
    elif room.vfs and max(taken) > room.mbps:
        yield f"{room.mbps} Mb/s unreserved, and the largest interface needs {max(taken)}"
