"""The device plugin as a process, beside a kubelet that it registers with."""

from __future__ import annotations

import asyncio
import json
import signal
import tempfile
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2

from k8s_rdma_demo.kubelet.device_manager import DeviceManager, DeviceManagerConfig, running_device_manager
from k8s_rdma_demo.plain_http import NO_TLS
from process_status import resident_kib
from warm_program import Started, start_logged

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

DEADLINE_S = 120
LOOK_S = 0.02

SLOTS, MOUNT = "k8s-rdma.io/slot", "rdma-sriov/dev-infiniband-mount"
SLOTS_SOCKET, MOUNT_SOCKET = "k8s-rdma.io_slot.sock", "rdma-sriov_dev-infiniband-mount.sock"
IN_DEFAULT_DIRECTORY = """
mount -t tmpfs tmpfs /var/lib && mkdir -p /var/lib/kubelet/device-plugins &&
mount --bind "$0" /var/lib/kubelet/device-plugins && exec "$@"
"""


@dataclass
class Plugin:
    """A running process and its log."""

    process: Started
    log: Path

    def events(self, name: str) -> list[dict[str, Any]]:
        # The last line may not be whole yet.
        lines = self.log.read_text().split("\n")[:-1]
        return [event for event in map(json.loads, lines) if event["event"] == name]

    async def logged(self, name: str, count: int = 1) -> list[dict[str, Any]]:
        await self.until(lambda: len(self.events(name)) >= count)
        return self.events(name)

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not holds():
                assert self.process.poll() is None, self.log.read_text()
                await asyncio.sleep(LOOK_S)

    async def get(self, path: str) -> httpx2.Response:
        [listening] = await self.logged("listening")
        async with httpx2.AsyncClient(trust_env=False, verify=NO_TLS) as client:
            return await client.get(f"http://127.0.0.1:{listening['port']}{path}")

    async def ended(self) -> int:
        return await asyncio.to_thread(self.process.wait, DEADLINE_S)

    async def stop(self, by: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(by)
        return await self.ended()

    def descriptors(self) -> int:
        return sum(1 for _ in Path(f"/proc/{self.process.pid}/fd").iterdir())

    def resident_kib(self) -> int:
        return resident_kib(self.process.pid)


@dataclass
class World:
    """A node's directories; kubelet and plugins come and go.

    enter: the command that runs plugins, as of `start_logged`.
    """

    directory: Path
    stack: ExitStack = field(default_factory=ExitStack)
    started: int = 0
    enter: tuple[str, ...] = ()

    @property
    def sockets(self) -> Path:
        return self.directory / "device-plugins"

    @property
    def run_dir(self) -> Path:
        return self.directory / "run"

    def names(self) -> set[str]:
        """Of sockets in kubelet's directory, its own not among them."""
        found = self.sockets.iterdir() if self.sockets.exists() else ()
        return {path.name for path in found if path.is_socket()} - {"kubelet.sock"}

    @asynccontextmanager
    async def kubelet(self) -> AsyncIterator[DeviceManager]:
        config = DeviceManagerConfig(
            plugin_dir=self.sockets, pod_resources=self.directory / "pod-resources.sock", seed=1
        )
        async with asyncio.timeout(DEADLINE_S), running_device_manager(config) as manager:
            yield manager

    def plugin(self, **settings: object) -> Plugin:
        """With a configuration file, by default of slots and mount; a free port for HTTP."""
        document = {
            "kubeletDir": str(self.sockets),
            "podResources": str(self.directory / "pod-resources.sock"),
            "runDir": str(self.run_dir),
            "listen": "127.0.0.1",
            "port": 0,
            "resources": [{"mode": "exact"}, {"mode": "mount"}],
            **settings,
        }
        path = self.directory / f"config-{self.started}.yaml"
        path.write_text(json.dumps(document))
        return self.start("--config", str(path))

    def in_default_directory(self, *arguments: str) -> Plugin:
        """Start it as its predecessors were: kubelet's directory is the default one. For root.

        In a network namespace of its own, since its port is the default one, which another test may have.
        """
        self.sockets.mkdir(exist_ok=True)
        return self.start(
            *arguments, before=("unshare", "-mn", "sh", "-c", IN_DEFAULT_DIRECTORY, str(self.sockets))
        )

    def start(self, *arguments: str, before: Sequence[str] = ()) -> Plugin:
        log = self.directory / f"plugin-{self.started}.log"
        self.started += 1
        with log.open("wb") as written:
            process = start_logged(["device-plugin", *arguments], written, enter=before or self.enter)
        self.stack.callback(_end, process)
        return Plugin(process, log)


def make_world() -> Iterator[World]:
    # Not pytest's own directory: the path of a Unix socket has 107 bytes.
    with tempfile.TemporaryDirectory(prefix="plugin-") as directory, ExitStack() as stack:
        yield World(Path(directory), stack)


async def follows(manager: DeviceManager, *resources: str) -> None:
    """Return once kubelet has a list of each of these, and of no others."""
    await manager.wait_for(
        lambda: {name for name, each in manager.capacity().items() if each.capacity} == set(resources)
    )


def _end(process: Started) -> None:
    if process.poll() is None:
        process.kill()
    process.wait(DEADLINE_S)
