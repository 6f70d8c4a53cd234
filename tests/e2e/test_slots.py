"""Pods with slots, from the annotation to the device nodes of their containers: kubelet is the stand-in."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from cluster.kubelet import scratch
from e2e.node import Node
from k8s_rdma.config.devices import SLOT_RESOURCE
from k8s_rdma_demo.cluster.api import RunningApi, serving_api
from k8s_rdma_demo.cluster.kubelet import Kubelet, running_kubelet
from k8s_rdma_demo.cluster.node_devices import DevicesConfig, KubeletConfig
from k8s_rdma_demo.cluster.objects import EVENTS, PODS
from k8s_rdma_demo.kubelet.device_manager import DeviceManagerConfig
from k8s_rdma_demo.kubelet.pods import Capacity

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from k8s_rdma_demo.cluster.containers import Container

DEADLINE_S = 120
VFS = 4
SLOTS = 5
PCI_VARIABLE = "PCIDEVICE_K8S_RDMA_IO_SLOT"
RDMA_CM = "/dev/infiniband/rdma_cm"


@dataclass
class Slots:
    """A node with device nodes for its VFs. root: its agent and device plugin see them there."""

    node: Node
    root: Path
    verbs: dict[str, str]

    @property
    def cdi(self) -> Path:
        return self.node.directory / "cdi"

    @property
    def manager(self) -> DeviceManagerConfig:
        return DeviceManagerConfig(
            plugin_dir=self.node.directory / "device-plugins",
            pod_resources=self.node.directory / "pod-resources/kubelet.sock",
            seed=1,
        )

    @asynccontextmanager
    async def kubelet(self, api: RunningApi) -> AsyncIterator[Kubelet]:
        """One whose pods have an ordinary network and ours, once the device plugin has registered."""
        runtime = self.node.runtime(chained=True)
        devices = DevicesConfig(manager=self.manager, cdi_dirs=(self.cdi,), host_root=self.root)
        config = KubeletConfig(
            node="w1",
            conflist=runtime.conflist,
            cni_path=runtime.cni_path,
            netns_dir=runtime.netns_dir,
            start_retry_s=0.05,
            stop_retry_s=0.05,
            late_delete_s=None,
            devices=devices,
        )
        every = {SLOT_RESOURCE: Capacity(capacity=SLOTS, allocatable=SLOTS)}
        async with running_kubelet(api.url, config) as kubelet:
            try:
                await kubelet.device_manager.wait_for(lambda: kubelet.device_manager.capacity() == every)
                yield kubelet
            except BaseException:
                for log in sorted(self.node.directory.glob("*.log")):
                    sys.stderr.write(f"{log.name}:\n{log.read_text()}\n")
                raise


@pytest.fixture
def slots(make_node: Callable[[int], Node]) -> Iterator[Slots]:
    """With an agent and a device plugin, both processes that see only the node's own device nodes."""
    node = make_node(VFS)
    addresses = [pf.vf_pci(index) for pf in node.pfs for index in range(VFS)]
    verbs = {pci: f"uverbs{number}" for number, pci in enumerate(addresses)}
    nodes = {name: (231, 192 + number) for number, name in enumerate(verbs.values())}
    prepare = scratch(node.directory / "scratch", {**nodes, "rdma_cm": (10, 58)}, verbs)
    command = [
        "unshare",
        "--mount",
        "--propagation",
        "slave",
        "sh",
        "-c",
        f"{prepare} echo ready && exec cat",
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        try:
            if holder.stdout.readline() != "ready\n":
                pytest.skip("no device nodes can be made here")
            node.enter = ["nsenter", f"--mount=/proc/{holder.pid}/ns/mnt"]
            made = Slots(node, Path(f"/proc/{holder.pid}/root"), verbs)
            start(made)
            yield made
            node.close()
        finally:
            holder.stdin.close()


def start(slots: Slots) -> None:
    manager = slots.manager
    slots.node.start_with_slots(
        SLOTS, plugin_dir=manager.plugin_dir, pod_resources=manager.pod_resources, cdi_dir=slots.cdi
    )


@dataclass
class World:
    """The API server and its pods."""

    api: RunningApi
    http: httpx2.AsyncClient

    async def create(self, name: str, containers: dict[str, int], *interfaces: dict[str, int]) -> None:
        """A pod on the node. containers: how many slots each asks for."""
        annotations = {"rdma_interfaces_required": json.dumps(interfaces)} if interfaces else {}
        made = [
            {"name": each, "image": "lab.local/busybox:1"}
            | ({"resources": {"limits": {SLOT_RESOURCE: str(count)}}} if count else {})
            for each, count in containers.items()
        ]
        spec = {"nodeName": "w1", "terminationGracePeriodSeconds": 30, "containers": made}
        pod = {"metadata": {"name": name, "annotations": annotations}, "spec": spec}
        answer = await self.http.post("/api/v1/namespaces/default/pods", json=pod)
        assert answer.status_code == 201, answer.text

    async def delete(self, name: str) -> None:
        assert (await self.http.delete(f"/api/v1/namespaces/default/pods/{name}")).is_success
        await self.until(lambda: self.pod(name) is None)

    async def running(self, name: str) -> None:
        await self.until(lambda: (self.pod(name) or {})["status"].get("phase") == "Running")

    def pod(self, name: str) -> dict[str, Any] | None:
        return next((each for each in self.api.store.items(PODS) if each["metadata"]["name"] == name), None)

    def said(self, reason: str) -> list[str]:
        return [each["message"] for each in self.api.store.items(EVENTS) if each["reason"] == reason]

    @staticmethod
    async def until(holds: Callable[[], object]) -> None:
        while not holds():  # noqa: ASYNC110  other processes make it hold
            await asyncio.sleep(0.01)


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with (
        asyncio.timeout(DEADLINE_S),
        serving_api() as api,
        httpx2.AsyncClient(base_url=api.url, trust_env=False) as http,
    ):
        yield World(api, http)


def given(container: Container) -> set[str]:
    """Return the VFs in a container's environment."""
    return set(container.envs[PCI_VARIABLE].split(","))


def test_containers_have_the_device_nodes_of_their_pods_vfs_and_no_others(slots: Slots) -> None:
    async def scenario() -> None:
        async with world() as cluster, slots.kubelet(cluster.api) as kubelet:
            wanted = {"p": ({"min_tx_rate": 100}, {}), "q": ({},)}
            vfs: dict[str, set[str]] = {}
            for name, interfaces in wanted.items():
                await cluster.create(name, {"c": 1, "d": 1, "none": 0}, *interfaces)
                await cluster.running(name)
                containers = kubelet.containers_of("default", name)
                vfs[name] = given(containers["c"])
                assert len(vfs[name]) == len(interfaces)
                nodes = {RDMA_CM, *(f"/dev/infiniband/{slots.verbs[pci]}" for pci in vfs[name])}
                assert [set(containers[each].device_paths) for each in ("c", "d")] == [nodes, nodes]
                assert containers["none"].devices == ()
            assert vfs["p"].isdisjoint(vfs["q"])
            assert len(list(slots.cdi.iterdir())) == 4
            await cluster.delete("p")
            await cluster.until(lambda: len(list(slots.cdi.iterdir())) == 2)
            assert len(given(kubelet.containers_of("default", "q")["c"])) == 1
            await cluster.delete("q")

    asyncio.run(scenario())
    assert slots.node.leftovers() == {}
    assert list(slots.cdi.iterdir()) == []


def test_pod_with_a_slot_and_without_interfaces_does_not_start(slots: Slots) -> None:
    async def scenario() -> None:
        async with world() as cluster, slots.kubelet(cluster.api):
            await cluster.create("p", {"c": 1})
            await cluster.until(lambda: cluster.said("Failed"))
            assert (
                "unresolvable CDI devices k8s-rdma.io/slot=k8s-rdma.io_slot.slot-"
                in cluster.said("Failed")[0]
            )

    asyncio.run(scenario())


def test_pods_outlive_a_kubelet_and_those_after_it_get_slots(slots: Slots) -> None:
    async def scenario() -> None:
        async with world() as cluster:
            async with slots.kubelet(cluster.api) as kubelet:
                await cluster.create("p", {"c": 1}, {})
                await cluster.running("p")
                before = kubelet.containers_of("default", "p")
            async with slots.kubelet(cluster.api) as kubelet:
                assert kubelet.containers_of("default", "p") == before
                await cluster.create("q", {"c": 1}, {})
                await cluster.running("q")
                assert given(kubelet.containers_of("default", "q")["c"]).isdisjoint(given(before["c"]))

    asyncio.run(scenario())
