"""Restarts of parts that pods by ResourceClaims need, on a real kubelet: the driver, kubelet, the node."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from cluster.test_real_dra import (
    API,
    WHY_NOT,
    Cluster,
    build_dir,
    claims_cluster,
    container,
    make_node,
    node,
    program,
)
from cluster.test_real_kubelet import with_address, with_cdi

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    import httpx2

    from e2e.node import Node
    from k8s_rdma.wire.report import Allocation

__all__ = ["build_dir", "make_node", "node", "program"]

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)), with_cdi]

REPLACEMENTS = 4
PODS, PODS_PER_S = 40, 10
AGENT_AWAY_S = 20.0


async def test_slices_are_back_after_a_restart_of_kubelet_and_the_sandbox_keeps_its_vf(
    node: Node, tmp_path: Path
):
    async with claims_cluster(node, tmp_path) as cluster:
        await cluster.until_published()
        await cluster.create_claim("p", "400M")
        await cluster.create_pod("p", restartPolicy="Always")
        await cluster.interfaces("p")
        [before] = node.try_report().allocations
        await cluster.kubelet.end()
        await cluster.kubelet.start()
        await cluster.until_published()
        await cluster.create_claim("q", "400M")
        await cluster.create_pod("q")
        assert await cluster.interfaces("q") == {"rdma0": (400, 0)}
        [after] = [each for each in node.try_report().allocations if each.pod.name == "p"]
        assert after.interfaces == before.interfaces


@pytest.mark.parametrize("restarted", ["nobody", "kubelet", "runtime"])
async def test_new_sandbox_of_a_pod_has_the_same_vf_and_mac_after_any_restart(
    node: Node, tmp_path: Path, restarted: str
):
    async with claims_cluster(node, tmp_path) as cluster:
        await cluster.until_published()
        await cluster.create_claim("p", "400M")
        await cluster.create_pod("p", restartPolicy="Always")
        await cluster.interfaces("p")
        [before] = node.try_report().allocations
        if restarted == "kubelet":
            await cluster.kubelet.end()
            await cluster.kubelet.start()
        elif restarted == "runtime":
            await asyncio.to_thread(cluster.kubelet.restart_runtime)
        await asyncio.to_thread(cluster.kubelet.stop_sandboxes)
        await cluster.kubelet.until(lambda: in_another_sandbox(node, before))
        assert await cluster.interfaces("p") == {"rdma0": (400, 0)}
        [after] = node.try_report().allocations
        assert after.interfaces == before.interfaces


def in_another_sandbox(node: Node, before: Allocation) -> bool:
    return [each.container_id for each in node.try_report().allocations] not in ([], [before.container_id])


async def test_pod_starts_once_the_agent_is_back_without_a_failed_preparation(node: Node, tmp_path: Path):
    """Kubelet would try a preparation that failed again after 76 to 89 s."""
    async with claims_cluster(node, tmp_path) as cluster:
        await cluster.until_published()
        node.kill_agent()
        await cluster.create_claim("p", "400M")
        await cluster.create_pod("p")
        await asyncio.sleep(AGENT_AWAY_S)
        await asyncio.to_thread(node.start_agent)
        assert await cluster.interfaces("p") == {"rdma0": (400, 0)}
        events = (await cluster.get("/api/v1/namespaces/default/events"))["items"]
        assert "FailedPrepareDynamicResources" not in {event["reason"] for event in events}


async def test_pods_start_while_the_driver_is_replaced(node: Node, tmp_path: Path):
    async with claims_cluster(node, tmp_path) as cluster:
        await cluster.until_published()
        for index in range(REPLACEMENTS):
            name = f"p{index}"
            await cluster.create_claim(name, "400M")
            former = await cluster.replace_driver()
            await cluster.create_pod(name)
            former.terminate()
            assert await cluster.interfaces(name) == {"rdma0": (400, 0)}
            assert len(await cluster.slices()) == 1
            await cluster.kubelet.delete_pod(name)
            assert await asyncio.to_thread(former.wait, 30) == 0
        events = (await cluster.get("/api/v1/namespaces/default/events"))["items"]
        assert "FailedPrepareDynamicResources" not in {event["reason"] for event in events}
        [slice_] = await cluster.slices()
        assert slice_["spec"]["pool"]["generation"] == 1


async def test_pods_start_at_ten_a_second_while_drivers_are_rolled(
    make_node: Callable[[int], Node], tmp_path: Path
):
    """By surge, as the chart's DaemonSet does it: the former one ends when kubelet has the new one."""
    node = with_address(make_node(PODS))
    async with claims_cluster(node, tmp_path) as cluster:
        await cluster.until_published()
        names = [f"p{index}" for index in range(PODS)]
        for name in names:
            await cluster.create_claim(name, "10M")
        async with slice_events(cluster.kubelet.cluster.http) as changes:
            creating = asyncio.create_task(create_pods(cluster, names))
            rolled = 0
            while not creating.done() or rolled < REPLACEMENTS:
                former = await cluster.replace_driver()
                former.terminate()
                rolled += 1
                assert await asyncio.to_thread(former.wait, 30) == 0
            await creating
            for name in names:
                assert await cluster.interfaces(name) == {"rdma0": (10, 0)}
            assert "DELETED" not in changes
        events = (await cluster.get("/api/v1/namespaces/default/events"))["items"]
        assert "FailedPrepareDynamicResources" not in {event["reason"] for event in events}
        [slice_] = await cluster.slices()
        assert slice_["spec"]["pool"]["generation"] == 1


async def test_pod_has_its_vf_again_after_a_reboot_and_slices_are_back_once_kubelet_knows_the_driver(
    node: Node, tmp_path: Path
):
    """Everything in memory is lost, the ledger and kubelet's files are not; kubelet deletes the slices."""
    async with claims_cluster(node, tmp_path) as cluster:
        await cluster.until_published()
        await cluster.create_claim("p", "400M")
        await cluster.create_pod("p", restartPolicy="Always")
        await cluster.interfaces("p")
        [before] = node.try_report().allocations
        async with slice_events(cluster.kubelet.cluster.http) as changes:
            await reboot(cluster)
            await cluster.kubelet.until(lambda: len(changes) > 1)
            assert changes == ["DELETED", "ADDED"]
        await cluster.kubelet.until(
            lambda: logged_at(node, "driver_registered") < logged_at(node, "slices_published")
        )
        await cluster.kubelet.until(lambda: bool(node.try_report().allocations))
        assert await cluster.interfaces("p") == {"rdma0": (400, 0)}
        [after] = node.try_report().allocations
        assert after.interfaces == before.interfaces


def logged_at(node: Node, event: str) -> datetime:
    """The time of the last line of an event in the driver's log."""
    lines, _, _ = (node.directory / "device-plugin.log").read_text().rpartition("\n")
    found = [entry for entry in map(json.loads, lines.splitlines()) if entry["event"] == event]
    return datetime.fromisoformat(found[-1]["timestamp"])


async def reboot(cluster: Cluster) -> None:
    """An orderly one: the runtime stops sandboxes while the agent is there."""
    node = cluster.node
    await cluster.kubelet.end()
    await asyncio.to_thread(cluster.kubelet.reboot)
    for process in (cluster.driver, node.agent):
        assert process is not None
        process.terminate()
        assert await asyncio.to_thread(process.wait, 30) == 0
    shutil.rmtree(node.run_dir)
    await asyncio.to_thread(node.start_agent)
    cluster.driver = node.start("device-plugin", cluster.config)
    await cluster.kubelet.start()


async def create_pods(cluster: Cluster, names: list[str]) -> None:
    """Create pods at a steady rate."""
    started_s = time.monotonic()
    for index, name in enumerate(names):
        await asyncio.sleep(max(0.0, started_s + index / PODS_PER_S - time.monotonic()))
        await cluster.create_pod(name, containers=[container("c", "net")])


@asynccontextmanager
async def slice_events(http: httpx2.AsyncClient) -> AsyncIterator[list[str]]:
    """Collect the kinds of events of ResourceSlices meanwhile."""
    found: list[str] = []
    listed = await http.get(f"{API}/resourceslices")
    version = listed.json()["metadata"]["resourceVersion"]

    async def watch() -> None:
        path = f"{API}/resourceslices?watch=1&resourceVersion={version}"
        async with http.stream("GET", path, timeout=None) as events:
            async for line in events.aiter_lines():
                kind = json.loads(line)["type"]
                found.append(kind)

    watching = asyncio.create_task(watch())
    try:
        yield found
        assert not watching.done()
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
