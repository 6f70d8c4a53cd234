"""Inventories and usages together: the same in whatever order, and however many at once."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.core.inventory import Gpu, Inventory
from k8s_rdma.core.pf_use import DeviceUse, Used
from k8s_rdma.core.types import NodeName, PciAddress

rates = st.lists(st.sampled_from([0, 1, 5, 700]), max_size=4).map(
    lambda each: tuple(sorted(each, reverse=True))
)


@st.composite
def usages(draw: st.DrawFn) -> Used:
    """Of a PF whose rates are weights: every reservation is told one by one."""
    plain = draw(rates)
    devices = tuple(
        DeviceUse(resource, max(len(mins), draw(st.integers(1, 5))), mins, draw(st.integers(0, len(mins))))
        for resource in ("a", "b")
        if (mins := draw(rates))
    )
    every = [rate for mins in (plain, *(use.mins for use in devices)) for rate in mins if rate]
    return Used(len(plain), sum(every), tuple(sorted(every, reverse=True)), devices)


@given(st.lists(usages(), min_size=1, max_size=5), st.randoms())
def test_usages_together_are_the_same_in_any_order(some: list[Used], random) -> None:
    shuffled = random.sample(some, len(some))
    assert Used.joined(some) == Used.joined(shuffled)
    assert sum(Used.joined(some).mins) == Used.joined(some).mbps


@given(usages(), usages())
def test_two_usages_together_are_their_sum(one: Used, other: Used) -> None:
    assert one + other == Used.joined([one, other])
    assert one + Used() == one


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
