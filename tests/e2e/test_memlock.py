"""Locked memory of containers that are not root, by the hook in the CDI specification of their slot.

Runtimes are started with a low limit, below one that may be raised without CAP_SYS_RESOURCE, which
root has not everywhere; tests/lab/test_memlock.py goes beyond that, and registers memory.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
import shutil
import subprocess
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from e2e.container_runtime import IMAGE
from e2e.containerd import Containerd
from e2e.crio import Crio
from e2e.neighbours import FOLDER, search_path
from e2e.runtimes import runtime_obstacle
from k8s_rdma.config.devices import SLOT_RESOURCE
from k8s_rdma.doctor.node.runtime import CDI_SINCE, version_of
from k8s_rdma_demo.cluster.api import serving_api
from k8s_rdma_demo.cluster.kubelet import running_kubelet
from k8s_rdma_demo.cluster.node_devices import DevicesConfig, KubeletConfig
from k8s_rdma_demo.cluster.objects import EVENTS, PODS
from k8s_rdma_demo.kubelet.device_manager import DeviceManagerConfig
from k8s_rdma_demo.kubelet.pods import Capacity

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from e2e.container_runtime import ContainerRuntime
    from e2e.node import Node
    from k8s_rdma_demo.cluster.api import RunningApi

DEADLINE_S = 120
BEFORE = 64 << 10
MOST = 4 << 20
"""No more than the hard limit of an ordinary process (8 MiB)."""
SLOTS = 3
HARD = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
PATH = "/api/v1/namespaces/default/pods"


def knows_cdi() -> bool:
    """Whether that containerd reads CDI specifications."""
    path = search_path(os.environ["PATH"])
    said = subprocess.run(
        [shutil.which("containerd", path=path), "--version"], capture_output=True, check=True
    )
    version = version_of(said.stdout.decode())
    return version is not None and version >= CDI_SINCE["containerd"]


class LowLimit:
    """A runtime whose containers may lock little."""

    def command(self) -> list[str]:
        return ["prlimit", f"--memlock={BEFORE}:{HARD}", *super().command()]


class LowContainerd(LowLimit, Containerd):
    """Containerd of 1.7 or newer, which knows CDI."""


class LowCrio(LowLimit, Crio):
    """CRI-O."""


@pytest.fixture(params=[LowContainerd, LowCrio], ids=["containerd", "crio"])
def runtime(request: pytest.FixtureRequest, make_node: Callable[[int], Node]) -> Iterator[tuple[Node, Any]]:
    kind = request.param
    if (why := runtime_obstacle(kind.name)) is not None:
        pytest.skip(why)
    if kind is LowContainerd and not knows_cdi():
        pytest.skip(f"needs containerd 1.7 or newer, in the folder that {FOLDER} names")
    if HARD != resource.RLIM_INFINITY and HARD < MOST:
        pytest.skip(f"needs a hard limit of locked memory of {MOST} bytes")
    node = make_node(4)
    newer = Path(os.environ[FOLDER]) if FOLDER in os.environ else None
    with kind(
        node.directory / kind.name, plugins=node.cni_path, deadline_s=DEADLINE_S, programs=newer
    ) as runtime:
        runtime.use(node.runtime(chained=True).conflist)
        node.enter = runtime.entering
        yield node, runtime


def start(node: Node, runtime: ContainerRuntime, **settings: Any) -> DeviceManagerConfig:
    """The agent and the device plugin. settings: of the agent."""
    manager = DeviceManagerConfig(
        plugin_dir=node.directory / "device-plugins", pod_resources=node.directory / "pod-resources.sock"
    )
    settings = {"cniPath": os.pathsep.join(map(str, node.cni_path)), **settings}
    node.start_with_slots(
        SLOTS,
        plugin_dir=manager.plugin_dir,
        pod_resources=manager.pod_resources,
        cdi_dir=runtime.cdi,
        **settings,
    )
    return manager


@asynccontextmanager
async def world(runtime: ContainerRuntime, manager: DeviceManagerConfig) -> AsyncIterator[World]:
    async with (
        asyncio.timeout(DEADLINE_S),
        serving_api() as api,
        httpx2.AsyncClient(base_url=api.url, trust_env=False) as http,
        running_kubelet(
            api.url,
            KubeletConfig(
                node="w1",
                runtime_endpoint=runtime.socket,
                state_dir=runtime.directory / "sandboxes",
                relist_s=0.1,
                start_retry_s=0.1,
                stop_retry_s=0.1,
                late_delete_s=None,
                devices=DevicesConfig(manager=manager, cdi_dirs=(runtime.cdi,)),
            ),
        ) as kubelet,
    ):
        every = {SLOT_RESOURCE: Capacity(capacity=SLOTS, allocatable=SLOTS)}
        await kubelet.device_manager.wait_for(lambda: kubelet.device_manager.capacity() == every)
        yield World(api, http, kubelet)


class World:
    """The API server and the node's kubelet."""

    def __init__(self, api: RunningApi, http: httpx2.AsyncClient, kubelet: Any) -> None:
        self.api, self.http, self.kubelet = api, http, kubelet

    async def create(self, name: str, **annotations: str) -> None:
        every = {"k8s-rdma.io/interfaces": "[{}]"} | {
            f"k8s-rdma.io/{key}": value for key, value in annotations.items()
        }
        container = {
            "name": "c",
            "image": IMAGE,
            "securityContext": {"runAsUser": 1000},
            "resources": {"limits": {SLOT_RESOURCE: "1"}},
        }
        pod = {
            "metadata": {"name": name, "annotations": every},
            "spec": {"nodeName": "w1", "containers": [container]},
        }
        answer = await self.http.post(PATH, json=pod)
        assert answer.status_code == 201, answer.text

    async def limit(self, name: str) -> tuple[int, int]:
        """The soft limit of locked memory of a pod's process, and its user."""
        while (self._pod(name) or {}).get("status", {}).get("phase") != "Running":  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        (container,) = self.kubelet.containers_of("default", name).values()
        return limit_of(container.id)

    async def event(self, reason: str, text: str) -> str:
        """The message of an event with that reason and text."""
        while True:
            for each in self.api.store.items(EVENTS):
                if each["reason"] == reason and text in each["message"]:
                    return str(each["message"])
            await asyncio.sleep(0.05)

    def _pod(self, name: str) -> dict[str, Any] | None:
        return next((each for each in self.api.store.items(PODS) if each["metadata"]["name"] == name), None)


def limit_of(container: str) -> tuple[int, int]:
    """The soft limit of locked memory of a container's process, and its user."""
    (process,) = (
        path
        for path in Path("/proc").glob("[0-9]*")
        if container in _read(path / "cgroup") and "pause" in _read(path / "cmdline")
    )
    (soft,) = re.findall(r"Max locked memory +(\w+)", _read(process / "limits"))
    (user,) = re.findall(r"Uid:\t(\d+)", _read(process / "status"))
    return int(soft), int(user)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it has ended
        return ""


def test_container_that_is_not_root_may_lock_memory_by_configuration_and_pod(
    runtime: tuple[Node, Any],
) -> None:
    node, container_runtime = runtime
    manager = start(node, container_runtime, memlock="2Mi")

    async def scenario() -> None:
        async with world(container_runtime, manager) as cluster:
            for name, annotations, limit in (
                ("default", {}, 2 << 20),
                ("more", {"memlock": str(MOST)}, MOST),
                ("none", {"memlock": "0"}, BEFORE),
            ):
                await cluster.create(name, **annotations)
                assert await cluster.limit(name) == (limit, 1000)

    asyncio.run(scenario())


def test_container_whose_pod_requires_an_impossible_amount_does_not_start(runtime: tuple[Node, Any]) -> None:
    """The executable is gone: a hook that fails, as one does that lacks CAP_SYS_RESOURCE."""
    node, container_runtime = runtime
    manager = start(node, container_runtime, cniPath=str(node.directory))

    async def scenario() -> None:
        async with world(container_runtime, manager) as cluster:
            await cluster.create("default")
            assert await cluster.limit("default") == (BEFORE, 1000)
            await cluster.create("required", memlock="1Gi")
            message = await cluster.event("FailedCreatePodSandBox", "k8s-rdma.io/memlock")
            assert "there is no k8s-rdma-cni in cniPath of the agent's file" in message

    asyncio.run(scenario())
