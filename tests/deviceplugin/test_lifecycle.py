"""The process beside kubelets that come, go and are restarted."""

from __future__ import annotations

import asyncio
import signal
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

import grpc
import pytest

from deviceplugin.plugin_process import (
    DEADLINE_S,
    LOOK_S,
    MOUNT,
    MOUNT_SOCKET,
    SLOTS,
    SLOTS_SOCKET,
    Plugin,
    World,
    follows,
)
from k8s_rdma.kube.grpc_calls import call, connect
from k8s_rdma.wire.device_plugin import ALLOCATE, GET_DEVICE_PLUGIN_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.anyio

RESTARTS = 100


async def test_plugin_registers_all_resources_with_a_socket_each(world: World) -> None:
    async with world.kubelet() as kubelet:
        plugin = world.plugin()
        await follows(kubelet, SLOTS, MOUNT)
        assert world.names() == {SLOTS_SOCKET, MOUNT_SOCKET}
        assert {each.resource: each.options.preferred_allocation for each in kubelet.registrations} == {
            SLOTS: True,
            MOUNT: False,
        }
        assert kubelet.capacity()[MOUNT].capacity == 10_000
        assert await plugin.stop() == 0


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
async def test_plugin_leaves_no_socket_when_it_is_stopped(world: World, by: signal.Signals) -> None:
    async with world.kubelet() as kubelet:
        plugin = world.plugin()
        await follows(kubelet, SLOTS, MOUNT)
        assert await plugin.stop(by) == 0
        assert world.names() == set()
        await kubelet.wait_for(lambda: all(not each.allocatable for each in kubelet.capacity().values()))
    assert plugin.events("device_plugin_stopped")


async def test_plugin_registers_once_with_each_of_100_kubelets_and_does_not_grow(world: World) -> None:
    plugin = world.plugin()
    sizes = []
    for _ in range(RESTARTS):
        async with world.kubelet() as kubelet:
            await follows(kubelet, SLOTS, MOUNT)
            assert sorted(each.resource for each in kubelet.registrations) == [SLOTS, MOUNT]
            sizes.append((plugin.resident_kib(), plugin.descriptors()))
    assert await plugin.stop() == 0
    assert world.names() == set()
    (early_kib, early_files), (late_kib, late_files) = sizes[RESTARTS // 5], sizes[-1]
    assert late_kib < early_kib + 2048, sizes
    assert late_files <= early_files, sizes


async def test_plugin_registers_again_on_sighup(world: World) -> None:
    async with world.kubelet() as kubelet:
        plugin = world.plugin()
        await follows(kubelet, SLOTS, MOUNT)
        for times in range(2, 5):
            plugin.process.send_signal(signal.SIGHUP)
            await kubelet.wait_for(lambda: len(kubelet.registrations) == 2 * times)  # noqa: B023  awaited at once
            await plugin.logged("serving", 2 * times)
            await plugin.logged("renewing", times - 1)
            await _ready(plugin)
        assert world.names() == {SLOTS_SOCKET, MOUNT_SOCKET}


async def test_sighup_ends_no_plugin_that_only_begins(world: World) -> None:
    world.run_dir.mkdir()
    with _deaf_socket(world.run_dir / "state.sock", listening=True):  # the first look waits for its report
        plugin = world.plugin()
        await plugin.logged("listening")
        plugin.process.send_signal(signal.SIGHUP)
        await plugin.logged("device_plugin_ready")
        assert await plugin.stop() == 0


async def test_removed_sockets_are_made_again(world: World) -> None:
    async with world.kubelet() as kubelet:
        plugin = world.plugin()
        await follows(kubelet, SLOTS, MOUNT)
        (world.sockets / SLOTS_SOCKET).unlink()
        await kubelet.wait_for(lambda: len(kubelet.registrations) == 3)
        await _ready(plugin)
        assert world.names() == {SLOTS_SOCKET, MOUNT_SOCKET}


async def test_kubelet_that_does_not_answer_at_its_socket_is_tried_until_it_does(world: World) -> None:
    world.sockets.mkdir()
    with _deaf_socket(world.sockets / "kubelet.sock"):
        plugin = world.plugin()
        await plugin.until(
            lambda: sum("UNAVAILABLE" in each["why"] for each in plugin.events("not_registered")) >= 2
        )
        async with world.kubelet() as kubelet:
            await follows(kubelet, SLOTS, MOUNT)


async def test_socket_that_a_killed_predecessor_left_is_replaced(world: World) -> None:
    async with world.kubelet() as kubelet:
        killed = world.plugin()
        await follows(kubelet, SLOTS, MOUNT)
        await killed.stop(signal.SIGKILL)
        assert world.names() == {SLOTS_SOCKET, MOUNT_SOCKET}
        await kubelet.wait_for(lambda: all(not each.allocatable for each in kubelet.capacity().values()))
        plugin = world.plugin()
        await kubelet.wait_for(lambda: len(kubelet.registrations) == 4)
        await _ready(plugin)


async def test_successor_takes_over_and_its_sockets_outlive_the_predecessor(world: World) -> None:
    async with world.kubelet() as kubelet:
        predecessor = world.plugin()
        await follows(kubelet, SLOTS, MOUNT)
        successor = world.plugin()
        await kubelet.wait_for(lambda: len(kubelet.registrations) == 4)
        await predecessor.until(
            lambda: (
                sum("another process" in each["why"] for each in predecessor.events("not_registered")) >= 2
            )
        )
        assert (await predecessor.get("/readyz")).status_code == 503
        assert await predecessor.stop() == 0
        assert world.names() == {SLOTS_SOCKET, MOUNT_SOCKET}
        # Kubelet ends whichever registration a resource has when a call of the one before ends.
        await kubelet.wait_for(lambda: len(kubelet.registrations) == 6)
        await _ready(successor)
        assert await successor.stop() == 0


async def test_predecessor_serves_again_when_its_successor_is_gone(world: World) -> None:
    async with world.kubelet() as kubelet:
        predecessor = world.plugin()
        await follows(kubelet, SLOTS, MOUNT)
        successor = world.plugin()
        await successor.logged("registered", 2)
        await predecessor.logged("not_registered", 2)
        await successor.stop(signal.SIGKILL)
        await predecessor.logged("registered", 4)
        await _ready(predecessor)


async def test_resource_that_cannot_be_served_leaves_the_others_alone(world: World) -> None:
    (world.sockets / SLOTS_SOCKET).mkdir(parents=True)
    async with world.kubelet() as kubelet:
        plugin = world.plugin()
        await follows(kubelet, MOUNT)
        [failure] = await plugin.logged("not_registered")
        assert failure["resource"] == SLOTS
        assert str(world.sockets / SLOTS_SOCKET) in failure["why"]
        ready = await plugin.get("/readyz")
        assert ready.status_code == 503
        assert f"{SLOTS}: cannot serve" in ready.text
        (world.sockets / SLOTS_SOCKET).rmdir()
        await follows(kubelet, SLOTS, MOUNT)


async def test_unknown_device_is_refused_with_its_id(world: World) -> None:
    world.sockets.mkdir()
    plugin = world.plugin()
    await plugin.logged("serving", 2)
    async with connect(world.sockets / MOUNT_SOCKET) as channel:
        assert (await call(channel, GET_DEVICE_PLUGIN_OPTIONS, None, timeout_s=5)).pre_start_required is False
        for ids in (("slot-0", "slot-10000"), ("mlx5_7",), ("",), ("x" * 20_000,)):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(channel, ALLOCATE, (ids,), timeout_s=5)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert MOUNT in (refused.value.details() or "")
            assert ids[-1][:100] in (refused.value.details() or "") or ids[0] in (
                refused.value.details() or ""
            )


async def test_bytes_that_are_no_message_are_refused(world: World) -> None:
    world.sockets.mkdir()
    await world.plugin().logged("serving", 2)
    async with connect(world.sockets / MOUNT_SOCKET) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.unary_unary(ALLOCATE.path)(b"\xff\xff", timeout=5)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_path_too_long_for_a_socket_is_refused_by_field(world: World) -> None:
    plugin = world.plugin(kubeletDir=f"/{'x' * 80}")
    assert await plugin.ended() == 2
    assert "kubeletDir: the socket /xxx" in plugin.log.read_text()


async def test_port_in_use_is_refused(world: World) -> None:
    [listening] = await world.plugin().logged("listening")
    other = world.plugin(port=listening["port"])
    assert await other.ended() == 2
    assert f"cannot listen on 127.0.0.1, port {listening['port']}" in other.log.read_text()


@contextmanager
def _deaf_socket(path: Path, *, listening: bool = False) -> Iterator[None]:
    """As a killed process leaves it, or one that hangs."""
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(path))
        if listening:
            deaf.listen()
        yield


async def _ready(plugin: Plugin) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while (await plugin.get("/readyz")).status_code != 200:  # noqa: ASYNC110  no event
            await asyncio.sleep(LOOK_S)
