"""Registrations with a real kubelet: when its call ends, it forgets the endpoint that is there by then."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from cluster.kubelet import obstacle
from cluster.test_real_kubelet import (
    OF_DEVICE,
    SEEN,
    asks,
    build_dir,
    kubelet_of,
    make_node,
    node,
    program,
)
from k8s_rdma.config.devices import ExclusiveResource
from k8s_rdma.deviceplugin.directory_watch import DirectoryWatch
from k8s_rdma.deviceplugin.modes import mode_of
from k8s_rdma.deviceplugin.plugin_server import SETTLE_S, PluginServer
from k8s_rdma.deviceplugin.resource import Resource
from k8s_rdma_demo.kubelet.device_manager import in_background

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from e2e.node import Node
    from k8s_rdma.core.devices.pod_devices import Choice

__all__ = ["build_dir", "make_node", "node", "program"]

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(obstacle() is not None, reason=str(obstacle()))]

TIMES = 20
DEADLINE_S = 20


class Seen:
    inventory = SEEN


async def as_it_is(_resource: str, choice: Choice) -> Choice:
    return choice


@asynccontextmanager
async def offered(directory: Path) -> AsyncIterator[PluginServer]:
    """Exclusive devices, followed by the kubelet of a directory."""
    resource = Resource(mode_of(ExclusiveResource()), Seen(), as_it_is)
    resource.update()
    keeper = PluginServer(resource, directory)
    async with in_background(DirectoryWatch((directory,), keeper.wake).run()), in_background(keeper.run()):
        await followed(keeper, 1)
        yield keeper


async def followed(keeper: PluginServer, registrations: int) -> None:
    """Return once kubelet follows the last of so many registrations."""
    taken = keeper.resource.counts.registrations
    async with asyncio.timeout(DEADLINE_S):
        while keeper.problem or taken[True] < registrations:  # noqa: ASYNC110  no event for it
            await asyncio.sleep(SETTLE_S / 10)


async def test_resource_that_is_registered_anew_is_given_to_pods(node: Node, tmp_path: Path) -> None:
    async with kubelet_of(node, tmp_path) as kubelet, offered(kubelet.plugins) as keeper:
        for times in range(TIMES):
            keeper.renew()
            await followed(keeper, times + 2)
        await asyncio.sleep(5 * SETTLE_S)
        assert keeper.resource.counts.registrations == {True: TIMES + 1}, "none was forgotten afterwards"
        await kubelet.create_pod("p", asks("c"))
        assert kubelet.look(await kubelet.running("p"), "c").opens in OF_DEVICE.values()


async def test_successor_is_given_to_pods_after_its_predecessor_ended(node: Node, tmp_path: Path) -> None:
    async with kubelet_of(node, tmp_path) as kubelet, AsyncExitStack() as predecessors:
        await predecessors.enter_async_context(offered(kubelet.plugins))
        async with offered(kubelet.plugins) as successor:
            await predecessors.aclose()
            await followed(successor, 2)
            await kubelet.create_pod("p", asks("c"))
            assert kubelet.look(await kubelet.running("p"), "c").opens in OF_DEVICE.values()
