from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from deviceplugin.inventories import seen
from k8s_rdma.config.devices import MountResource
from k8s_rdma.core.devices.rdma_devices import DeviceInventory
from k8s_rdma.deviceplugin.modes import mode_of
from k8s_rdma.deviceplugin.plugin_server import FIRST_RETRY_S, PluginServer
from k8s_rdma.deviceplugin.resource import Resource, socket_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from k8s_rdma.core.devices.pod_devices import Choice

MODE = mode_of(MountResource())


@dataclass
class Moment:
    """A clock that stands, and the devices seen at that time."""

    now_s: float = 100.0
    seen: DeviceInventory = field(default_factory=seen)

    def __call__(self) -> float:
        return self.now_s


async def as_it_is(_resource: str, choice: Choice) -> Choice:
    return choice


@asynccontextmanager
async def running(keeper: PluginServer) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(keeper.run())
        yield
        task.cancel()


async def turns() -> None:
    """Let tasks do all that they can do at once."""
    for _ in range(20):
        await asyncio.sleep(0)


def names(directory: Path) -> list[str]:
    return [each.name for each in directory.iterdir()]


def stirred_ns(directory: Path) -> int:
    """When something came to it or went last."""
    return directory.stat().st_mtime_ns


@pytest.mark.anyio
async def test_attempt_to_serve_that_failed_is_not_followed_by_the_next_at_once(tmp_path: Path) -> None:
    name = socket_name(MODE.resource)
    (tmp_path / name).mkdir()
    clock = Moment()
    keeper = PluginServer(Resource(MODE, clock, as_it_is), tmp_path, clock=clock)
    async with asyncio.timeout(120), running(keeper):
        while "Is a directory" not in keeper.problem:  # noqa: ASYNC110  no event
            await asyncio.sleep(0)
        before_ns = stirred_ns(tmp_path)
        for _ in range(5):  # as the kernel wakes it for the attempt's own changes
            keeper.wake()
            await turns()
        assert stirred_ns(tmp_path) == before_ns
        (tmp_path / name).rmdir()
        clock.now_s += FIRST_RETRY_S
        keeper.wake()
        while names(tmp_path) != [name]:  # noqa: ASYNC110  no event
            await asyncio.sleep(0)
    assert names(tmp_path) == []
