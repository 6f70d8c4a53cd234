"""Agent and device plugin each look at the hardware in their own way, and put the same devices into pools."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.recorded_machine import RecordedMachine, read_machine
from k8s_rdma.core.devices.pools import FunctionKind, FunctionSelector, Pool, PoolPf, in_pools
from k8s_rdma.core.devices.rdma_devices import DeviceInventory
from k8s_rdma.core.pf_selection import Selection
from k8s_rdma.core.types import LinkType
from k8s_rdma.deviceplugin.modes import PoolMembers
from k8s_rdma.linux.discovery.observation import Observer
from k8s_rdma.linux.rdma.character_devices import DeviceNodes
from k8s_rdma.linux.rdma.observation import RdmaObserver

MACHINES = sorted((Path(__file__).parent.parent / "machines").glob("*.yaml"))
RESOURCE = "tencent.com/rdma"


def of_agent(machine, pools):
    hardware = in_pools(Observer(machine.sysfs, machine.queries, Selection()).observe(), pools)
    return {(vf.rdma_device, vf.pci, vf.pool) for pf in hardware.pfs for vf in pf.vfs if vf.rdma_device}


def of_plugin(machine, pools, pfs):
    look = RdmaObserver(machine.sysfs, machine.queries, DeviceNodes(Path("/nonexistent"))).scan()
    seen = DeviceInventory(devices={name: here.device for name, here in look.present.items()})
    members = PoolMembers(pools)
    pool_of = {name: pool.resource for pool in pools for name in members.members(pool.resource, seen)}
    return {
        (name, device.pci, pool_of.get(name, ""))
        for name, device in seen.devices.items()
        if device.vf is not None and device.pf in pfs
    }


def selectors(hardware):
    """Yield each kind of selector, for the machine's devices."""
    yield from (FunctionSelector(functions=which) for which in FunctionKind)
    yield from (FunctionSelector(link_types=frozenset({each})) for each in LinkType)
    for pf in hardware.pfs:
        yield from (FunctionSelector(pfs=(PoolPf(pf=name),)) for name in (pf.name, pf.pci))
        yield FunctionSelector(pfs=(PoolPf(pf=pf.name, vfs=frozenset({0, 2})),))
        yield FunctionSelector(pcis=frozenset(vf.pci for vf in pf.vfs[1:]))
        yield FunctionSelector(drivers=frozenset({pf.driver}))
        yield from (
            FunctionSelector(vendors=frozenset({each})) for each in (pf.vendor, pf.vendor.partition(":")[0])
        )


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.stem)
def test_agent_and_device_plugin_agree_on_which_vf_is_in_which_pool(path):
    machine = RecordedMachine(read_machine(path))
    hardware = Observer(machine.sysfs, machine.queries, Selection()).observe()
    pfs = {pf.pci for pf in hardware.pfs}
    for selector in selectors(hardware):
        pools = (Pool(resource=RESOURCE, selector=selector),)
        assert of_plugin(machine, pools, pfs) == of_agent(machine, pools), selector
