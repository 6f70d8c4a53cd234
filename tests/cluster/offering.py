"""Resources of the device plugin, served in this process, of devices that a scenario thinks of."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from k8s_rdma.deviceplugin.directory_watch import DirectoryWatch
from k8s_rdma.deviceplugin.plugin_server import PluginServer
from k8s_rdma.deviceplugin.resource import Resource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from k8s_rdma.core.devices.pod_devices import Choice
    from k8s_rdma.core.devices.rdma_devices import DeviceInventory
    from k8s_rdma.deviceplugin.modes import Mode


class Offering:
    """Resources of one kubelet.

    before_choice: a step before kubelet learns which devices are best.
    """

    def __init__(self, modes: tuple[Mode, ...], seen: DeviceInventory, directory: Path) -> None:
        self.before_choice: Callable[[], Awaitable[None]] | None = None
        self.inventory = seen
        self._keepers = [PluginServer(Resource(mode, self, self._complete), directory) for mode in modes]
        self._watch = DirectoryWatch((directory,), self._wake)

    def see(self, seen: DeviceInventory) -> None:
        """The devices are so from now on."""
        self.inventory = seen
        for keeper in self._keepers:
            if keeper.resource.update():
                keeper.publish()

    async def run(self) -> None:
        """Until cancelled."""
        for keeper in self._keepers:
            keeper.resource.update()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch.run())
            for keeper in self._keepers:
                tasks.create_task(keeper.run())

    def _wake(self) -> None:
        for keeper in self._keepers:
            keeper.wake()

    async def _complete(self, _resource: str, choice: Choice) -> Choice:
        if self.before_choice is not None:
            await self.before_choice()
        return choice


@asynccontextmanager
async def offering(directory: Path, seen: DeviceInventory, *modes: Mode) -> AsyncIterator[Offering]:
    """Offer these to the kubelet of a directory for as long as the block lasts."""
    made = Offering(modes, seen, directory)
    running = asyncio.create_task(made.run())
    try:
        yield made
        assert not running.done(), running.exception()
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
