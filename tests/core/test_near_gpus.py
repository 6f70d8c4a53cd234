"""Interfaces near GPUs: every choice of kubelet's is tried, and every other assignment of PFs to GPUs."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from core.gpu_machines import HGX, LINK_MBPS, NEAR, NVIDIA, asking, gpu, keeps, machine, pf
from fakes.recorded_machine import RecordedMachine, read_machine
from k8s_rdma.core.devices.gpu_demand import gpus_requested
from k8s_rdma.core.devices.near_gpus import Nearness, nearness
from k8s_rdma.core.inventory import Gpu, Inventory
from k8s_rdma.core.pf_use import NOTHING_USED, Used
from k8s_rdma.core.placement import Placement, Rejection, fits, place, score, usage_of
from k8s_rdma.core.request import InterfaceRequest, Request, Topology
from k8s_rdma.core.types import NodeName, PciAddress
from k8s_rdma.errors import Reason
from k8s_rdma.linux.gpus import Gpus
from k8s_rdma.linux.sysfs import PciFunction

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MELLANOX = 0x15B3
MACHINES = {
    "8 GPUs, 8 NICs, 8 switches": HGX,
    "8 GPUs, 8 NICs, 4 switches": machine(8, 8, switches=4),
    "8 GPUs, 4 NICs, 4 switches": machine(8, 4, switches=4),
    "8 GPUs, 2 NICs, 2 switches": machine(8, 2, switches=2),
    "4 GPUs, 4 NICs, 2 switches": machine(4, 4, switches=2),
}


def recorded(file: str) -> Inventory:
    """A machine of `tests/linux/gpus`: its GPUs by PCI address, and its ConnectX cards as PFs."""
    sysfs = RecordedMachine(read_machine(Path(__file__).parents[1] / "linux" / "gpus" / file)).sysfs
    functions = [PciAddress(name) for name in sysfs.names("bus/pci/devices")]
    vendors = {pci: sysfs.number(f"bus/pci/devices/{pci}/vendor") for pci in functions}
    cards = [pci for pci in functions if vendors[pci] == MELLANOX]
    places = [PciFunction(sysfs, pci) for pci in cards]
    gpus = Gpus(sysfs).by_device([(NVIDIA, pci) for pci in functions if vendors[pci] != MELLANOX])
    pfs = (
        replace(pf(0, numa=its.numa_node() or 0, path=its.pcie_path()), pci=pci)
        for pci, its in zip(cards, places, strict=True)
    )
    return Inventory(node=NodeName("w1"), pfs=tuple(pfs), gpus=tuple(gpus.values()))


def choices(inventory: Inventory, count: int) -> Iterator[tuple[Gpu, ...]]:
    yield from combinations([each for each in inventory.gpus if not each.in_use], count)


@pytest.mark.parametrize("topology", Topology)
@pytest.mark.parametrize("name", MACHINES)
def test_every_choice_of_kubelet_has_its_interfaces_near(name: str, topology: Topology):
    inventory = MACHINES[name]
    for gpus in range(1, len(inventory.gpus) + 1):
        for number in (1, gpus, 2 * gpus):
            request = asking(number, gpus, topology)
            placement = place(request, inventory, {})
            assert isinstance(placement, Placement)
            assert fits(placement.interfaces, inventory, {})
            assert placement.request() == replace(request, devices=(), topology=Topology.PREFER)
            for chosen in choices(inventory, gpus):
                keeps(placement, request, inventory, chosen)


def test_rails_of_a_recorded_machine_are_right_for_every_choice_of_kubelet():
    """By NVIDIA's table of DGX H100: the bus of each GPU's own card."""
    dgx = recorded("dgx-h100.yaml")
    own = {"1b": "18", "43": "40", "52": "4f", "61": "5e", "9d": "9a", "c3": "c0", "d1": "ce", "df": "dc"}
    assert len(dgx.gpus) == len(dgx.pfs) == 8
    for gpus in range(1, 9):
        request = asking(gpus, gpus, mbps=LINK_MBPS)
        placement = place(request, dgx, {})
        assert isinstance(placement, Placement)
        for chosen in choices(dgx, gpus):
            kept = keeps(placement, request, dgx, chosen)
            assert [placed.pf[5:7] for placed in kept.interfaces] == [own[each.pci[5:7]] for each in chosen]


@pytest.mark.parametrize("gpus", range(1, 9))
def test_whole_links_are_reserved_for_any_gpus_and_by_no_choice_twice(gpus: int):
    request = asking(gpus, gpus, mbps=LINK_MBPS)
    placement = place(request, HGX, {})
    assert isinstance(placement, Placement)
    assert {pci: used.vfs for pci, used in usage_of(placement.interfaces, HGX).items()} == {
        each.pci: 1 for each in HGX.pfs
    }
    for chosen in choices(HGX, gpus):
        kept = keeps(placement, request, HGX, chosen)
        assert len({placed.pf for placed in kept.interfaces}) == gpus


def test_other_interfaces_fit_beside_any_gpus_that_the_pod_gets():
    plain = InterfaceRequest(min_tx_rate_mbps=LINK_MBPS // 2)
    near = InterfaceRequest(min_tx_rate_mbps=LINK_MBPS // 2, options=NEAR)
    interfaces = (plain, near, plain, near)
    request = Request(interfaces, devices=((NVIDIA, 2),), topology=Topology.SAME_PCIE_SWITCH)
    inventory = machine(4, 4, switches=4)
    placement = place(request, inventory, {})
    assert isinstance(placement, Placement)
    assert placement.request() == Request(interfaces)
    for chosen in choices(inventory, 2):
        kept = keeps(placement, request, inventory, chosen)
        assert fits(kept.interfaces, inventory, {})
    refused = place(replace(request, interfaces=(plain, near) * 4), inventory, {})
    assert isinstance(refused, Rejection)


@pytest.mark.parametrize(
    ("inventory", "used", "gpus", "reason", "says"),
    [
        (replace(HGX, gpus=()), {}, 2, Reason.NO_SUCH_PF, "is not known"),
        (replace(HGX, pfs=HGX.pfs[:7]), {}, 1, Reason.NO_SUCH_PF, "a GPU has no PF that near"),
        (HGX, {HGX.pfs[3].pci: Used(vfs=1, mbps=1)}, 1, Reason.INSUFFICIENT, "too little free"),
        (machine(8, 4, switches=4), {}, 2, Reason.EXCEEDS_CAPACITY, "too little room even when empty"),
    ],
)
def test_node_that_cannot_promise_it_is_refused_with_its_reason(
    inventory: Inventory, used: Mapping[PciAddress, Used], gpus: int, reason: Reason, says: str
):
    refused = place(asking(gpus, gpus, mbps=LINK_MBPS), inventory, used)
    assert isinstance(refused, Rejection)
    assert refused.reason is reason
    assert says in refused.message
    anywhere = place(asking(gpus, gpus, Topology.PREFER, mbps=LINK_MBPS // 2), inventory, used)
    assert isinstance(anywhere, Placement)


def test_preference_is_scored_and_falls_back():
    request = asking(1, 1, Topology.PREFER, mbps=LINK_MBPS)
    half = tuple(each for each in HGX.pfs if each.numa_node == 0)
    apart = replace(HGX, gpus=tuple(replace(each, pcie_path=()) for each in HGX.gpus))
    scores, levels = [], []
    for inventory in (HGX, apart, replace(HGX, pfs=half)):
        placement = place(request, inventory, {})
        assert isinstance(placement, Placement)
        levels.append(placement.nearness)
        scores.append(score(placement, inventory, {}))
    assert levels == [Nearness.SWITCH, Nearness.NUMA, Nearness.ANYWHERE]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == 3


def test_no_pf_has_more_gpus_than_it_must():
    placement = place(asking(4, 4), inventory := machine(4, 4, switches=1), {})
    assert isinstance(placement, Placement)
    assert sorted(placed.pf for placed in placement.interfaces) == [each.pci for each in inventory.pfs]


def test_gpu_gives_way_to_one_that_has_no_other_pf():
    top = "0000:00:01.0"
    inventory = Inventory(
        node=NodeName("w1"),
        pfs=(pf(0, numa=0, path=[top, "0000:01:00.0"], vfs=1), pf(1, numa=0, path=["0000:00:02.0"], vfs=1)),
        gpus=(
            gpu(0, numa=0, path=[top, "0000:01:00.0"]),
            replace(gpu(1, numa=1, path=[top])),
        ),
    )
    placement = place(asking(2, 2, Topology.SAME_NUMA), inventory, {})
    assert isinstance(placement, Placement)
    kept = keeps(placement, asking(2, 2, Topology.SAME_NUMA), inventory, inventory.gpus)
    assert [placed.pf for placed in kept.interfaces] == [each.pci for each in reversed(inventory.pfs)]


def test_nearest_of_the_pfs_below_one_root_port_is_preferred():
    top, own = "0000:00:01.0", "0000:01:00.0"
    inventory = Inventory(
        node=NodeName("w1"),
        pfs=(pf(0, numa=0, path=[top]), pf(1, numa=0, path=[top, own])),
        gpus=(gpu(0, numa=0, path=[top, own]),),
    )
    placement = place(asking(1, 1), inventory, {})
    assert isinstance(placement, Placement)
    assert [placed.pf for placed in placement.interfaces] == [inventory.pfs[1].pci]


# Against every other assignment


def promised_by_any_assignment(
    request: Request, inventory: Inventory, free: Mapping[PciAddress, int]
) -> bool:
    """Whether some PF for each GPU keeps every choice of kubelet's, tried one by one."""
    count, number = gpus_requested(request.devices), len(request.interfaces)
    least = Nearness.SWITCH if request.topology is Topology.SAME_PCIE_SWITCH else Nearness.NUMA
    near = [[each for each in inventory.pfs if nearness(each, its) >= least] for its in inventory.gpus]
    for assigned in product(*near):
        of = dict(zip([each.pci for each in inventory.gpus], assigned, strict=True))
        for chosen in combinations(inventory.gpus, count):
            load: dict[PciAddress, int] = {}
            for index in range(number):
                pci = of[chosen[index % count].pci].pci
                load[pci] = load.get(pci, 0) + 1
            if any(load[pci] > free[pci] for pci in load):
                break
        else:
            return True
    return False


@pytest.mark.parametrize("topology", [Topology.SAME_PCIE_SWITCH, Topology.SAME_NUMA])
@pytest.mark.parametrize("switches", [1, 2, 4])
def test_refused_request_fits_by_no_other_assignment(switches: int, topology: Topology):
    inventory = machine(4, 4, switches=switches)
    judged = {True: 0, False: 0}
    for vfs in product((0, 1, 2), repeat=4):
        free = dict(zip([each.pci for each in inventory.pfs], vfs, strict=True))
        used = {each.pci: Used(vfs=each.capacity_vfs - free[each.pci]) for each in inventory.pfs}
        for gpus, number in ((1, 1), (1, 2), (2, 2), (3, 3), (4, 4), (2, 4), (4, 2)):
            request = asking(number, gpus, topology)
            found = place(request, inventory, used)
            possible = promised_by_any_assignment(request, inventory, free)
            assert isinstance(found, Placement) == possible, (vfs, gpus, number)
            judged[possible] += 1
            if isinstance(found, Placement):
                assert fits(found.interfaces, inventory, used)
                for chosen in choices(inventory, gpus):
                    kept = keeps(found, request, inventory, chosen)
                    for pci, taken in usage_of(kept.interfaces, inventory).items():
                        assert taken.vfs + used.get(pci, NOTHING_USED).vfs <= 8
    assert all(judged.values())
