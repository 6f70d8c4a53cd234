"""The health of RDMA devices as the kernel's events tell of it. They are of software (rdma_rxe), on a VF."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import TYPE_CHECKING, Any

import pytest

from contract.hardware_lab import needs_hardware
from contract.lab import home_of
from contract.linux_lab import run
from hardware.test_kernel_rdma import soft_device
from k8s_rdma.config.devices import DevicePluginConfig
from k8s_rdma.core.devices.rdma_devices import NetnsMode, RdmaDevice
from k8s_rdma.core.step import VfRef
from k8s_rdma.deviceplugin.device_monitor import DeviceMonitor
from k8s_rdma.linux.discovery.netlink_queries import NetlinkQueries
from k8s_rdma.linux.netlink.socket import NetlinkError
from network_namespaces import create_namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path


pytestmark = needs_hardware

NAME = "rxe_health"
DEADLINE_S = 120
"""VFs take seconds to get a carrier."""


@pytest.fixture
def netdev(lab) -> Iterator[str]:
    """Of a VF at home, set up."""
    name = home_of(lab, VfRef(lab.pcis[1], 0)).name
    run("ip", "link", "set", name, "up")
    try:
        yield name
    finally:
        run("ip", "link", "set", name, "down")


def scenario(tmp_path: Path, play: Callable[[DeviceMonitor], Coroutine[Any, Any, None]]) -> None:
    async def in_time() -> None:
        config = DevicePluginConfig(run_dir=str(tmp_path), rescan_s=0)
        async with asyncio.timeout(DEADLINE_S), DeviceMonitor(config) as looking:
            await play(looking)

    asyncio.run(in_time())


async def until(looking: DeviceMonitor, holds: Callable[[RdmaDevice], bool]) -> RdmaDevice:
    seen = looking.inventory
    while NAME not in seen.devices or not holds(seen.devices[NAME]):
        seen = await looking.wait_for_change(seen)
    return seen.devices[NAME]


def move_to(namespace: int) -> None:
    with NetlinkQueries() as queries:
        rdma = queries.rdma()
        if rdma is None or rdma.netns_mode() is not NetnsMode.EXCLUSIVE:
            pytest.skip("needs SR-IOV hardware: RDMA devices exclusive (rdma system set netns exclusive)")
        try:
            rdma.move(rdma.indexes()[NAME], namespace, "move")
        except NetlinkError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            pytest.skip("needs SR-IOV hardware: RDMA devices that their driver can move")


def test_device_of_a_vf_has_its_pf_and_the_nodes_that_the_kernel_made(lab, netdev, tmp_path) -> None:
    async def play(looking: DeviceMonitor) -> None:
        with soft_device(netdev, name=NAME):
            device = await until(looking, lambda device: not device.faults)
            assert (device.netdev, device.pf, device.vf) == (netdev, lab.pcis[1], 0)
            assert {node.kind.value for node in device.nodes} >= {"uverbs"}

    scenario(tmp_path, play)


def test_device_is_ill_while_its_link_is_down_and_when_it_is_gone(netdev, tmp_path) -> None:
    async def play(looking: DeviceMonitor) -> None:
        with soft_device(netdev, name=NAME):
            await until(looking, lambda device: not device.faults)
            run("ip", "link", "set", netdev, "down")
            device = await until(looking, lambda device: bool(device.faults))
            assert f"netdev {netdev} is set down" in device.faults
            run("ip", "link", "set", netdev, "up")
            await until(looking, lambda device: not device.faults)
        await until(looking, lambda device: "it is gone" in device.faults)

    scenario(tmp_path, play)


def test_device_that_moved_to_another_namespace_is_seen_there_and_back(netdev, tmp_path) -> None:
    async def play(looking: DeviceMonitor) -> None:
        with soft_device(netdev, name=NAME):
            await until(looking, lambda device: not device.faults)
            namespace = create_namespace()
            try:
                move_to(namespace)
                device = await until(looking, lambda device: not device.at_home)
                assert (device.faults, bool(device.nodes)) == ((), True)
            finally:
                os.close(namespace)
            await until(looking, lambda device: device.at_home and not device.faults)

    scenario(tmp_path, play)
