"""Pods by annotation and by ResourceClaims on a real node, by a scheduler each: each counts its own alone."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import TYPE_CHECKING, NoReturn

import httpx2
import pytest

from cluster.extenders import registration
from cluster.test_real_dra import WHY_NOT, Cluster, build_dir, claims_cluster, container, program
from cluster.test_real_kubelet import with_address, with_cdi
from e2e.conftest import PLUGINS, require_plugins
from e2e.container_runtime import IMAGE
from e2e.node import LINK_MBPS, Node
from e2e.test_both_ways import expect
from e2e.test_rest import URL, serve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cni.call import Program
    from k8s_rdma.wire.report import NodeReport

__all__ = ["build_dir", "program"]

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)), with_cdi]

VFS, CLAIM_VFS = 16, 8
CLAIM_MBPS, STEP_MBPS = 400, 100
PODS, ENDED = 20, 4
"""Of each way: more than there is room for; and how many of these end, so that others start."""
SECOND = "rdma-scheduler"
POLL_S = 0.02


@pytest.fixture
def node(program: Program) -> Iterator[Node]:
    """Its first PF is for claims, the second is split, and the third for annotations."""
    require_plugins()
    names = tuple(f"enp1s0f{index}" for index in range(3))
    with Node(vfs=VFS, plugins=PLUGINS, shim=program.path, names=names) as node:
        yield with_address(node)


async def create_annotated(cluster: Cluster) -> None:
    for number in range(PODS):
        annotations = {"rdma_interfaces_required": json.dumps([{"min_tx_rate": STEP_MBPS}])}
        await cluster.kubelet.cluster.create_pod(
            f"annotation-{number}",
            annotations=annotations,
            schedulerName=SECOND,
            containers=[{"name": "c", "image": IMAGE, "imagePullPolicy": "Never"}],
            automountServiceAccountToken=False,
            enableServiceLinks=False,
            terminationGracePeriodSeconds=0,
        )


async def create_claimed(cluster: Cluster) -> None:
    for number in range(PODS):
        await cluster.create_claim(f"claim-{number}", f"{STEP_MBPS}M")
        await cluster.create_pod(f"claim-{number}", containers=[container("c", "net")])


def reserved(report: NodeReport) -> Counter[tuple[str, str]]:
    """Mb/s by PF and way."""
    sums: Counter[tuple[str, str]] = Counter()
    for allocation in report.allocations:
        way = allocation.pod.name.partition("-")[0]
        for interface in allocation.interfaces:
            sums[interface.pf, way] += interface.min_tx_rate
    return sums


async def until_full(cluster: Cluster, parts: Counter[tuple[str, str]], former: set[str]) -> list[str]:
    """Wait until pods other than these have filled all parts; their names. No others are bound then."""
    while True:
        report = cluster.node.try_report()
        names = {allocation.pod.name for allocation in report.allocations}
        attached = all(allocation.phase == "attached" for allocation in report.allocations)
        if attached and reserved(report) == parts and not names & former:
            break
        await asyncio.sleep(POLL_S)
    pods = (await cluster.get("/api/v1/namespaces/default/pods"))["items"]
    bound = {pod["metadata"]["name"] for pod in pods if "nodeName" in pod["spec"]}
    assert bound - former == names
    return sorted(names)


async def watch_sums(node: Node, parts: Counter[tuple[str, str]]) -> NoReturn:
    while True:
        assert reserved(node.try_report()) <= parts
        await asyncio.sleep(POLL_S)


async def test_each_way_fills_its_parts_under_two_schedulers(node: Node, tmp_path: Path):
    claims, split, annotation = node.pfs
    by_claim = {claims.pci: LINK_MBPS, split.pci: CLAIM_MBPS, annotation.pci: 0}
    by_annotation = {pci: LINK_MBPS - mbps for pci, mbps in by_claim.items()}
    ways = {"claim": by_claim, "annotation": by_annotation}
    parts = Counter({(pci, way): mbps for way, pfs in ways.items() for pci, mbps in pfs.items() if mbps})
    rule = {"names": [split.name], "claims": {"vfs": CLAIM_VFS, "mbps": CLAIM_MBPS}}
    async with claims_cluster(node, tmp_path, rules=(rule,)) as cluster:
        c = cluster.kubelet.cluster
        with httpx2.Client(base_url=URL, trust_env=False) as http:
            await asyncio.to_thread(serve, node, http)
        extender = await c.running_extender(nodePort=54005)
        second = registration(extender.url) | {"profiles": [{"schedulerName": SECOND}]}
        async with c.plane.scheduler(second), asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(watch_sums(node, parts))
            await asyncio.gather(create_annotated(cluster), create_claimed(cluster))
            first = await until_full(cluster, parts, set())
            by_way = ([name for name in first if name.startswith(way)] for way in ways)
            former = {name for names in by_way for name in names[:ENDED]}
            for name in former:
                await cluster.kubelet.delete_pod(name)
            names = await until_full(cluster, parts, former)
            watching.cancel()
        await asyncio.to_thread(expect, node, by_annotation, by_claim)
        for name in names:
            await cluster.kubelet.delete_pod(name)
