"""Extender and agents of different versions, as they are while nodes are updated one after the other."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from cluster.extenders import Extender, registration
from cluster.nodes import node_object
from cluster.publishers import AGENT, prepare
from cluster.real import obstacle
from cluster.world import Cluster, cluster, placement
from e2e.conftest import build_dir, make_node, program
from k8s_rdma_demo.cluster.sandboxes import PodRef, Sandbox
from older_programs import last_without, unpack

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from cluster.control_plane import Json
    from e2e.node import Node

__all__ = ["build_dir", "make_node", "program"]

pytestmark = pytest.mark.anyio

LINK_MBPS = 1_000
BY_SOFTWARE = {"rdma_interfaces_required": '[{"max_tx_rate": 10, "enforce": "software"}]'}
"""Unknown when the older programs were written."""

TELLS = {
    "extender": "(rdma_interfaces_required[0].enforce: software is unknown; known are hardware, auto)",
    "agent": "(needs 1 interface; 2 PFs: its node caps nothing by software: ",
}
"""The words that its owner reads, by who is older."""


class Skewed:
    """A node whose agent publishes it, and an extender: one of them is older."""

    def __init__(self, c: Cluster, node: Node) -> None:
        self.c, self.node, self._runtime = c, node, node.runtime(chained=False)

    async def start_pod(self, name: str) -> Sandbox:
        """Wait until it is bound, and do the work of kubelet's runtime then."""
        meta = (await self.c.bound(name))["metadata"]
        annotations = meta["annotations"]
        pod = PodRef(namespace="default", name=name, uid=meta["uid"], annotations=annotations)
        return await self._runtime.add(pod)

    async def end_pod(self, name: str, sandbox: Sandbox) -> None:
        await self._runtime.delete(sandbox)
        url = f"/api/v1/namespaces/default/pods/{name}?gracePeriodSeconds=0"
        assert (await self.c.http.delete(url)).status_code == 200

    def reserved_mbps(self) -> list[str]:
        """The rates of the node's VFs, as tc(8) prints them."""
        rates = self.node.rates()
        return sorted(rates[vf][0] for vf, free in self.node.pristine["rates"].items() if rates[vf] != free)


@asynccontextmanager
async def skewed(kind: str, directory: Path, node: Node, older: str) -> AsyncIterator[Skewed]:
    """older: which of the two it is."""
    commit = last_without("software_max_tx_rate_mbps", "src/k8s_rdma/core/ledger.py")
    if commit is None:
        pytest.skip("needs the repository's history, back to programs that knew no caps in software")
    enter = ["env", f"PYTHONPATH={unpack(commit, directory, 'src') / 'src'}"]
    key = directory / "placement.key"
    key.write_text("a secret of placements\n")
    async with cluster(kind, directory) as c:
        await prepare(c)
        await c.create(node_object("w1", "127.0.0.1", {}))
        node.settings = {
            "kubeconfig": str(directory / f"{AGENT}.kubeconfig"),
            "placementKeyFile": str(key),
            "publish": {"rdmaNode": True} | ({"renewS": 10} if older == "extender" else {}),
        }
        node.enter = enter if older == "agent" else []
        await asyncio.to_thread(node.start_agent)
        extender = c.extender(source="crd", nodePort=1, placementKeyFile=str(key))
        if older == "extender":
            extender.enter, extender.older = enter, True
        await extender.start()
        await extender.ready()
        async with c.plane.scheduler(registration(extender.url)):
            yield Skewed(c, node)


@pytest.mark.parametrize("older", TELLS)
async def test_pods_have_their_bandwidth_with_an_older_process_or_get_its_unknown_keys_reported(
    kind: str, make_node: Callable[[int], Node], tmp_path: Path, older: str
):
    node = make_node(2)
    async with skewed(kind, tmp_path, node, older) as it:
        for name, rate in (("first", 600), ("second", 900)):
            await it.c.create_pod(name, rate)
        sandboxes = {name: await it.start_pod(name) for name in ("first", "second")}
        assert it.reserved_mbps() == ["600Mbit", "900Mbit"]
        pfs = {placement(await it.c.pod(name))[0]["pf"] for name in sandboxes}
        assert pfs == {pf.pci for pf in node.pfs}
        await it.c.create_pod("third", 500)
        await it.c.event("third", "FailedScheduling", "did not have enough free RDMA resources")
        await it.c.create_pod("newer", annotations=BY_SOFTWARE)
        await it.c.event("newer", "FailedScheduling", TELLS[older])
        await it.end_pod("first", sandboxes.pop("first"))
        sandboxes["third"] = await it.start_pod("third")
        assert it.reserved_mbps() == ["500Mbit", "900Mbit"]
        assert await it.c.node_of("newer") is None
        for name, sandbox in sandboxes.items():
            await it.end_pod(name, sandbox)
        assert node.leftovers() == {}


def pod_groups(version: str) -> Json:
    """The kind PodGroup, as an API server of that release has it."""
    names = {"plural": "podgroups", "singular": "podgroup", "kind": "PodGroup", "listKind": "PodGroupList"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "podgroups.scheduling.k8s.io"},
        "spec": {
            "group": "scheduling.k8s.io",
            "scope": "Namespaced",
            "names": names,
            "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
        },
    }


async def started(c: Cluster, directory: Path, *, older: bool) -> Extender:
    """A ready extender. older: whether it is the last one that knew v1alpha2 alone."""
    extender = c.extender()
    if older:
        commit = last_without("v1beta1", "src/k8s_rdma/wire/pod_group.py")
        if commit is None:
            pytest.skip("needs the repository's history, back to programs that knew one version")
        extender.enter = ["env", f"PYTHONPATH={unpack(commit, directory, 'src') / 'src'}"]
    await extender.start()
    await extender.ready()
    return extender


@pytest.mark.parametrize(
    ("older", "version"),
    [
        pytest.param(True, "v1beta1", id="older-extender-newer-api-server"),
        pytest.param(False, "v1alpha2", id="newer-extender-older-api-server"),
        pytest.param(False, "v1beta1", id="both-newer"),
    ],
)
async def test_gang_is_bound_whole_or_not_at_all_with_any_older_process(
    tmp_path: Path, *, older: bool, version: str
):
    """An extender that knew v1alpha2 alone binds no pod of a gang on Kubernetes 1.37."""
    async with cluster("stand-in", tmp_path, "w1") as c:
        await c.plane.add_crd(pod_groups(version))
        group = {"metadata": {"name": "a"}, "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}}
        path = f"/apis/scheduling.k8s.io/{version}/namespaces/default/podgroups"
        assert (await c.http.post(path, json=group)).status_code == 201
        extender = await started(c, tmp_path, older=older)
        async with c.plane.scheduler(registration(extender.url)):
            for name in ("a-0", "a-1"):
                await c.create_pod(name, 1_000, schedulingGroup={"podGroupName": "a"})
            await c.create_pod("alone", 1_000)
            await c.bound("alone")
            for name in ("a-0", "a-1"):
                if older:
                    await c.event(name, "FailedScheduling", "get podgroup default/a")
                    assert await c.node_of(name) is None
                else:
                    await c.bound(name)


V1ALPHA2 = "scheduling.k8s.io/v1alpha2"


@pytest.mark.skipif(bool(obstacle()), reason=f"no real cluster: {obstacle()}")
@pytest.mark.parametrize("older", [True, False], ids=["older-extender", "newer-extender"])
async def test_gang_of_kubernetes_1_36_is_bound_whole_whichever_extender_there_is(
    tmp_path: Path, *, older: bool
):
    """The API server of 1.36 has v1alpha2 alone; with the gate and without that version it is never ready."""
    async with cluster("gangs", tmp_path, "w1") as c:
        if c.plane.release != (1, 36):
            pytest.skip(f"{V1ALPHA2} is served by Kubernetes 1.36")
        spec = {"schedulingPolicy": {"gang": {"minCount": 2}}}
        meta = {"name": "a", "namespace": "default"}
        await c.create({"kind": "PodGroup", "apiVersion": V1ALPHA2, "metadata": meta, "spec": spec})
        extender = await started(c, tmp_path, older=older)
        async with c.plane.scheduler(registration(extender.url)):
            await c.create_pod("a-0", 1_000, schedulingGroup={"podGroupName": "a"})
            await c.create_pod("alone", 1_000)
            await c.bound("alone")
            assert await c.node_of("a-0") is None
            await c.create_pod("a-1", 1_000, schedulingGroup={"podGroupName": "a"})
            for name in ("a-0", "a-1"):
                await c.bound(name)
