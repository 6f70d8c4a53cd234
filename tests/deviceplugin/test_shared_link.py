"""Shared resources by CDI, beside an agent that is played on a real socket."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.config.devices import MountResource, SharedResource
from k8s_rdma.core.devices.rdma_devices import CharacterDevice, DeviceInventory, NodeKind, RdmaDevice
from k8s_rdma.deviceplugin.main import SharedLink
from k8s_rdma.deviceplugin.modes import mode_of
from k8s_rdma.deviceplugin.resource import Observable
from k8s_rdma.wire.cdi import Declared, Written, decode_declared, encode_line
from k8s_rdma_demo.kubelet.device_manager import in_background

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

DEADLINE_S = 120
HCA = SharedResource(name="rdma/hca", count=3, cdi=True)
VERBS = CharacterDevice(kind=NodeKind.UVERBS, path="/dev/infiniband/uverbs0", major=231, minor=192)


class Devices:
    def __init__(self, *names: str) -> None:
        self.show(*names)

    def show(self, *names: str, verbs: CharacterDevice = VERBS) -> None:
        self.inventory = DeviceInventory(
            devices={name: RdmaDevice(name=name, nodes=(verbs,)) for name in names}
        )


@dataclass
class PlayedAgent:
    socket: Path
    answer: Written = field(default_factory=lambda: Written(resources=("rdma/hca",)))
    declared: asyncio.Queue[Declared] = field(default_factory=asyncio.Queue)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        writers: list[asyncio.StreamWriter] = []

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)
            while line := await reader.readline():
                self.declared.put_nowait(decode_declared(line))
                writer.write(encode_line(self.answer))
            writer.close()

        server = await asyncio.start_unix_server(talk, self.socket)
        try:
            yield
        finally:
            server.close()
            for writer in writers:
                writer.close()
            self.socket.unlink(missing_ok=True)  # asyncio removes it itself from Python 3.13 on

    async def told(self) -> dict[str, tuple[str, ...]]:
        async with asyncio.timeout(DEADLINE_S):
            return (await self.declared.get()).resources


class Linked:
    """A link, and its reports."""

    def __init__(self, socket: Path, devices: Devices, *resources: object, **settings: float) -> None:
        modes = [mode_of(each) for each in resources]
        self.mode = modes[0]
        self.published = Observable[frozenset[str]](frozenset())
        self.link = SharedLink(socket, devices, modes, changed=self._changed, **settings)
        self.link.update()

    def _changed(self) -> None:
        self.published.publish(self.link.inventory.published)

    async def other_than(self, published: frozenset[str]) -> frozenset[str]:
        async with asyncio.timeout(DEADLINE_S):
            while self.published.value == published:
                await self.published.wait_for_change(self.published.value)
            return self.published.value

    def health(self) -> set[str]:
        return {each.unhealthy for each in self.mode.offer(self.link.inventory)}


async def test_resource_is_healthy_while_the_agent_has_written_its_specification(tmp_path: Path) -> None:
    agent, devices = PlayedAgent(tmp_path / "cdi.sock"), Devices("mlx5_0")
    linked = Linked(agent.socket, devices, HCA)
    assert linked.health() == {"the agent has not written its CDI specification"}
    async with agent.running(), in_background(linked.link.run()):
        await linked.link.wait_for_attempt()
        assert await agent.told() == {"rdma/hca": ("mlx5_0",)}
        assert linked.health() == {""}
        assert linked.link.inventory is linked.link.inventory
        devices.show("mlx5_0", "mlx5_1")
        linked.link.update()
        assert await agent.told() == {"rdma/hca": ("mlx5_0", "mlx5_1")}
        assert linked.health() == {""}


async def test_devices_are_declared_again_when_a_device_has_other_nodes(tmp_path: Path) -> None:
    """Its driver came back with other numbers, and the declared ones are another device's by now."""
    agent, devices = PlayedAgent(tmp_path / "cdi.sock"), Devices("mlx5_0")
    linked = Linked(agent.socket, devices, HCA)
    async with agent.running(), in_background(linked.link.run()):
        assert await agent.told() == {"rdma/hca": ("mlx5_0",)}
        devices.show("mlx5_0", verbs=replace(VERBS, path="/dev/infiniband/uverbs3", minor=195))
        linked.link.update()
        assert await agent.told() == {"rdma/hca": ("mlx5_0",)}


async def test_failed_write_is_requested_again(tmp_path: Path) -> None:
    agent = PlayedAgent(tmp_path / "cdi.sock", answer=Written(failed={"rdma/hca": "the disk is full"}))
    linked = Linked(agent.socket, Devices("mlx5_0"), HCA)
    async with agent.running(), in_background(linked.link.run()):
        await linked.link.wait_for_attempt()
        assert linked.health() == {"the agent has not written its CDI specification"}
        agent.answer = Written(resources=("rdma/hca",))
        assert await linked.other_than(frozenset()) == {"rdma_hca"}


async def test_agent_may_be_started_again(tmp_path: Path) -> None:
    agent = PlayedAgent(tmp_path / "cdi.sock")
    linked = Linked(agent.socket, Devices("mlx5_0"), HCA)
    async with in_background(linked.link.run()):
        for _ in range(2):
            async with agent.running():
                assert await agent.told() == {"rdma/hca": ("mlx5_0",)}
                await linked.link.wait_for_attempt()
        assert linked.health() == {""}, "the specification stays, and the agent may be back soon"


async def test_agent_that_is_away_for_long_counts_as_without_files(tmp_path: Path) -> None:
    agent = PlayedAgent(tmp_path / "cdi.sock")
    linked = Linked(agent.socket, Devices("mlx5_0"), HCA, grace_s=0.2)
    async with in_background(linked.link.run()):
        async with agent.running():
            written = await linked.other_than(frozenset())
        assert linked.health() == {""}
        assert await linked.other_than(written) == frozenset()
        assert linked.health() == {"the agent has not written its CDI specification"}
        async with agent.running():
            assert await linked.other_than(frozenset()) == written


async def test_agent_is_not_called_if_no_resource_is_shared_by_cdi(tmp_path: Path) -> None:
    linked = Linked(
        tmp_path / "cdi.sock", Devices("mlx5_0"), MountResource(), SharedResource(name="a/b", count=1)
    )
    async with asyncio.timeout(DEADLINE_S):
        await linked.link.wait_for_attempt()
        await linked.link.run()
