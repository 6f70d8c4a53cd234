"""The process whose directory for kubelet's sockets comes, goes, and comes again."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from deviceplugin.plugin_process import MOUNT, SLOTS, World, follows

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.anyio


async def test_plugin_waits_for_a_directory_and_a_kubelet_that_come_later(world: World) -> None:
    plugin = world.plugin()
    await plugin.logged("not_registered", 2)
    assert plugin.events("serving") == []
    world.sockets.mkdir()
    await plugin.logged("serving", 2)
    assert "kubelet is down" in (await plugin.get("/readyz")).text
    async with world.kubelet() as kubelet:
        await follows(kubelet, SLOTS, MOUNT)
        assert len(kubelet.registrations) == 2


async def test_directory_that_is_removed_and_made_again_is_registered_in(world: World) -> None:
    plugin = world.plugin()
    for _ in range(3):
        async with world.kubelet() as kubelet:
            await follows(kubelet, SLOTS, MOUNT)
        _remove(world.sockets)
    await plugin.logged("not_registered", 2)
    async with world.kubelet() as kubelet:
        await follows(kubelet, SLOTS, MOUNT)


async def test_directory_that_is_moved_away_is_not_followed(world: World) -> None:
    async with world.kubelet() as kubelet:
        world.plugin()
        await follows(kubelet, SLOTS, MOUNT)
    world.sockets.rename(world.directory / "moved")
    async with world.kubelet() as kubelet:
        await follows(kubelet, SLOTS, MOUNT)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a mount namespace of its own")
async def test_plugin_ends_when_its_mounted_directory_is_no_more(world: World) -> None:
    plugin = world.in_default_directory("--config", _config(world))
    await plugin.logged("serving")
    _remove(world.sockets)
    assert await plugin.ended() == 2
    assert plugin.log.read_text().splitlines()[-1] == (
        "k8s-rdma: /var/lib/kubelet/device-plugins: removed from the host while it is mounted here; start "
        "again"
    )


def _config(world: World) -> str:
    path = world.directory / "default.yaml"
    path.write_text("port: null\n")
    return str(path)


def _remove(directory: Path) -> None:
    """Though sockets are made again while it is done."""
    while directory.exists():
        shutil.rmtree(directory, ignore_errors=True)
