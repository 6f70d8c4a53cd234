"""Lists of the device plugin: 8 resources of 10,000 devices, each on its socket, as kubelet asks for them.

Budget: all of them within 50 ms, over connections that are there as kubelet's are when it asks. Beside it, in
turns, bare gRPC servers in one process send the same bytes, which they have ready; the client is the same.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deviceplugin.plugin_process import Plugin, World, make_world
from k8s_rdma.config.devices import MountResource
from k8s_rdma.core.devices.rdma_devices import DeviceInventory
from k8s_rdma.deviceplugin.modes import mode_of
from k8s_rdma.deviceplugin.resource import Resource
from k8s_rdma.kube.grpc_calls import connect
from k8s_rdma.wire.device_plugin import LIST_AND_WATCH

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import grpc.aio

    from conftest import Record
    from k8s_rdma.core.devices.pod_devices import Choice

RESOURCES, DEVICES = 8, 10_000
BUDGET_MS = 50
ROUNDS = 31
CHANGES = 9
BARE = Path(__file__).with_name("bare_plugin.py")
WHAT = f"device plugin, {RESOURCES} resources of {DEVICES:,} devices"


class Client:
    """Asks for the lists of all sockets at a time; bytes are not decoded."""

    def __init__(self, sockets: Sequence[Path], opened: AsyncExitStack) -> None:
        self._sockets = sockets
        self._opened = opened
        self._channels: list[grpc.aio.Channel] = []

    async def lists(self) -> tuple[float, list[bytes]]:
        """Return the time that all lists take, in ms, and the lists."""
        if not self._channels:
            await self._connect()
        began = time.perf_counter()
        calls = [channel.unary_stream(LIST_AND_WATCH.path)(b"") for channel in self._channels]
        lists: list[Any] = await asyncio.gather(*(call.read() for call in calls))
        took_ms = (time.perf_counter() - began) * 1000
        for call in calls:
            call.cancel()
        return took_ms, lists

    async def _connect(self) -> None:
        for path in self._sockets:
            channel = await self._opened.enter_async_context(connect(path))
            await channel.channel_ready()
            self._channels.append(channel)


def started(world: World) -> Plugin:
    world.sockets.mkdir()
    resources = [
        {"mode": "mount", "name": f"bench.io/r{each}", "count": DEVICES} for each in range(RESOURCES)
    ]
    return world.plugin(resources=resources)


async def first_lists(plugin: Plugin, world: World) -> list[bytes]:
    """Return the lists of the plugin."""
    await plugin.logged("serving", RESOURCES)
    async with AsyncExitStack() as opened:
        client = Client(sockets(world.sockets), opened)
        _, lists = await client.lists()
    assert [each.count(b"Unhealthy") + each.count(b"Healthy") for each in lists] == [DEVICES] * RESOURCES
    return lists


async def compared(*directories: Path) -> list[float]:
    """Return the median of each, in ms."""
    async with AsyncExitStack() as opened:
        clients = [Client(sockets(directory), opened) for directory in directories]
        rounds = [[(await client.lists())[0] for client in clients] for _ in range(ROUNDS)]
    return [statistics.median(took) for took in zip(*rounds, strict=True)]


def sockets(directory: Path) -> list[Path]:
    """Return the sockets of all resources."""
    return sorted(directory.glob("*.sock"))


@contextmanager
def bare_servers(lists: Sequence[bytes]) -> Iterator[Path]:
    """Yield a directory with their sockets."""
    with tempfile.TemporaryDirectory(prefix="bare-") as directory:
        for index, each in enumerate(lists):
            (Path(directory) / f"{index}.list").write_bytes(each)
        program = [sys.executable, str(BARE), directory]
        with subprocess.Popen(program, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                process.stdout.readline()
                yield Path(directory)
            finally:
                process.kill()


def test_lists(record: Record) -> None:
    for world in make_world():
        began = time.perf_counter()
        plugin = started(world)
        asyncio.run(plugin.logged("serving", RESOURCES))
        start_ms = (time.perf_counter() - began) * 1000
        with bare_servers(asyncio.run(first_lists(plugin, world))) as bare:
            ours_ms, bare_ms = asyncio.run(compared(world.sockets, bare))
        record(f"{WHAT}: all lists", budget=BUDGET_MS, measured=ours_ms, unit="ms")
        record(
            f"{WHAT}: all lists, beside a bare gRPC server",
            budget=None,
            measured=ours_ms / bare_ms,
            unit="times",
            note=f"which takes {bare_ms:.1f} ms for the same bytes",
        )
        record(f"{WHAT}: from its start until it serves", budget=None, measured=start_ms, unit="ms")
        resident_mib = plugin.resident_kib() / 1024
        record(f"{WHAT}: resident memory", budget=None, measured=resident_mib, unit="MiB")


class Seen:
    """A monitor that sees the inventory that the benchmark sets."""

    def __init__(self, seen: DeviceInventory) -> None:
        self.seen = seen


async def as_it_is(_resource: str, choice: Choice) -> Choice:
    return choice


def test_change(record: Record) -> None:
    seen = Seen(DeviceInventory(directory=True, rdma_cm=True))
    modes = [mode_of(MountResource(name=f"bench.io/r{each}", count=DEVICES)) for each in range(RESOURCES)]
    resources = [Resource(mode, seen, as_it_is) for mode in modes]
    took_ms = []
    for _ in range(CHANGES):
        began = time.perf_counter()
        assert all([resource.update() for resource in resources])  # noqa: C419  each is to look
        took_ms.append((time.perf_counter() - began) * 1000)
        seen.seen = replace(seen.seen, directory=not seen.seen.directory)
    record(
        f"{WHAT}: all of them fall ill or get well, and lists encoded",
        budget=None,
        measured=statistics.median(took_ms),
        unit="ms",
    )
