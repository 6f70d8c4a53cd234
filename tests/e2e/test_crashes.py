"""The remains when something dies, vanishes or interferes: processes, namespaces and disks are real."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import subprocess
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e.node import Node, pod
from k8s_rdma.linux.netlink.rtnl import Rtnl
from k8s_rdma_demo.cluster.cni_plugin import CniError
from k8s_rdma_demo.cluster.cni_runtime import AttachError, remove_namespace_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from k8s_rdma_demo.cluster.sandboxes import Sandbox

LEDGER_FAILURE = 112


def renamed(sandbox: Sandbox) -> None:
    _ip_inside(sandbox, "down")
    _ip_inside(sandbox, "name", "mine", "mtu", "1280", "address", "02:00:00:00:00:77")


def moved_home_by_hand(sandbox: Sandbox) -> None:
    _ip_inside(sandbox, "down")
    _ip_inside(sandbox, "name", "mine", "netns", str(os.getpid()))


def left_alone(sandbox: Sandbox) -> None:
    """For comparison."""


def _ip_inside(sandbox: Sandbox, *change: str) -> None:
    enter = ["nsenter", f"--net={sandbox.netns}"]
    subprocess.run([*enter, "ip", "link", "set", "dev", "eth0", *change], check=True)


@pytest.mark.parametrize("interfere", [left_alone, renamed, moved_home_by_hand])
def test_vfs_come_home_at_once_when_their_namespace_vanishes(
    make_node: Callable[[int], Node], interfere: Callable[[Sandbox], None]
) -> None:
    node = make_node(4)
    node.settings["reconcileS"] = 3600  # when the agent looks by itself
    node.start_agent()

    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        first = await runtime.add(pod("p", {"min_tx_rate": 100, "max_tx_rate": 200}, {}))
        second = await runtime.add(pod("q", {"min_tx_rate": 50}))
        for sandbox in (first, second):
            interfere(sandbox)
            remove_namespace_at(Path(sandbox.netns))
            node.wait("the ledger", lambda gone=sandbox.container_id: gone not in node.markers())
        assert node.leftovers() == {}
        await runtime.delete(first)
        await runtime.delete(second)

    asyncio.run(scenario())
    assert node.leftovers() == {}


@pytest.mark.parametrize("interfere", [renamed, moved_home_by_hand])
def test_del_restores_a_vf_from_any_state(node: Node, interfere: Callable[[Sandbox], None]) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        sandbox = await runtime.add(pod("p", {"min_tx_rate": 100}, {}))
        interfere(sandbox)
        await runtime.delete(sandbox)

    asyncio.run(scenario())
    assert node.leftovers() == {}


MOMENTS_S = [0.002 * number**2 for number in range(8)]
"""After the beginning of a call of some 100 ms: close together at first, when the claim is made."""


def test_agent_killed_at_any_moment_of_an_add_leaves_only_state_that_del_ends(node: Node) -> None:
    async def scenario(moment_s: float) -> None:
        runtime = node.runtime(chained=False)
        adding = asyncio.create_task(runtime.add(pod("p", *[{"min_tx_rate": 10}] * 8)))
        await asyncio.sleep(moment_s)
        node.kill_agent()
        left = None
        try:
            left = await adding
        except AttachError as failed:
            left = failed.leftover
        node.start_agent()
        if left is not None:
            await runtime.delete(left)

    for moment_s in MOMENTS_S:
        asyncio.run(scenario(moment_s))
        assert node.leftovers() == {}


def test_agent_killed_at_any_moment_of_a_del_leaves_only_state_that_the_next_ends(node: Node) -> None:
    async def scenario(moment_s: float) -> None:
        runtime = node.runtime(chained=False)
        sandbox = await runtime.add(pod("p", *[{"min_tx_rate": 10}] * 8))
        deleting = asyncio.create_task(runtime.detach(sandbox))
        await asyncio.sleep(moment_s)
        node.kill_agent()
        with suppress(CniError):
            await deleting
        node.start_agent()
        await runtime.delete(sandbox)

    for moment_s in MOMENTS_S:
        asyncio.run(scenario(moment_s))
        assert node.leftovers() == {}


def test_add_whose_executable_is_killed_is_undone_though_no_del_comes(node: Node) -> None:
    async def scenario(moment_s: float) -> None:
        runtime = node.runtime(chained=False)
        sandbox = await runtime.create(pod("p", *[{"min_tx_rate": 10}] * 8))
        adding = asyncio.create_task(runtime.attach(sandbox))
        await asyncio.sleep(moment_s)
        adding.cancel()  # kills it
        with suppress(asyncio.CancelledError):
            await adding
        await asyncio.to_thread(node.wait, "the end of it", lambda: node.leftovers() == {})
        remove_namespace_at(Path(sandbox.netns))

    for moment_s in MOMENTS_S:
        asyncio.run(scenario(moment_s))


def links_in(netns: str) -> set[str]:
    """By netlink, because a program starts so slowly that wrong links would be gone meanwhile."""
    namespace = os.open(netns, os.O_RDONLY)
    try:
        with Rtnl(namespace) as there:
            return {link.name for link in there.links()} - {"lo"}
    finally:
        os.close(namespace)


def test_del_after_a_killed_add_leaves_no_interface_now_or_later(node: Node) -> None:
    async def scenario(moment_s: float) -> None:
        runtime = node.runtime(chained=False)
        sandbox = await runtime.create(pod("p", *[{"min_tx_rate": 10}] * 8))
        adding = asyncio.create_task(runtime.attach(sandbox))
        await asyncio.sleep(moment_s)
        adding.cancel()  # kills it
        with suppress(asyncio.CancelledError):
            await adding
        await runtime.detach(sandbox)
        assert links_in(sandbox.netns) == set(), f"{moment_s * 1000} ms after its beginning"
        assert set(node.leftovers()) <= {"markers"}  # which goes when the ADD has been refused
        await asyncio.to_thread(node.wait, "the ADD's end", lambda: node.leftovers() == {})
        assert links_in(sandbox.netns) == set()
        remove_namespace_at(Path(sandbox.netns))

    for number in range(24):
        asyncio.run(scenario(0.001 * number))


@contextmanager
def small_disk(node: Node) -> Iterator[Path]:
    """The ledger's directory on a file system of its own, which is nearly full."""
    directory = node.directory / "state"
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", directory], check=True)
    try:
        yield directory
    finally:
        node.kill_agent()
        subprocess.run(["umount", directory], check=True)


def full(directory: Path) -> None:
    with suppress(OSError), (directory / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))


def read_only(directory: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", directory], check=True)


def free_again(directory: Path) -> None:
    (directory / "filler").unlink()


def writable_again(directory: Path) -> None:
    subprocess.run(["mount", "-o", "remount,rw", directory], check=True)


def test_node_whose_disk_is_full_gives_no_interface_and_takes_all_back(
    make_node: Callable[[int], Node],
) -> None:
    node = make_node(4)
    with small_disk(node) as directory:
        node.start_agent()

        async def scenario() -> None:
            runtime = node.runtime(chained=False)
            sandbox = await runtime.add(pod("p", {"min_tx_rate": 100}))
            held = node.kernel_state()
            full(directory)
            with pytest.raises(AttachError, match="file system is full") as refused:
                await runtime.add(pod("q", {"min_tx_rate": 100}))
            assert refused.value.code == LEDGER_FAILURE
            assert node.kernel_state() == held
            with suppress(CniError):
                await runtime.detach(sandbox)
            assert node.kernel_state() == node.pristine
            free_again(directory)
            await runtime.delete(sandbox)

        asyncio.run(scenario())
        assert node.leftovers() == {}


def test_ledger_that_cannot_be_written_is_no_reason_to_begin_anything(
    make_node: Callable[[int], Node],
) -> None:
    node = make_node(4)
    with small_disk(node) as directory:
        node.start_agent()
        node.kill_agent()
        read_only(directory)
        assert node.start("agent", node.config("agent", node.document())).wait(node.deadline_s) == 2
        assert "ledger.db: cannot be" in (node.directory / "agent.log").read_text()
        writable_again(directory)
        node.start_agent()
        assert node.leftovers() == {}


def test_ledger_of_a_newer_version_is_refused_with_both_versions(node: Node) -> None:
    node.kill_agent()
    ledger = node.directory / "state" / "ledger.db"
    with closing(sqlite3.connect(ledger)) as database:
        database.execute("PRAGMA user_version = 99")
    assert node.start("agent", node.config("agent", node.document())).wait(node.deadline_s) == 2
    said = (node.directory / "agent.log").read_text()
    assert re.search(r"of version 99, and this program knows versions up to \d+", said)
