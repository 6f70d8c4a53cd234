"""The device plugin beside a real kubelet and a real runtime."""

from __future__ import annotations

import json
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cluster.kubelet import (
    ADDRESS,
    LOOK,
    Kubelet,
    cdi_obstacle,
    obstacle,
    programs,
    runtime_class,
    scratch,
)
from cluster.offering import offering
from cluster.world import cluster
from e2e.conftest import build_dir, make_node, program
from e2e.real_pods import without_us
from k8s_rdma.config.devices import (
    HUSTCAT_RESOURCE,
    MOUNT_RESOURCE,
    SLOT_RESOURCE,
    DevicePluginConfig,
    ExclusiveResource,
)
from k8s_rdma.config.files import load_config
from k8s_rdma.core.devices.pod_devices import PodDevices, shared_resource
from k8s_rdma.core.devices.rdma_devices import CharacterDevice, DeviceInventory, NodeKind, RdmaDevice
from k8s_rdma.deviceplugin.modes import mode_of, modes_of
from k8s_rdma.kube.pod_resources import KubeletPodResources

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from e2e.node import Node

__all__ = ["build_dir", "make_node", "program"]

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(obstacle() is not None, reason=str(obstacle()))]

NO_CDI = obstacle() or cdi_obstacle()
with_cdi = pytest.mark.skipif(NO_CDI is not None, reason=str(NO_CDI))

VFS = 4
"""On each of two PFs."""

NODES = {f"uverbs{number}": (231, 192 + number) for number in range(2 * VFS)}
NODES |= {"umad1": (231, 1), "rdma_cm": (10, 122)}
"""No device is behind them: who may open one gets ENXIO or ENODEV, and who may not EPERM."""


def device(name: str, *nodes: str) -> RdmaDevice:
    made = []
    for node in nodes:
        major, minor = NODES[node]
        kind = NodeKind(node.rstrip("0123456789"))
        made.append(CharacterDevice(kind=kind, path=f"/dev/infiniband/{node}", major=major, minor=minor))
    return RdmaDevice(name=name, pci=f"0000:03:00.{name[-1]}", nodes=tuple(made), numa_node=0)


SEEN = DeviceInventory(
    devices={each.name: each for each in (device("mlx5_0", "uverbs0"), device("mlx5_1", "uverbs1", "umad1"))},
    rdma_cm=True,
    directory=True,
)
OF_DEVICE = {"mlx5_0": {"rdma_cm", "uverbs0"}, "mlx5_1": {"rdma_cm", "umad1", "uverbs1"}}
RUNTIME_LOG = 50_000
"""Characters of the runtime's log that are shown when a scenario fails."""
PCI_VARIABLE = "PCIDEVICE_K8S_RDMA_IO_SLOT"
DEVICES_VARIABLE = "K8S_RDMA_DEVICES_TENCENT_COM_RDMA"


@pytest.fixture
def node(make_node: Callable[[int], Node]) -> Node:
    return with_address(make_node(VFS))


def with_address(node: Node) -> Node:
    """The node, with the address that its kubelet has."""
    node.ip("link", "add", "mgmt", "type", "bridge")
    node.ip("address", "add", f"{ADDRESS}/24", "dev", "mgmt")
    node.ip("link", "set", "mgmt", "up")
    return node


def verbs(node: Node) -> dict[str, str]:
    """The device node of each VF, by its address."""
    addresses = [pf.vf_pci(index) for pf in node.pfs for index in range(pf.vfs)]
    return {pci: f"uverbs{number}" for number, pci in enumerate(addresses)}


def device_nodes(node: Node) -> dict[str, tuple[int, int]]:
    """Those of `NODES`, and of VFs beyond them."""
    names = verbs(node).values()
    return {name: (231, 192 + int(name.removeprefix("uverbs"))) for name in names} | NODES


@asynccontextmanager
async def kubelet_of(node: Node, tmp_path: Path) -> AsyncIterator[Kubelet]:
    """A kubelet that runs on the node, whose pods have an ordinary network."""
    directory = node.directory / "c"
    runtime = runtime_class()(
        directory,
        plugins=node.cni_path,
        deadline_s=node.deadline_s,
        programs=programs(),
        prepare=scratch(directory, device_nodes(node), verbs(node)),
        sources={"look": LOOK},
    )
    with runtime:
        runtime.use(without_us(node.runtime(chained=True).conflist))
        node.enter = runtime.entering
        async with cluster("real", tmp_path) as world:
            kubelet = Kubelet(world, runtime, directory)
            try:
                await kubelet.start()
                yield kubelet
            except BaseException:
                for log in sorted(node.directory.glob("*.log")):
                    sys.stderr.write(f"{log.name}:\n{log.read_text()}\n")
                sys.stderr.write(f"{runtime.name}:\n{runtime.log()[-RUNTIME_LOG:]}\n")
                raise
            finally:
                await kubelet.end()


@asynccontextmanager
async def pod_resources(kubelet: Kubelet) -> AsyncIterator[KubeletPodResources]:
    client = KubeletPodResources(kubelet.lib / "pod-resources" / "kubelet.sock", timeout_s=5)
    try:
        yield client
    finally:
        await client.close()


def asks(name: str, count: int = 1, resource: str = HUSTCAT_RESOURCE) -> dict[str, object]:
    return {"name": name, "resources": {"limits": {resource: str(count)}}}


def slot(name: str) -> dict[str, object]:
    return asks(name, resource=SLOT_RESOURCE)


def interfaces(*entries: dict[str, int]) -> dict[str, str]:
    return {"rdma_interfaces_required": json.dumps(entries)}


def plugin_config(node: Node, resources: list[dict[str, object]]) -> Path:
    """The device plugin's configuration file."""
    document = {"resources": resources, "runDir": str(node.run_dir), "port": None}
    return node.config("device-plugin", document)


def start_plugin(node: Node, resources: list[dict[str, object]]) -> str:
    """Run the device plugin on the node; its configuration file."""
    config = plugin_config(node, resources)
    node.start("device-plugin", config)
    return str(config)


def vfs(node: Node) -> dict[str, RdmaDevice]:
    """The node's VFs, as if they were RDMA devices: they are called by their addresses."""
    return {
        pci: replace(device(pci, verbs(node)[pci]), pci=pci, pf=pf.pci, pf_name=pf.name, vf=index)
        for pf in node.pfs
        for index in range(pf.vfs)
        for pci in [pf.vf_pci(index)]
    }


async def test_container_opens_the_devices_that_it_was_given_and_no_others(node: Node, tmp_path: Path):
    async with (
        kubelet_of(node, tmp_path) as kubelet,
        pod_resources(kubelet) as told,
        offering(kubelet.plugins, SEEN, mode_of(ExclusiveResource())) as offered,
    ):
        answers: list[PodDevices] = []

        async def ask() -> None:
            """Kubelet answers while it waits for us."""
            answers.append(await told.of_pod("default", "p"))

        offered.before_choice = ask
        await kubelet.counted(HUSTCAT_RESOURCE, capacity=2, allocatable=2)
        await kubelet.create_pod("p", asks("c"), {"name": "none"}, asks("d"))
        pod = await kubelet.running("p")
        looks = {name: kubelet.look(pod, name) for name in ("c", "d", "none")}
        given = {name: looks[name].env[DEVICES_VARIABLE] for name in ("c", "d")}
        assert sorted(given.values()) == ["mlx5_0", "mlx5_1"]
        for name, of in given.items():
            assert (looks[name].opens, looks[name].denied) == (OF_DEVICE[of], set())
        assert (looks["none"].opens, looks["none"].denied) == (set(), set())
        assert answers[0] == PodDevices(namespace="default", name="p")
        held = await told.of_pod("default", "p")
        assert {each.container: each.ids for each in held.devices} == {
            name: (of,) for name, of in given.items()
        }
        assert all(each.numa_nodes == (0,) for each in held.devices)


async def test_pods_keep_their_devices_over_a_restart_of_kubelet(node: Node, tmp_path: Path):
    async with (
        kubelet_of(node, tmp_path) as kubelet,
        pod_resources(kubelet) as told,
        offering(kubelet.plugins, SEEN, mode_of(ExclusiveResource())),
    ):
        await kubelet.counted(HUSTCAT_RESOURCE, capacity=2, allocatable=2)
        await kubelet.create_pod("before", asks("c"))
        look = kubelet.look(await kubelet.running("before"), "c")
        await kubelet.end()
        await kubelet.start()
        await kubelet.registered(HUSTCAT_RESOURCE)
        await kubelet.create_pod("after", asks("c"))
        other = kubelet.look(await kubelet.running("after"), "c")
        before = await kubelet.running("before")
        assert kubelet.look(before, "c") == look
        assert [each["restartCount"] for each in before["status"]["containerStatuses"]] == [0]
        held = {pod.name: pod.device_ids(HUSTCAT_RESOURCE) for pod in await told.all()}
        assert held == {
            "before": (look.env[DEVICES_VARIABLE],),
            "after": (other.env[DEVICES_VARIABLE],),
        }
        assert held["before"] != held["after"]


async def test_unhealthy_device_is_given_to_no_pod_until_it_recovers(node: Node, tmp_path: Path):
    async with (
        kubelet_of(node, tmp_path) as kubelet,
        offering(kubelet.plugins, SEEN, mode_of(ExclusiveResource())) as offered,
    ):
        await kubelet.counted(HUSTCAT_RESOURCE, capacity=2, allocatable=2)
        broken = replace(SEEN.devices["mlx5_0"], faults=("its port 1 is down",))
        offered.see(replace(SEEN, devices={**SEEN.devices, "mlx5_0": broken}))
        await kubelet.counted(HUSTCAT_RESOURCE, capacity=2, allocatable=1)
        await kubelet.create_pod("p", asks("c"))
        look = kubelet.look(await kubelet.running("p"), "c")
        assert look.env[DEVICES_VARIABLE] == "mlx5_1"
        await kubelet.create_pod("q", asks("c"))
        assert "mlx5_0" not in await kubelet.refused("q")
        offered.see(SEEN)
        await kubelet.counted(HUSTCAT_RESOURCE, capacity=2, allocatable=2)
        await kubelet.create_pod("r", asks("c"))
        look = kubelet.look(await kubelet.running("r"), "c")
        assert look.env[DEVICES_VARIABLE] == "mlx5_0"


async def test_mount_gives_the_whole_directory_to_who_asks(node: Node, tmp_path: Path):
    async with kubelet_of(node, tmp_path) as kubelet:
        resources = [{"mode": "mount", "name": MOUNT_RESOURCE, "count": 3}]
        start_plugin(node, resources)
        await kubelet.counted(MOUNT_RESOURCE, capacity=3, allocatable=3)
        await kubelet.create_pod("p", asks("c", resource=MOUNT_RESOURCE), {"name": "none"})
        pod = await kubelet.running("p")
        look = kubelet.look(pod, "c")
        assert (look.opens, look.denied) == (set(NODES), set())
        assert kubelet.look(pod, "none").opens == set()


async def test_pod_whose_container_asks_for_too_many_fails_for_good_and_the_next_one_starts(
    node: Node, tmp_path: Path
):
    async with kubelet_of(node, tmp_path) as kubelet:
        start_plugin(node, [{"mode": "mount", "name": MOUNT_RESOURCE, "count": 5, "maxPerContainer": 2}])
        await kubelet.counted(MOUNT_RESOURCE, capacity=5, allocatable=5)
        await kubelet.create_pod("greedy", asks("c", 3, MOUNT_RESOURCE))
        said = await kubelet.refused("greedy")
        assert said.startswith("UnexpectedAdmissionError: Pod was rejected: Allocate failed")
        assert f"{MOUNT_RESOURCE}: 3 for one container, 2 at most (maxPerContainer" in said
        await kubelet.create_pod("modest", asks("c", 2, MOUNT_RESOURCE), asks("d", 2, MOUNT_RESOURCE))
        await kubelet.running("modest")


async def start_exact(node: Node, kubelet: Kubelet) -> None:
    """The device plugin with slots, and the agent that fills them in."""
    plugin = start_plugin(node, [{"mode": "exact", "count": 5}])
    start_agent(node, kubelet, plugin)
    await kubelet.counted(SLOT_RESOURCE, capacity=5, allocatable=5)


def start_agent(node: Node, kubelet: Kubelet, plugin: str) -> None:
    """The agent, with the device plugin's file; pods get their interfaces from it."""
    node.settings = node.settings | {"devicePlugin": plugin, "cdiDir": str(kubelet.cdi)}
    node.start_agent()
    kubelet.use(node.runtime(chained=True).conflist)


@with_cdi
async def test_slot_has_the_devices_that_the_agent_gave_the_pod(node: Node, tmp_path: Path):
    """Kubelet gives the slot to the container before the agent gives the pod its VFs."""
    async with kubelet_of(node, tmp_path) as kubelet:
        await start_exact(node, kubelet)
        seen: dict[str, set[str]] = {}
        for name, entries in {"p": [{"min_tx_rate": 100}, {}], "q": [{}]}.items():
            containers = slot("c"), slot("d"), {"name": "none"}
            await kubelet.create_pod(
                name, *containers, init=[slot("first")], annotations=interfaces(*entries)
            )
            pod = await kubelet.running(name)
            looks = [kubelet.look(pod, container) for container in ("c", "d")]
            given = looks[0].env[PCI_VARIABLE].split(",")
            assert len(given) == len(entries)
            seen[name] = {verbs(node)[pci] for pci in given}
            assert [look.opens for look in looks] == [{"rdma_cm", *seen[name]}] * 2
            assert kubelet.look(pod, "none").opens == set()
        assert seen["p"].isdisjoint(seen["q"])
        assert len(list(kubelet.cdi.iterdir())) == 4
        await kubelet.delete_pod("p")
        await kubelet.until(lambda: len(list(kubelet.cdi.iterdir())) == 2)
        assert kubelet.look(await kubelet.running("q"), "c").opens == {"rdma_cm", *seen["q"]}


@with_cdi
async def test_slot_is_the_same_after_everything_was_restarted(node: Node, tmp_path: Path):
    async with kubelet_of(node, tmp_path) as kubelet:
        await start_exact(node, kubelet)
        await kubelet.create_pod("p", slot("c"), annotations=interfaces({}), restart="Always")
        pod = await kubelet.running("p")
        look = kubelet.look(pod, "c")
        assert len(look.opens) == 2
        node.kill_agent()
        node.start_agent()
        await kubelet.end()
        await kubelet.start()
        await kubelet.registered(SLOT_RESOURCE)
        pod = await kubelet.stop_container(pod, "c")
        assert kubelet.look(pod, "c") == look
        await kubelet.create_pod("q", slot("c"), annotations=interfaces({}))
        other = kubelet.look(await kubelet.running("q"), "c")
        assert other.opens & look.opens == {"rdma_cm"}


@with_cdi
async def test_pod_with_a_slot_and_without_interfaces_does_not_start(node: Node, tmp_path: Path):
    async with kubelet_of(node, tmp_path) as kubelet:
        await start_exact(node, kubelet)
        await kubelet.create_pod("p", slot("c"))
        said = await kubelet.event("p", "Failed")
        assert "unresolvable CDI devices k8s-rdma.io/slot=k8s-rdma.io_slot.slot-0" in said


@with_cdi
async def test_exclusive_devices_are_the_vfs_that_the_pod_has(node: Node, tmp_path: Path):
    """Of the first PF; a further container of the pod shares them."""
    shared = shared_resource(HUSTCAT_RESOURCE)
    async with kubelet_of(node, tmp_path) as kubelet:
        resources = [{"mode": "exclusive", "select": {"pfs": [node.pfs[0].name]}, "cdi": False, "share": 3}]
        config = plugin_config(node, resources)
        start_agent(node, kubelet, str(config))
        modes = modes_of(load_config(DevicePluginConfig, str(config), {}))
        seen = replace(SEEN, devices=vfs(node), allocated={}, held_slots=frozenset())
        async with offering(kubelet.plugins, seen, *modes):
            await kubelet.counted(HUSTCAT_RESOURCE, capacity=VFS, allocatable=VFS)
            await kubelet.create_pod(
                "p", asks("c", 2), asks("d", 1, shared), annotations=interfaces({"min_tx_rate": 100}, {})
            )
            pod = await kubelet.running("p")
            looks = {name: kubelet.look(pod, name) for name in ("c", "d")}
            held = looks["c"].env[DEVICES_VARIABLE].split(",")
            assert looks["c"].opens == looks["d"].opens == {"rdma_cm", *(verbs(node)[pci] for pci in held)}
            (allocation,) = node.try_report().allocations
            assert {each.pci for each in allocation.interfaces} == set(held)
            await kubelet.create_pod("by-annotation", {"name": "c"}, annotations=interfaces({}))
            await kubelet.running("by-annotation")
            (given,) = (each for each in node.try_report().allocations if each != allocation)
            assert [each.pf for each in given.interfaces] == [node.pfs[1].pci]
