"""PFs near a pod's GPUs, for every choice of GPUs that kubelet may make.

kubelet chooses the GPUs after the pod was bound. So a PF is chosen for every GPU that kubelet may give, and
room is reserved on each PF for as many interfaces as may come to it by any choice (`gpu_demand`). CNI
ADD knows the GPUs and keeps the room that their interfaces need.

The interface `n` of a pod with `k` GPUs belongs to its GPU `n` modulo `k`, in the order of PCI addresses. For
example, each interface has its own GPU if there are as many interfaces as GPUs.
"""

from __future__ import annotations

from enum import IntEnum, unique
from itertools import takewhile
from typing import TYPE_CHECKING

from k8s_rdma.core.request import InterfaceRequest, Topology

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from k8s_rdma.core.inventory import Gpu, Pf
    from k8s_rdma.core.types import PciAddress


@unique
class Nearness(IntEnum):
    """The nearness of a PF and a GPU."""

    ANYWHERE = 0
    NUMA = 1
    SWITCH = 2


ACCEPTED: Mapping[Topology, tuple[Nearness, ...]] = {
    Topology.SAME_PCIE_SWITCH: (Nearness.SWITCH,),
    Topology.SAME_NUMA: (Nearness.SWITCH, Nearness.NUMA),
    Topology.PREFER: (Nearness.SWITCH, Nearness.NUMA, Nearness.ANYWHERE),
}
"""The degrees of nearness that satisfy a topology, the best first."""


def nearness(pf: Pf, gpu: Gpu) -> Nearness:
    """Return the nearness of a PF and a GPU: below one switch, they share the path from a root port."""
    if _shared_bridges(pf, gpu):
        return Nearness.SWITCH
    same_node = pf.numa_node is not None and pf.numa_node == gpu.numa_node
    return Nearness.NUMA if same_node else Nearness.ANYWHERE


def nearest(gpu: Gpu, pfs: Sequence[Pf]) -> Nearness:
    """Return the best nearness of any of the PFs to a GPU."""
    return max((nearness(pf, gpu) for pf in pfs), default=Nearness.ANYWHERE)


def assign(
    gpus: Sequence[Gpu], pfs: Sequence[Pf], least: Nearness, room: Callable[[Pf, int], bool]
) -> tuple[Pf, ...] | None:
    """Choose a PF for each GPU, at least so near and with room, if there is such a choice.

    Of several choices, take one in which no PF has more GPUs than it must, then one with near PFs.

    room: whether a PF can have the interfaces of so many GPUs.
    """
    preferences = [_preferred(gpu, pfs, least) for gpu in gpus]
    if not all(preferences):
        return None
    near = {pf.pci: pf for found in preferences for pf in found}
    limits = {pci: _limit(pf, len(gpus), room) for pci, pf in near.items()}
    for cap in range(1, len(gpus) + 1):
        if (
            chosen := _matched(preferences, {pci: min(cap, limit) for pci, limit in limits.items()})
        ) is not None:
            return chosen
    return None


def _preferred(gpu: Gpu, pfs: Sequence[Pf], least: Nearness) -> list[Pf]:
    """Return the PFs that are near enough, the nearest first."""
    near = [pf for pf in pfs if nearness(pf, gpu) >= least]
    return sorted(near, key=lambda pf: (-nearness(pf, gpu), -_shared_bridges(pf, gpu), pf.pci))


def _shared_bridges(pf: Pf, gpu: Gpu) -> int:
    return len([*takewhile(lambda pair: pair[0] == pair[1], zip(pf.pcie_path, gpu.pcie_path, strict=False))])


def _limit(pf: Pf, gpus: int, room: Callable[[Pf, int], bool]) -> int:
    """Return the largest number of GPUs whose interfaces the PF has room for."""
    return next((number for number in range(gpus, 0, -1) if room(pf, number)), 0)


def _matched(preferences: Sequence[Sequence[Pf]], limits: Mapping[PciAddress, int]) -> tuple[Pf, ...] | None:
    """Return a PF for each by augmenting paths; each PF has at most its limit."""
    chosen: dict[int, Pf] = {}

    def place(index: int, tried: set[PciAddress]) -> bool:
        for pf in preferences[index]:
            if pf.pci in tried:
                continue
            tried.add(pf.pci)
            placed = [gpu for gpu, its_pf in chosen.items() if its_pf.pci == pf.pci]
            if len(placed) < limits[pf.pci] or any(place(gpu, tried) for gpu in placed):
                chosen[index] = pf
                return True
        return False

    if not all(place(index, set()) for index in range(len(preferences))):
        return None
    return tuple(chosen[index] for index in range(len(preferences)))


def owners(interfaces: Sequence[InterfaceRequest], gpus: Sequence[Gpu]) -> dict[int, Gpu]:
    """Return the GPU of each interface near GPUs, by the interface's index; empty if the GPUs are unknown."""
    near = [index for index, interface in enumerate(interfaces) if interface.needs.near_gpu]
    ordered = sorted(gpus, key=lambda gpu: gpu.pci)
    return {index: ordered[number % len(ordered)] for number, index in enumerate(near)} if ordered else {}


def gpus_of(
    interfaces: Sequence[InterfaceRequest], entries: Iterable[int], gpus: Sequence[Gpu]
) -> tuple[Gpu, ...]:
    """Return the GPUs to which some of a pod's interfaces belong. interfaces, gpus: all of the pod's."""
    by_entry = owners(interfaces, gpus)
    return tuple(dict.fromkeys(by_entry[entry] for entry in entries if entry in by_entry))
