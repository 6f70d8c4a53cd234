"""NUMA nodes as lists (gate DRAListTypeAttributes): how API server and kube-scheduler treat them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

from claim_cases import claim, devices, request
from cluster.control_plane import write_kubeconfig
from cluster.real import obstacle, real
from cluster.test_claims_diagnosis import SCHEDULER, is_decided
from cluster.test_dra_policies import API, CLAIMS
from cluster.test_resource_slices import NODE, SLICES
from cluster.world import cluster
from deviceplugin.offered_pf import offer
from k8s_rdma.deviceplugin.resource_slices import SlicePublisher
from k8s_rdma.kube.client import connect
from k8s_rdma.wire.claims import DRIVER, Offers
from k8s_rdma_demo.kubelet.device_manager import in_background

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from cluster.control_plane import Json
    from cluster.world import Cluster

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(bool(obstacle()), reason=f"no real cluster: {obstacle()}"),
]
GATE = "DRAListTypeAttributes"
NUMA_NODE = "resource.kubernetes.io/numaNode"
NEAR = {0: (0, 1), 1: (1, 0), 2: (2, 3)}
"""Nodes 0 and 1 are of one socket, 2 and 3 of another."""


@asynccontextmanager
async def listing(directory: Path, *gates: str) -> AsyncIterator[tuple[Cluster, SlicePublisher]]:
    """A cluster to which a driver publishes three PFs, near NUMA nodes 0, 1 and 2, with lists."""
    async with cluster(partial(real, gates=gates), directory, NODE) as c:
        if c.plane.release < (1, 36):
            pytest.skip(f"Kubernetes {c.plane.release}: capacities are shared from 1.36 on")
        kubeconfig = write_kubeconfig(directory / "driver.kubeconfig", c.plane, c.plane.admin_token)
        client = connect(str(kubeconfig))
        publisher = SlicePublisher(client, NODE, near_nodes=NEAR.__getitem__)
        pfs = tuple(offer(f"f{index}", pci=f"0000:0{index}:00.0", numa_node=index) for index in NEAR)
        try:
            async with in_background(publisher.run()):
                publisher.offer(Offers(node=NODE, pfs=pfs))
                yield c, publisher
        finally:
            await client.close()


async def published(c: Cluster) -> dict[str, Json]:
    """Attributes by PF, once there are any."""
    while not (found := (await c.http.get(SLICES)).json()["items"]):  # noqa: ASYNC110
        await asyncio.sleep(0.05)  # another task writes them
    return {device["name"]: device["attributes"] for each in found for device in each["spec"]["devices"]}


STANDARD = "device.attributes['resource.kubernetes.io']"


def near(node: int) -> Json:
    """A request for a VF of a PF near a NUMA node."""
    return request(selectors=[{"cel": {"expression": f"{STANDARD}.numaNode.includes({node})"}}])


OWN = [{"matchAttribute": f"{DRIVER}/numaNode"}]
MATCHED = [{"matchAttribute": NUMA_NODE}]
CASES: dict[str, tuple[Json, set[str]]] = {
    "of the PF's own node": (devices(near(2)), {"f2"}),
    "of a node that is near": (devices(near(3)), {"f2"}),
    "of no node": (devices(near(4)), set()),
    "by our number": ({**devices(request("a"), request("b")), "constraints": OWN}, {"f0"}),
    "matched": ({**devices(request("a"), request("b")), "constraints": MATCHED}, set()),
}
"""Claims, and the PFs that they get on 1.36.

Its kube-scheduler does not hand the gate on to the allocator (`AllocatorFeatures` in
pkg/scheduler/framework/plugins/dynamicresources/dynamicresources.go), so that no list matches another.
"""


async def test_lists_are_published_and_selected(tmp_path: Path):
    async with listing(tmp_path, GATE) as (c, publisher):
        found = await published(c)
        assert {name: found[name][NUMA_NODE] for name in found} == {
            f"f{node}": {"ints": list(nodes)} for node, nodes in NEAR.items()
        }
        selector = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
        document = {"metadata": {"name": "rdma"}, "spec": {"selectors": [selector]}}
        assert (await c.http.post(f"{API}/deviceclasses", json=document)).status_code == 201
        async with c.plane.scheduler(SCHEDULER):
            for number, (title, (requested, pfs)) in enumerate(CASES.items()):
                name = f"p{number}"
                made = await c.http.post(CLAIMS, json=claim(requested, name))
                assert made.status_code == 201, (title, made.text)
                await c.create_pod(name, resourceClaims=[{"name": "net", "resourceClaimName": name}])
                await c.when(name, is_decided)
                status = (await c.http.get(f"{CLAIMS}/{name}")).json().get("status", {})
                results = status.get("allocation", {}).get("devices", {}).get("results", [])
                assert (title, {each["device"] for each in results}) == (title, pfs)
        assert not publisher.problem
        assert publisher.writes == 1


async def test_lists_without_the_gate_are_named_by_the_driver(tmp_path: Path):
    async with listing(tmp_path) as (c, publisher):
        while GATE not in publisher.problem:  # noqa: ASYNC110  another task finds it
            await asyncio.sleep(0.05)
        assert (await c.http.get(SLICES)).json()["items"] == []
