"""GPUs that kubelet may give a pod, and the interfaces that come to their PFs then."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from core.gpu_machines import HGX, LINK_MBPS, asking, keeps, machine
from k8s_rdma.core.pf_use import Used
from k8s_rdma.core.placement import Placement, Rejection, narrow_to_gpus, place, usage_of


def test_gpus_that_pods_have_are_no_choice_and_their_nics_need_no_room():
    gpus = tuple(replace(each, in_use=index < 6) for index, each in enumerate(HGX.gpus))
    inventory = replace(HGX, gpus=gpus)
    full = {each.pci: Used(vfs=1, mbps=LINK_MBPS) for each in HGX.pfs[:6]}
    request = asking(2, 2, mbps=LINK_MBPS)
    placement = place(request, inventory, full)
    assert isinstance(placement, Placement)
    keeps(placement, request, inventory, gpus[6:])
    refused = place(asking(3, 3, mbps=LINK_MBPS), inventory, full)
    assert isinstance(refused, Rejection)
    assert narrow_to_gpus(placement, request, inventory, gpus[:2]) is None


def test_devices_that_are_parts_of_gpus_may_all_be_of_one():
    inventory = machine(2, 2, switches=2, devices=4)
    request = asking(4, 4, mbps=LINK_MBPS // 4)
    placement = place(request, inventory, {})
    assert isinstance(placement, Placement)
    assert {used.vfs for used in usage_of(placement.interfaces, inventory).values()} == {4}
    for count in (1, 2):
        for chosen in combinations(inventory.gpus, count):
            keeps(placement, request, inventory, chosen)
    assert isinstance(place(asking(4, 4, mbps=LINK_MBPS // 2), inventory, {}), Rejection)
