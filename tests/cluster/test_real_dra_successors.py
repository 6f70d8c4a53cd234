"""Pods that come before the end of one deleted by force, on a real kubelet: at no time do two have it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from cluster.test_real_dra import (
    CLAIMS,
    WHY_NOT,
    build_dir,
    claims_cluster,
    make_node,
    node,
    prepared_on,
    program,
)
from cluster.test_real_kubelet import verbs, with_cdi

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.node import Node

__all__ = ["build_dir", "make_node", "node", "program"]

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)), with_cdi]

GRACE_S, OUTLIVED_S = 5, 1.0


async def test_successor_of_a_pod_deleted_by_force_starts_when_that_has_ended(node: Node, tmp_path: Path):
    """The claim is free for the scheduler at once, and the container ignores SIGTERM."""
    async with claims_cluster(node, tmp_path) as cluster:
        await cluster.until_published()
        for name in ("p", "q"):
            await cluster.create_claim(name, "800M")
        await cluster.create_pod("p", terminationGracePeriodSeconds=GRACE_S)
        assert await cluster.interfaces("p") == {"rdma0": (800, 0)}
        await cluster.create_pod("q")
        await cluster.kubelet.event("q", "FailedScheduling")
        former = await cluster.uid("p")
        ending = asyncio.create_task(cluster.end_of(former))
        forced_s = time.monotonic()
        await cluster.delete_by_force("p")
        assert await cluster.interfaces("q") == {"rdma0": (800, 0)}
        assert await ending - forced_s > OUTLIVED_S
        events = (await cluster.get("/api/v1/namespaces/default/events"))["items"]
        assert "FailedPrepareDynamicResources" not in {event["reason"] for event in events}


async def test_successor_by_the_names_of_a_pod_deleted_by_force_starts_when_that_has_ended(
    node: Node, tmp_path: Path
):
    """Kubelet itself refuses the claim while an older one of its name is prepared, and tries again later."""
    async with claims_cluster(node, tmp_path) as cluster:
        await cluster.until_published()
        await cluster.create_claim("p", "800M")
        await cluster.create_pod("p", terminationGracePeriodSeconds=GRACE_S)
        assert await cluster.interfaces("p") == {"rdma0": (800, 0)}
        former = await cluster.uid("p")
        ending = asyncio.create_task(cluster.end_of(former))
        await cluster.delete_by_force("p")
        await cluster.kubelet.cluster.http.delete(f"{CLAIMS}/p")

        async def deleted() -> bool:
            return not await cluster.get(f"{CLAIMS}/p")

        assert cluster.kubelet.program is not None
        await cluster.kubelet.program.until(deleted)
        await cluster.create_claim("p", "800M")
        await cluster.create_pod("p")
        assert await cluster.interfaces("p") == {"rdma0": (800, 0)}
        await ending


async def test_successor_with_the_claim_of_a_pod_deleted_by_force_starts_when_that_has_ended(
    node: Node, tmp_path: Path
):
    """Kubelet counts both pods, and asks the driver neither for the new one nor at the end of the former."""
    async with claims_cluster(node, tmp_path) as cluster:
        await cluster.until_published()
        await cluster.create_claim("p", "800M")
        await cluster.create_pod("p", terminationGracePeriodSeconds=GRACE_S)
        assert await cluster.interfaces("p") == {"rdma0": (800, 0)}
        former = await cluster.uid("p")
        ending = asyncio.create_task(cluster.end_of(former))
        await cluster.delete_by_force("p")
        await cluster.create_pod("p")
        assert await cluster.interfaces("p") == {"rdma0": (800, 0)}
        await ending
        events = (await cluster.get("/api/v1/namespaces/default/events"))["items"]
        assert "FailedCreatePodSandBox" not in {event["reason"] for event in events}
        [allocation] = node.try_report().allocations
        look = cluster.kubelet.look(await cluster.kubelet.running("p"), "c")
        assert look.opens == {"rdma_cm", verbs(node)[allocation.interfaces[0].pci]}
        await cluster.when_status("p", "True")
        await cluster.kubelet.delete_pod("p")
        await cluster.kubelet.until(lambda: not node.try_report().allocations)
        await cluster.kubelet.until(lambda: not prepared_on(node))
        assert node.leftovers() == {}
