"""The device plugin beside a real kubelet and a real runtime."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from cluster.kubelet import ADDRESS, LOOK, Kubelet, obstacle, programs, scratch
from cluster.world import cluster
from e2e.conftest import build_dir, make_node, program
from e2e.containerd import Containerd

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from e2e.node import Node

__all__ = ["build_dir", "make_node", "program"]

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(obstacle() is not None, reason=str(obstacle()))]

NODES = {"uverbs0": (231, 192), "uverbs1": (231, 193), "umad0": (231, 0), "rdma_cm": (10, 122)}


@pytest.fixture
def node(make_node: Callable[[int], Node]) -> Node:
    node = make_node(4)
    node.ip("link", "add", "mgmt", "type", "bridge")
    node.ip("address", "add", f"{ADDRESS}/24", "dev", "mgmt")
    node.ip("link", "set", "mgmt", "up")
    return node


@asynccontextmanager
async def kubelet_of(node: Node, tmp_path: Path) -> AsyncIterator[Kubelet]:
    directory = node.directory / "c"
    containerd = Containerd(
        directory,
        plugins=node.cni_path,
        deadline_s=node.deadline_s,
        programs=programs(),
        prepare=scratch(directory, NODES),
        sources={"look": LOOK},
    )
    with containerd:
        containerd.use(node.runtime(chained=True).conflist)
        node.enter = containerd.entering
        node.start_agent()
        async with cluster("real", tmp_path) as world:
            kubelet = Kubelet(world, containerd, directory)
            try:
                await kubelet.start()
                yield kubelet
            finally:
                await kubelet.end()


async def test_kubelet_runs(node: Node, tmp_path: Path):
    async with kubelet_of(node, tmp_path) as kubelet:
        await kubelet.create_pod("p", {"name": "c"})
        pod = await kubelet.running("p")
        assert kubelet.look(pod, "c").opened == {}
