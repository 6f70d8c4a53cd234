"""A device manager in a directory of its own, and pods for it."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.core.devices.pod_devices import OfferedDevice
from k8s_rdma_demo.kubelet.device_manager import DeviceManager, DeviceManagerConfig, running_device_manager
from k8s_rdma_demo.kubelet.pods import ContainerKind, DeviceContainer, DevicePod
from plain_plugin import PlainPlugin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

DEADLINE_S = 120
RESOURCE = "lab.local/rdma-vf"


@dataclass(frozen=True, slots=True)
class Node:
    """A node's kubelet: its device manager can be run again and again."""

    config: DeviceManagerConfig

    @asynccontextmanager
    async def kubelet(self, **changes: object) -> AsyncIterator[DeviceManager]:
        async with (
            asyncio.timeout(DEADLINE_S),
            running_device_manager(replace(self.config, **changes)) as manager,
        ):
            yield manager

    def plugin(self, *ids: str, **changes: object) -> PlainPlugin:
        devices = tuple(OfferedDevice(id=each, numa_nodes=(0,)) for each in ids)
        fields = {"plugin_dir": self.config.plugin_dir, "resource": RESOURCE, "devices": devices}
        return PlainPlugin(**(fields | changes))


@pytest.fixture
def node() -> Iterator[Node]:
    # Not pytest's own: the path of a Unix socket has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="kubelet-") as directory:
        root = Path(directory)
        yield Node(
            DeviceManagerConfig(
                plugin_dir=root / "device-plugins", pod_resources=root / "pod-resources/kubelet.sock", seed=1
            )
        )


def container(name: str = "main", size: int = 1, **fields: object) -> DeviceContainer:
    return DeviceContainer(name=name, limits={RESOURCE: size, "cpu": 2}, **fields)


def pod(*containers: DeviceContainer, name: str = "p1") -> DevicePod:
    return DevicePod(
        namespace="default", name=name, uid=f"uid-{name}", containers=containers or (container(),)
    )


def init(name: str = "init", size: int = 1) -> DeviceContainer:
    return container(name, size, kind=ContainerKind.INIT)
