"""A node's PFs as a pod meets them that holds exclusive devices: the most that may come to each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.devices.placement import misasked, possible
from k8s_rdma.core.inventory import NOTHING_USED
from k8s_rdma.core.offers import room_of
from k8s_rdma.core.programming import objection, reserved
from k8s_rdma.core.request import unmet
from k8s_rdma.wire.explain import PfLook

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from k8s_rdma.core.inventory import Pf
    from k8s_rdma.core.request import InterfaceRequest, Request
    from k8s_rdma.extender.cluster.state import Situation


def look_at_pfs_of_devices(
    request: Request, situation: Situation, devices: Sequence[tuple[str, int]]
) -> tuple[PfLook, ...]:
    """Each PF. devices: what of the request's devices are VFs of the node."""
    asked_wrongly = misasked(request, devices)
    wanted: dict[str, list[InterfaceRequest]] = {}
    if not asked_wrongly:
        for each in possible(request, situation.inventory, devices):
            wanted.setdefault(each.pf.pci, []).append(each.wanted)
    return tuple(
        _look(pf, [name for name, _ in devices], wanted.get(pf.pci, []), situation)
        for pf in situation.inventory.pfs
    )


def _look(
    pf: Pf, resources: Sequence[str], wanted: Sequence[InterfaceRequest], situation: Situation
) -> PfLook:
    room = room_of(pf, situation.used.get(pf.pci, NOTHING_USED))
    devices = sum(pf.pools.get(resource, 0) for resource in resources)
    worst = sorted((reserved(pf, each.min_tx_rate_mbps) for each in wanted), reverse=True)[:devices]
    return PfLook(
        name=pf.name,
        pci=pf.pci,
        link_mbps=pf.link_mbps,
        unreserved_mbps=room.mbps,
        vfs=pf.capacity_vfs,
        free_vfs=room.vfs,
        numa_node=pf.numa_node,
        placed=len(worst),
        placed_mbps=sum(worst),
        room_for=_room_for(worst, room.mbps),
        objections=tuple(_objections(pf, wanted, sum(worst), room.mbps)),
        devices=devices,
    )


def _room_for(worst: Sequence[int], left: int) -> int:
    """How many of them fit on this PF, the largest first, as kubelet may choose."""
    for at, mbps in enumerate(worst):
        left -= mbps
        if left < 0:
            return at
    return len(worst)


def _objections(pf: Pf, wanted: Sequence[InterfaceRequest], worst_mbps: int, left_mbps: int) -> Iterator[str]:
    yield from list(
        dict.fromkeys(filter(None, (unmet(pf, each.needs) or objection(pf, each) for each in wanted)))
    )[:1]
    if worst_mbps and pf.link_mbps is None:
        yield "its link speed is not known (link down?), so that nothing can be reserved"
    elif worst_mbps > left_mbps:
        yield f"{left_mbps} Mb/s unreserved, and kubelet may choose devices here for {worst_mbps}"
