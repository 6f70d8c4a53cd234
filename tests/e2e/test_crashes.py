"""What is left when something dies, vanishes or interferes: processes, namespaces and disks are real."""

from __future__ import annotations

import asyncio
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e.node import Node, pod
from k8s_rdma.sim.cluster.network_namespace import remove_namespace_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from k8s_rdma.sim.cluster.sandbox import Sandbox

AT_ONCE_S = 3
"""For what takes about a second on a machine that does nothing else; what nobody tells of takes ten."""


def deleted_by_hand(sandbox: Sandbox) -> None:
    remove_namespace_at(Path(sandbox.netns))


def moved_to_the_host(sandbox: Sandbox) -> None:
    subprocess.run(
        ["nsenter", f"--net={sandbox.netns}", "ip", "link", "set", "eth0", "name", "mine"], check=True
    )
    deleted_by_hand(sandbox)


@pytest.mark.parametrize("interfere", [deleted_by_hand, moved_to_the_host])
def test_vfs_come_home_at_once_when_their_namespace_vanishes(
    node: Node, interfere: Callable[[Sandbox], None]
) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        first = await runtime.add(pod("p", {"min_tx_rate": 100, "max_tx_rate": 200}, {}))
        second = await runtime.add(pod("q", {"min_tx_rate": 50}))
        for sandbox in (first, second):
            interfere(sandbox)
            began = time.monotonic()
            node.wait("the ledger", lambda gone=sandbox.container_id: gone not in node.markers())
            assert time.monotonic() - began < AT_ONCE_S
        assert node.leftovers() == {}
        await runtime.delete(first)
        await runtime.delete(second)

    asyncio.run(scenario())
    assert node.leftovers() == {}
