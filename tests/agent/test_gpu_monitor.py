"""GPUs that the agent reports: by kubelet's word, by its silence, and by their place in the machine."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agent.runtime import in_turn
from demo.kubelet.conftest import Node, node
from extender.virtual_loop import VirtualLoop, run
from fakes.nodes import FakePodResources
from fakes.recorded_machine import RecordedMachine, read_machine
from k8s_rdma.agent.gpu_monitor import GPUS_STAND_S, SETTLE_S, GpuMonitor
from k8s_rdma.agent.report import Reporter
from k8s_rdma.core.inventory import Gpu
from k8s_rdma.core.types import PciAddress
from k8s_rdma.kube.pod_resources import KubeletPodResources
from k8s_rdma.linux.gpus import Gpus
from k8s_rdma.linux.sysfs import Sysfs
from k8s_rdma.process import DetachedCall
from k8s_rdma_demo.kubelet.pods import DeviceContainer, DevicePod

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from agent.machine import Machine
    from agent.runtime import Runtime

__all__ = ["node"]

RECORDED = Path(__file__).parent.parent / "linux" / "gpus"
NVIDIA, AMD = "nvidia.com/gpu", "amd.com/gpu"
UUIDS = {
    "0000:1b:00.0": "GPU-1a2b3c4d-5e6f-7a8b-9c0d-1e2f3a4b5c6d",
    "0000:43:00.0": "GPU-2a2b3c4d-5e6f-7a8b-9c0d-2e2f3a4b5c6d",
    "0000:9d:00.0": "GPU-3a2b3c4d-5e6f-7a8b-9c0d-3e2f3a4b5c6d",
    "0000:c3:00.0": "GPU-4a2b3c4d-5e6f-7a8b-9c0d-4e2f3a4b5c6d",
}
FIRST, SECOND = list(UUIDS)[:2]
BOTH = ((NVIDIA, UUIDS[SECOND]), (NVIDIA, UUIDS[FIRST]))
EVERY_S = 10.0


def recorded_gpus() -> Gpus:
    return Gpus(RecordedMachine(read_machine(RECORDED / "h100.yaml")).sysfs, Sysfs(RECORDED / "h100"))


def device_pod(name: str, limits: dict[str, int]) -> DevicePod:
    containers = (DeviceContainer(name="main", limits=limits),)
    return DevicePod(namespace="default", name=name, uid=f"uid-{name}", containers=containers)


class Locator:
    """Locates on the recorded machine; it hangs until released if it is to."""

    def __init__(self) -> None:
        self.requests: list[set[tuple[str, str]]] = []
        self.hangs = False

    async def __call__(self, devices: Collection[tuple[str, str]]) -> dict[tuple[str, str], Gpu]:
        self.requests.append(set(devices))
        if self.hangs:
            await asyncio.Event().wait()
        return recorded_gpus().by_device(devices)


class World:
    """A monitor that runs in virtual time, with the addresses that it published: in use and free."""

    def __init__(self, **how: Any) -> None:
        self.kubelet, self.locator = FakePodResources(), Locator()
        self.kubelet.healthy = BOTH
        self.kubelet.allocate("default", "old", "example.com/else", "0")
        how = {"every_s": EVERY_S, **how}
        self.monitor = GpuMonitor(self.kubelet, self.locator, **how)
        self.published: list[tuple[Gpu, ...]] = []

    async def publish(self) -> None:
        self.published.append(self.monitor.gpus())

    def use(self) -> dict[str, bool]:
        return {gpu.pci: gpu.in_use for gpu in self.monitor.gpus()}


async def advance(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    await loop.advance(seconds)


@asynccontextmanager
async def following(**how: Any) -> AsyncIterator[World]:
    world = World(**how)
    task = asyncio.create_task(world.monitor.run(world.publish))
    await advance(0)
    yield world
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def test_gpus_are_known_at_once_in_order_with_their_places():
    async def scenario() -> None:
        async with following() as world:
            first, second = world.monitor.gpus()
            assert first == Gpu(
                resource=NVIDIA,
                pci=PciAddress(FIRST),
                pcie_path=tuple(map(PciAddress, ("0000:15:01.0", "0000:16:00.0", "0000:17:02.0"))),
                numa_node=0,
            )
            assert second.pci == SECOND
            assert world.published == [(first, second)]

    run(scenario())


def test_gpu_of_a_pod_is_in_use_after_the_interval():
    async def scenario() -> None:
        async with following() as world:
            world.kubelet.allocate("default", "p", NVIDIA, UUIDS[SECOND])
            await advance(EVERY_S - 1)
            assert world.use() == {FIRST: False, SECOND: False}
            await advance(1)
            assert world.use() == {FIRST: False, SECOND: True}
            world.kubelet.forget("default", "p")
            await advance(EVERY_S)
            assert world.use() == {FIRST: False, SECOND: False}
            assert len(world.published) == 3

    run(scenario())


def test_gpu_of_a_pod_is_in_use_soon_after_a_call():
    async def scenario() -> None:
        async with following() as world:
            world.kubelet.allocate("default", "p", NVIDIA, UUIDS[FIRST])
            world.monitor.pods_changed.set()
            await advance(SETTLE_S + 0.1)
            assert world.use() == {FIRST: True, SECOND: False}

    run(scenario())


def test_burst_of_calls_is_one_query():
    async def scenario() -> None:
        async with following() as world:
            questions = world.kubelet.questions
            for _ in range(5):
                world.monitor.pods_changed.set()
                await advance(SETTLE_S / 10)
            await advance(SETTLE_S)
            assert world.kubelet.questions == questions + 2

    run(scenario())


def test_no_report_is_published_while_gpus_are_the_same():
    async def scenario() -> None:
        async with following() as world:
            world.kubelet.healthy = tuple(reversed(BOTH))
            await advance(5 * EVERY_S + 1)
            assert len(world.published) == 1
            assert len(world.locator.requests) == 6

    run(scenario())


def test_gpu_that_kubelet_no_longer_gives_is_not_reported():
    async def scenario() -> None:
        async with following() as world:
            world.kubelet.allocate("default", "p", NVIDIA, UUIDS[SECOND])
            world.kubelet.healthy = BOTH[1:]
            await advance(EVERY_S)
            assert world.use() == {FIRST: False}
            world.kubelet.healthy = ()
            await advance(EVERY_S)
            assert world.published[-1] == ()

    run(scenario())


def test_gpu_of_several_devices_is_one_and_in_use_when_any_is():
    async def scenario() -> None:
        async with following() as world:
            shares = [(NVIDIA, f"{UUIDS[pci]}::{share}") for pci in (FIRST, SECOND) for share in range(3)]
            world.kubelet.healthy = tuple(shares[1:])
            world.kubelet.allocate("default", "p", NVIDIA, f"{UUIDS[FIRST]}::0")  # which is unhealthy by now
            await advance(EVERY_S)
            assert world.use() == {FIRST: True, SECOND: False}
            assert len(world.monitor.gpus()) == 2

    run(scenario())


def test_gpu_of_two_resources_is_in_use_of_the_one_that_a_pod_has():
    async def scenario() -> None:
        async with following() as world:
            world.kubelet.healthy = ((NVIDIA, FIRST), ("nvidia.com/gpu.shared", FIRST))
            world.kubelet.allocate("default", "p", NVIDIA, FIRST)
            await advance(EVERY_S)
            assert [(gpu.resource, gpu.in_use) for gpu in world.monitor.gpus()] == [
                (NVIDIA, True),
                ("nvidia.com/gpu.shared", False),
            ]

    run(scenario())


def test_devices_of_others_and_of_ours_are_not_located():
    async def scenario() -> None:
        async with following(own_resources=("nvidia.com/hostdev",)) as world:
            world.locator.requests.clear()
            others = [("nvidia.com/hostdev", FIRST), ("example.com/gpu", FIRST), ("intel.com/sriov", FIRST)]
            world.kubelet.healthy = (*others, (AMD, FIRST), ("gpu.intel.com/i915", SECOND))
            for resource, device_id in others:
                world.kubelet.allocate("default", "p", resource, device_id)
            await advance(EVERY_S)
            assert world.locator.requests == [{(AMD, FIRST), ("gpu.intel.com/i915", SECOND)}]

    run(scenario())


def test_pods_are_not_listed_if_there_is_no_gpu():
    async def scenario() -> None:
        async with following() as world:
            world.kubelet.healthy = (("example.com/fpga", "0"),)
            await advance(EVERY_S)
            questions, located = world.kubelet.questions, len(world.locator.requests)
            await advance(EVERY_S)
            assert (world.kubelet.questions, len(world.locator.requests)) == (questions + 1, located)

    run(scenario())


def test_gpus_stand_for_a_while_when_kubelet_is_silent_and_then_disappear():
    async def scenario() -> None:
        async with following() as world:
            world.kubelet.silent = True
            await advance(EVERY_S + GPUS_STAND_S - 1)
            assert world.use() == {FIRST: False, SECOND: False}
            await advance(2)
            assert world.published[1:] == [()]
            world.kubelet.silent = False
            await advance(EVERY_S)
            assert world.use() == {FIRST: False, SECOND: False}

    run(scenario())


def test_gpus_stand_no_longer_if_the_interval_is_longer():
    async def scenario() -> None:
        async with following(every_s=3600) as world:
            world.kubelet.silent = True
            world.monitor.pods_changed.set()
            await advance(SETTLE_S + GPUS_STAND_S - 1)
            assert world.use() == {FIRST: False, SECOND: False}
            await advance(2)
            assert world.published[1:] == [()]

    run(scenario())


def test_silence_that_ended_in_between_does_not_count():
    async def scenario() -> None:
        async with following() as world:
            for _ in range(3):
                world.kubelet.silent = True
                await advance(GPUS_STAND_S - EVERY_S)
                world.kubelet.silent = False
                await advance(EVERY_S)
            assert len(world.published) == 1

    run(scenario())


def test_driver_that_hangs_is_silence():
    async def scenario() -> None:
        async with following(timeout_s=1) as world:
            world.locator.hangs = True
            await advance(EVERY_S + GPUS_STAND_S - 1)
            assert world.use() == {FIRST: False, SECOND: False}
            await advance(EVERY_S + 3)
            assert world.published[1:] == [()]

    run(scenario())


def test_kubelet_that_just_started_and_knows_no_pods_is_silence():
    async def scenario() -> None:
        async with following() as world:
            world.kubelet.allocate("default", "p", NVIDIA, UUIDS[FIRST])
            await advance(EVERY_S)
            world.kubelet.forget("default", "p")
            world.kubelet.forget("default", "old")
            await advance(EVERY_S)
            assert world.use() == {FIRST: True, SECOND: False}
            await advance(2 * EVERY_S + GPUS_STAND_S)
            assert world.use() == {FIRST: False, SECOND: False}

    run(scenario())


def test_kubelet_is_not_called_while_the_machine_has_no_gpus():
    async def scenario() -> None:
        gpus = asyncio.Event()

        async def present() -> bool:
            return gpus.is_set()

        async with following(present=present) as world:
            await advance(3 * EVERY_S)
            assert (world.kubelet.questions, world.published) == (0, [])
            gpus.set()
            await advance(EVERY_S)
            assert world.use() == {FIRST: False, SECOND: False}

    run(scenario())


def test_agent_that_knows_no_socket_of_kubelet_knows_no_gpus():
    monitor = GpuMonitor(None, Locator())

    async def publish() -> None:
        pytest.fail("nothing changed")

    asyncio.run(monitor.run(publish))
    assert monitor.gpus() == ()


def test_report_has_the_gpus_and_another_generation_when_they_change(machine: Machine):
    async def scenario(runtime: Runtime) -> None:
        gpus = list(recorded_gpus().by_device(BOTH).values())
        reporter = Reporter(runtime.node, gpus=lambda: tuple(gpus))
        before = reporter.now()
        assert [(gpu.resource, gpu.pci, gpu.in_use) for gpu in before.gpus] == [
            (NVIDIA, SECOND, False),
            (NVIDIA, FIRST, False),
        ]
        assert before.gpus[1].pcie_path == ("0000:15:01.0", "0000:16:00.0", "0000:17:02.0")
        assert reporter.now() is before
        gpus[0] = replace(gpus[0], in_use=True)
        after = reporter.now()
        assert after.gpus[0].in_use
        assert after.generation != before.generation

    in_turn(machine, scenario)


def test_pods_have_changed_after_each_add_and_del(machine: Machine):
    async def scenario(runtime: Runtime) -> None:
        conf: dict[str, object] = {"cniVersion": "1.0.0", "name": "net", "type": "k8s-rdma-cni"}
        for command, changes in (("ADD", 1), ("CHECK", 1), ("STATUS", 1), ("DEL", 2)):
            await runtime.ask(command, conf, annotations={})
            assert machine.pod_changes == changes

    in_turn(machine, scenario)


@pytest.mark.anyio
async def test_gpus_are_followed_through_kubelets_socket_and_a_thread(node: Node):
    published = asyncio.Queue[tuple[Gpu, ...]]()
    client = KubeletPodResources(node.config.pod_resources, timeout_s=10)
    located = DetachedCall(recorded_gpus().by_device, name="gpus")
    monitor = GpuMonitor(client, located, every_s=0.01)

    async def publish() -> None:
        published.put_nowait(monitor.gpus())

    plugin = node.plugin(*UUIDS.values(), resource=NVIDIA)
    async with node.kubelet() as manager, plugin.registered(), asyncio.TaskGroup() as tasks:
        await manager.wait_for(lambda: manager.devices(NVIDIA))
        await manager.admit(device_pod("old", {}))
        task = tasks.create_task(monitor.run(publish))
        assert [gpu.pci for gpu in await published.get()] == list(UUIDS)
        await manager.admit(device_pod("p", {NVIDIA: 3}))
        assert sum(gpu.in_use for gpu in await published.get()) == 3
        task.cancel()
    await client.close()
