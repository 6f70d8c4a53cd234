"""GPUs that a pod requests, and the interfaces that may come to a PF by kubelet's choice of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from k8s_rdma.core.inventory import Gpu, Inventory, Pf
    from k8s_rdma.core.request import Request

GPU_RESOURCES = ("nvidia.com/", "amd.com/", "gpu.intel.com/")
"""The beginning of the names of extended resources that are GPUs."""

MAX_PLACES = 256
"""The largest number of interfaces that are reserved for a pod's interfaces near GPUs."""


def is_gpu(resource: str) -> bool:
    """Report whether an extended resource counts GPUs."""
    return resource.startswith(GPU_RESOURCES)


def gpus_requested(devices: Sequence[tuple[str, int]]) -> int:
    """Count the GPUs among the devices of a pod's containers, by resource and number."""
    return sum(number for resource, number in devices if is_gpu(resource))


def candidates(request: Request, inventory: Inventory) -> tuple[Gpu, ...]:
    """Return the GPUs that kubelet may give the pod: those of its resources that no other pod has.

    If fewer are free than the pod requests, return all of these resources, because the node's report is out
    of date.
    """
    resources = {resource for resource, _ in request.devices if is_gpu(resource)}
    gpus = tuple(gpu for gpu in inventory.gpus if gpu.resource in resources)
    free = tuple(gpu for gpu in gpus if not gpu.in_use or gpu.devices > 1)
    return free if sum(gpu.devices for gpu in free) >= gpus_requested(request.devices) else gpus


class GpuDemand:
    """The interfaces near GPUs of a request: how many may come to the GPUs of one PF.

    interfaces: their number.
    requested: the number of GPUs, any of `candidates`.
    gpus: the candidates that may come to have an interface, in the order of PCI addresses.
    """

    def __init__(self, interfaces: int, requested: int, candidates: Sequence[Gpu]) -> None:
        self._interfaces = interfaces
        # Devices that are parts of GPUs may all be of one, and never are of more GPUs than there are.
        largest = min(requested, len(candidates))
        least = largest if all(gpu.devices == 1 for gpu in candidates) else min(1, largest)
        self._chosen = range(max(1, least), largest + 1)
        # # With more GPUs than interfaces, the pod's last GPUs have no interface.
        ordered = sorted(candidates, key=lambda gpu: gpu.pci)
        self.gpus = ordered[: interfaces + len(candidates) - least]

    def largest(self, gpus: int) -> int:
        """Return the most interfaces that belong to so many of the GPUs together, by any choice."""
        return max((self._interfaces_of(gpus, chosen) for chosen in self._chosen), default=0)

    def _interfaces_of(self, gpus: int, chosen: int) -> int:
        share, remainder = divmod(self._interfaces, chosen)
        return min(gpus, chosen) * share + min(gpus, remainder)


def entries_by_pf(pfs: Sequence[Pf], entries: Sequence[int], demand: GpuDemand) -> Iterator[tuple[Pf, int]]:
    """List each PF with the entries for which it reserves room, as many as may come to it.

    pfs: the PF of each GPU, as `assign` chose.
    entries: those of the interfaces, which are equal; each is listed at least once.
    """
    position = 0
    for pf, gpus in Counter(pfs).items():
        for _ in range(demand.largest(gpus)):
            yield pf, entries[position % len(entries)]
            position += 1


def of_gpus(request: Request, inventory: Inventory, gpus: Sequence[Gpu]) -> tuple[Request, Inventory]:
    """Return the request and the node as they are after kubelet gave the pod these GPUs."""
    numbers = Counter(gpu.resource for gpu in gpus)
    devices = tuple((resource, number) for resource, number in request.devices if not is_gpu(resource))
    free = tuple(replace(gpu, in_use=False, devices=1) for gpu in gpus)
    return replace(request, devices=(*devices, *numbers.items())), replace(inventory, gpus=free)
