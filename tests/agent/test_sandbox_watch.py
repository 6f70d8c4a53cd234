"""When the agent hears that a sandbox vanished, on real directories."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agent.machine import Machine, asks, call
from k8s_rdma.agent.sandbox_watch import SandboxWatch
from k8s_rdma.linux.netns import Namespaces

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from k8s_rdma.agent.node import Node


@contextmanager
def watched(node: Node, root: Path) -> Iterator[tuple[SandboxWatch, list[str]]]:
    calls: list[str] = []
    watch = SandboxWatch(node=node, on_host=Namespaces(root).on_host, vanished=lambda: calls.append("gone"))
    loop = asyncio.get_running_loop()
    watch.start(loop)
    try:
        yield watch, calls
    finally:
        watch.stop(loop)


async def settled() -> None:
    """Wait until all events that are readable by now have been read."""
    for _ in range(3):
        await asyncio.sleep(0)


def test_only_a_sandbox_with_a_receipt_is_reported_when_its_file_is_deleted(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    netns = tmp_path / "host" / "run" / "netns"
    netns.mkdir(parents=True)

    async def scenario() -> None:
        with machine.running() as (node, verbs), watched(node, tmp_path / "host") as (watch, calls):
            for name in ("mine", "other"):
                (netns / name).touch()
            sandbox = machine.hardware.create_namespace("/var/run/netns/mine")
            await verbs.add(call("ADD"), sandbox, machine.stdin(asks({})))
            watch.follow()
            assert calls == ["gone"]  # perhaps before it was watched
            calls.clear()
            watch.follow()
            (netns / "other").unlink()
            await settled()
            assert calls == []
            (netns / "mine").unlink()
            await settled()
            assert calls == ["gone"]

    asyncio.run(scenario())


def test_sandboxes_of_receipts_are_watched_from_the_start(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    netns = tmp_path / "host" / "run" / "netns"
    netns.mkdir(parents=True)
    (netns / "mine").touch()
    sandbox = machine.hardware.create_namespace("/run/netns/mine")

    async def before() -> None:
        with machine.running() as (_, verbs):
            await verbs.add(call("ADD"), sandbox, machine.stdin(asks({})))

    async def after() -> None:
        with machine.running() as (node, _), watched(node, tmp_path / "host") as (_, calls):
            calls.clear()
            (netns / "mine").unlink()
            await settled()
            assert calls == ["gone"]

    asyncio.run(before())
    asyncio.run(after())
