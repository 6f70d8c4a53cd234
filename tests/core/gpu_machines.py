"""Machines with GPUs and PFs, and requests for interfaces near the GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.devices.near_gpus import Nearness, nearness
from k8s_rdma.core.inventory import Gpu, Inventory, Pf
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.placement import Placement, narrow_to_gpus, usage_of
from k8s_rdma.core.request import InterfaceRequest, Request, Topology
from k8s_rdma.core.types import Accelerator, NodeName, PciAddress

if TYPE_CHECKING:
    from collections.abc import Sequence

NVIDIA = "nvidia.com/gpu"
NEAR = InterfaceOptions(near=Accelerator.GPU)
LINK_MBPS = 400_000


def pf(number: int, *, numa: int, path: Sequence[str], vfs: int = 8) -> Pf:
    return Pf(
        name=f"p{number}",
        pci=PciAddress(f"0000:{0x10 + number:02x}:00.0"),
        capacity_vfs=vfs,
        link_mbps=LINK_MBPS,
        numa_node=numa,
        pcie_path=tuple(map(PciAddress, path)),
    )


def gpu(number: int, *, numa: int, path: Sequence[str], in_use: bool = False, devices: int = 1) -> Gpu:
    return Gpu(
        resource=NVIDIA,
        pci=PciAddress(f"0000:{0x80 + number:02x}:00.0"),
        pcie_path=tuple(map(PciAddress, path)),
        numa_node=numa,
        in_use=in_use,
        devices=devices,
    )


def machine(gpus: int, pfs: int, *, switches: int, devices: int = 1) -> Inventory:
    """GPUs and PFs dealt to switches in turn; the first half of the switches is on NUMA node 0."""

    def place_of(index: int, count: int) -> tuple[int, list[str]]:
        switch = index * switches // count
        return 2 * switch // switches, [f"0000:{switch:02x}:01.0", f"0000:{switch:02x}:02.0"]

    return Inventory(
        node=NodeName("w1"),
        pfs=tuple(
            pf(index, numa=numa, path=path) for index in range(pfs) for numa, path in [place_of(index, pfs)]
        ),
        gpus=tuple(
            gpu(index, numa=numa, path=path, devices=devices)
            for index in range(gpus)
            for numa, path in [place_of(index, gpus)]
        ),
    )


HGX = machine(8, 8, switches=8)
"""Eight GPUs, each below a switch with a NIC of its own."""


def asking(number: int, gpus: int, topology: Topology = Topology.SAME_PCIE_SWITCH, mbps: int = 0) -> Request:
    interface = InterfaceRequest(min_tx_rate_mbps=mbps, options=NEAR)
    return Request((interface,) * number, devices=((NVIDIA, gpus),), topology=topology)


def keeps(placement: Placement, request: Request, inventory: Inventory, gpus: Sequence[Gpu]) -> Placement:
    """The rest of a placement when kubelet has chosen; every property of it holds."""
    kept = narrow_to_gpus(placement, request, inventory, gpus)
    assert kept is not None
    assert len(kept.interfaces) == len(request.interfaces)
    promised, taken = usage_of(placement.interfaces, inventory), usage_of(kept.interfaces, inventory)
    for pci, used in taken.items():
        assert used.vfs <= promised[pci].vfs
        assert used.mbps <= promised[pci].mbps
    ordered, number = sorted(gpus, key=lambda each: each.pci), 0
    for wanted, placed in zip(request.interfaces, kept.interfaces, strict=True):
        assert placed.as_request() == wanted
        if wanted.needs.near_gpu:
            its_pf = inventory.pf(placed.pf)
            assert its_pf is not None
            near = nearness(its_pf, ordered[number % len(ordered)])
            least = {Topology.SAME_PCIE_SWITCH: Nearness.SWITCH, Topology.SAME_NUMA: Nearness.NUMA}
            assert near >= least.get(request.topology, Nearness.ANYWHERE)
            number += 1
    return kept
