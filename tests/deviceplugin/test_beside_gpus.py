"""A pod with GPUs of one plugin and RDMA devices of ours, through kubelet's stand-in and its PodResources."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from deviceplugin.inventories import device, seen
from fakes.recorded_machine import RecordedMachine, read_machine
from k8s_rdma.config.devices import ExclusiveResource
from k8s_rdma.core.devices.pod_devices import OfferedDevice
from k8s_rdma.core.devices.rdma_devices import DeviceInventory
from k8s_rdma.core.types import PciAddress
from k8s_rdma.deviceplugin.modes import mode_of
from k8s_rdma.deviceplugin.plugin_server import PluginServer
from k8s_rdma.deviceplugin.resource import Resource
from k8s_rdma.deviceplugin.topology import Neighbours
from k8s_rdma.kube.pod_resources import KubeletPodResources
from k8s_rdma.linux.gpus import Gpus
from k8s_rdma.linux.sysfs import PciFunction, Sysfs
from k8s_rdma_demo.kubelet.device_manager import DeviceManagerConfig, running_device_manager
from k8s_rdma_demo.kubelet.pods import DeviceContainer, DevicePod
from plain_plugin import PlainPlugin

RECORDED = Path(__file__).parent.parent / "linux" / "gpus"
GPU, RDMA = "nvidia.com/gpu", "tencent.com/rdma"
NICS = {0: "0000:18:00.0", 1: "0000:40:00.0", 2: "0000:9a:00.0", 3: "0000:c0:00.0"}
GPUS = {
    "0000:1b:00.0": "GPU-1a2b3c4d-5e6f-7a8b-9c0d-1e2f3a4b5c6d",
    "0000:43:00.0": "GPU-2a2b3c4d-5e6f-7a8b-9c0d-2e2f3a4b5c6d",
    "0000:9d:00.0": "GPU-3a2b3c4d-5e6f-7a8b-9c0d-3e2f3a4b5c6d",
    "0000:c3:00.0": "GPU-4a2b3c4d-5e6f-7a8b-9c0d-4e2f3a4b5c6d",
}

pytestmark = pytest.mark.anyio


@dataclass
class Seen:
    """Devices that do not change."""

    inventory: DeviceInventory


def look(sysfs):
    """A VF of each NIC."""
    functions = {number: PciFunction(sysfs, PciAddress(pci)) for number, pci in NICS.items()}
    return seen(
        *(
            device(
                number,
                pf=it.pci,
                vf=0,
                numa_node=it.numa_node(),
                pcie_path=it.pcie_path(),
                pf_name=f"ib{number}",
            )
            for number, it in functions.items()
        )
    )


def pod(name, *limits):
    containers = (DeviceContainer(name=f"c{number}", limits=each) for number, each in enumerate(limits))
    return DevicePod(namespace="default", name=name, uid=f"uid-{name}", containers=tuple(containers))


@asynccontextmanager
async def node(tmp_path, gpu):
    """Kubelet with one GPU, and our plugin; a pod without devices is there already."""
    config = DeviceManagerConfig(plugin_dir=tmp_path, pod_resources=tmp_path / "pods.sock")
    machine = RecordedMachine(read_machine(RECORDED / "h100.yaml"))
    looked = asyncio.Event()

    class Noting(KubeletPodResources):
        async def all(self):
            pods = await super().all()
            looked.set()
            return pods

    pods = Noting(config.pod_resources, timeout_s=5)
    beside = Neighbours(
        pods,
        Gpus(machine.sysfs, Sysfs(RECORDED / "h100")).places,
        resources=frozenset({RDMA}),
        ours=frozenset({RDMA}),
    )
    resource = Resource(mode_of(ExclusiveResource()), Seen(look(machine.sysfs)), beside.complete)
    resource.update()
    gpus = PlainPlugin(plugin_dir=tmp_path, resource=GPU, devices=(OfferedDevice(id=gpu),))
    async with running_device_manager(config) as kubelet, gpus.registered(), asyncio.TaskGroup() as tasks:
        await kubelet.admit(pod("old", {}))
        keeping = tasks.create_task(PluginServer(resource, tmp_path).run())
        following = tasks.create_task(beside.follow())
        await kubelet.wait_for(lambda: len(kubelet.devices(GPU)) + len(kubelet.devices(RDMA)) == 5)
        await looked.wait()
        yield kubelet
        keeping.cancel()
        following.cancel()
    await pods.close()


@pytest.mark.parametrize(
    ("gpu", "nearest"),
    [
        ("0000:1b:00.0", "mlx5_0"),
        ("0000:43:00.0", "mlx5_1"),
        ("0000:9d:00.0", "mlx5_2"),
        ("0000:c3:00.0", "mlx5_3"),
    ],
)
async def test_pod_with_a_gpu_gets_the_rdma_device_below_the_same_switch(tmp_path, gpu, nearest):
    async with node(tmp_path, GPUS[gpu]) as kubelet:
        asking = pod("p", {GPU: 1}, {RDMA: 1})
        await kubelet.admit(asking)
        assert kubelet.allocated_devices(asking, "c1") == {RDMA: (nearest,)}


async def test_pod_without_a_gpu_gets_the_first_though_another_pod_has_one(tmp_path):
    async with node(tmp_path, GPUS["0000:c3:00.0"]) as kubelet:
        with_gpu = pod("p", {GPU: 1}, {RDMA: 1})
        await kubelet.admit(with_gpu)
        assert kubelet.allocated_devices(with_gpu, "c1") == {RDMA: ("mlx5_3",)}
        asking = pod("q", {RDMA: 1})
        await kubelet.admit(asking)
        assert kubelet.allocated_devices(asking, "c0") == {RDMA: ("mlx5_0",)}
