"""Refused pods: the messages that their owners read, and when they are tried again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cluster.extenders import registration
from cluster.front import front, late
from cluster.world import cluster
from extender.node_server import pf, report

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

LEGACY = "RDMA Scheduler Extension: Node did not have enough free RDMA resources."


async def test_equal_refusals_are_counted_together(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1", "w2", "w3") as c:
        c.nodes["w3"].server.report = report("w3", pf(mbps=5_000))
        extender = await c.running_extender()
        async with c.plane.scheduler(registration(extender.url)):
            await c.create_pod("big", 20_000)
            told = await c.event("big", "FailedScheduling")
            assert told.startswith("0/3 nodes are available: ")
            assert f"2 {LEGACY}" in told
            assert f"1 {LEGACY}" in told
            pod = await c.when("big", lambda pod: bool(pod["status"].get("conditions")))
            said = {each["type"]: each for each in pod["status"]["conditions"]}["PodScheduled"]
            assert (said["status"], said["reason"], said["message"]) == ("False", "Unschedulable", told)


async def test_refusals_of_different_numbers_are_counted_together_if_they_have_only_causes(
    kind: str, tmp_path: Path
):
    async with cluster(kind, tmp_path, "w1", "w2", "w3") as c:
        c.nodes["w3"].server.report = report("w3", pf(mbps=5_000))
        extender = await c.running_extender(refusalDetail="cause")
        async with c.plane.scheduler(registration(extender.url)):
            await c.create_pod("big", 20_000)
            assert f"3 {LEGACY}" in await c.event("big", "FailedScheduling")


async def test_refused_pod_is_bound_once_the_node_gives_capacity_back(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1") as c:
        extender = await c.running_extender()
        node = c.nodes["w1"]
        async with front(extender) as service, c.plane.scheduler(registration(service.url)):
            first = (await c.create_pod("first", 8_000))["metadata"]["uid"]
            await c.bound("first")
            node.keeps.add(first)
            await c.create_pod("second", 8_000)
            await c.event("second", "FailedScheduling", LEGACY)
            await c.delete_pod("first")
            await c.gone("first")
            while service.pods("rdma_scheduling").count("second") < 2 or service.pending:
                await late(0.05)  # the pod is gone, its interfaces are not: tried again in vain
            tried = service.pods("rdma_scheduling").count("second")
            node.release(first)
            await c.bound("second")
            assert service.pods("rdma_scheduling").count("second") == tried + 1


async def test_malformed_annotation_is_reported_to_its_owner(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1") as c:
        extender = await c.running_extender()
        async with c.plane.scheduler(registration(extender.url)):
            meta = {"name": "odd", "namespace": "default", "annotations": {"rdma_interfaces_required": "[{"}}
            spec = {"containers": [{"name": "c", "image": "registry.invalid/c:1"}]}
            await c.create({"kind": "Pod", "apiVersion": "v1", "metadata": meta, "spec": spec})
            assert "rdma_interfaces_required" in await c.event("odd", "FailedScheduling")
