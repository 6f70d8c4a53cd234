"""Room for more pods if running ones reserved other rates than they do."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.planning.whatif import Difference, shape_room

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from k8s_rdma.core.placement import PlacedInterface
    from k8s_rdma.core.types import NodeName, PciAddress, PodUid
    from k8s_rdma.planning.planned_cluster import PlannedCluster, Workload


class ResizedInterface(NamedTuple):
    """An interface that a pod holds on a PF, with its reservation and another one, in Mb/s."""

    uid: PodUid
    node: NodeName
    pci: PciAddress
    reserved_mbps: int
    min_tx_rate_mbps: int


def room_after(
    planned: PlannedCluster, resized: Iterable[ResizedInterface], shapes: Sequence[Workload]
) -> tuple[Difference, ...]:
    """Count pods of each shape that fit now, and with other reservations; each shape by itself.

    Interfaces that the cluster does not have are ignored.
    """
    changed = planned.copy()
    by_pod: dict[tuple[PodUid, NodeName], list[ResizedInterface]] = defaultdict(list)
    for interface in resized:
        by_pod[interface.uid, interface.node].append(interface)
    for (uid, name), interfaces in by_pod.items():
        if name in changed.cluster and uid in changed.cluster.node(name).pods:
            placement = changed.release(uid, name)
            placed = tuple(_resized(placement.interfaces, interfaces))
            changed.restore(uid, replace(placement, interfaces=placed))
    return tuple(
        Difference(
            shape=shape.name, now=shape_room(planned, shape).pods, then=shape_room(changed, shape).pods
        )
        for shape in shapes
    )


def _resized(
    placed: Iterable[PlacedInterface], interfaces: Iterable[ResizedInterface]
) -> Iterable[PlacedInterface]:
    """Give each interface the rate of one on its PF with its reservation; others keep theirs."""
    rates: Mapping[tuple[PciAddress, int], list[int]] = defaultdict(list)
    for interface in interfaces:
        rates[interface.pci, interface.reserved_mbps].append(interface.min_tx_rate_mbps)
    for holding in placed:
        available = rates[holding.pf, holding.min_tx_rate_mbps]
        yield replace(holding, min_tx_rate_mbps=available.pop()) if available else holding
