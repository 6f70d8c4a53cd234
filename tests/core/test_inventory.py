"""Inventories and usages together: the same in whatever order, and however many at once."""

from __future__ import annotations

from dataclasses import replace

from k8s_rdma.core.inventory import Gpu, Inventory
from k8s_rdma.core.types import NodeName, PciAddress


def test_inventories_are_equal_when_their_gpus_are_in_any_order() -> None:
    first, second, third = (
        Gpu(resource=resource, pci=PciAddress(f"0000:{bus}:00.0"), pcie_path=())
        for resource, bus in (("amd.com/gpu", "43"), ("nvidia.com/gpu", "1b"), ("nvidia.com/gpu", "43"))
    )
    inventory = Inventory(node=NodeName("w1"), pfs=(), gpus=(third, first, second))
    assert inventory.gpus == (first, second, third)
    assert inventory == replace(inventory, gpus=(second, third, first))
    assert inventory != replace(inventory, gpus=(first, second, replace(third, in_use=True)))
    assert inventory != replace(inventory, gpus=())
