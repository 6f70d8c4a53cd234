"""A refused pod beside a scheduler gets its place if the resource that it waits for, of any kind, is free."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from extender.node_server import PF0, pf, report
from extender.published import NAMESPACE, PublishedNode
from extender.serving import Served, served
from extender.test_near_gpus import GPU, with_gpus
from extender.world import World, cluster, interfaces
from k8s_rdma.config.extender import NamespaceLimit
from k8s_rdma.core.types import NodeName
from k8s_rdma.kube.published_api import LeaseView
from k8s_rdma.wire.address_leases import lease_name
from k8s_rdma_demo.cluster.extender_client import ExtenderConfig
from k8s_rdma_demo.cluster.scheduler import SchedulerConfig, scheduling
from policies import EVERYTHING_FILE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from k8s_rdma.wire.report import NodeReport

pytestmark = pytest.mark.anyio


@dataclass
class Nodes:
    """Let the nodes report, by either source."""

    world: World
    publishing: dict[str, PublishedNode]

    async def say(self, told: NodeReport) -> None:
        self.world.nodes[told.node].report = told
        if self.publishing:
            await self.publishing[told.node].say(told)

    async def renew(self) -> None:
        """As agents do now and then."""
        for node in self.publishing.values():
            await node.renew()


@dataclass
class Scheduled:
    """A cluster with extender and scheduler."""

    world: World
    served: Served
    nodes: Nodes


@asynccontextmanager
async def scheduled(*names: str, source: str = "http", **settings: Any) -> AsyncIterator[Scheduled]:
    """The pace is the default one."""
    async with cluster(*names) as c:
        nodes = Nodes(c, {})
        if source == "crd":
            c.api = c.api.real
            nodes.publishing = {name: PublishedNode(c.api, NodeName(name)) for name in names}
            for name in names:
                await nodes.say(report(name))
        pace = {"poll_s": 1.0, "requeue_s": 1.0, "source": source, "node_lease_namespace": NAMESPACE}
        async with served(c, **pace, **settings) as s:
            await s.ready()
            extender = ExtenderConfig(
                url_prefix=f"http://127.0.0.1:{s.port}/scheduler",
                filter_verb="rdma_scheduling",
                prioritize_verb="prioritize",
                bind_verb="bind",
                node_cache_capable=True,
            )
            config = SchedulerConfig(extenders=(extender,), initial_backoff_s=0.01)
            async with scheduling(c.server.url, config):
                yield Scheduled(c, s, nodes)


async def waiting(w: Scheduled) -> None:
    """Until a pod waits."""
    while "pods_waiting 1.0\n" not in (await w.served.http.get("/metrics")).text:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def placed(w: Scheduled, name: str) -> str:
    while (node := await w.world.node_of(name)) is None:
        await w.nodes.renew()
        await asyncio.sleep(0.05)
    return node


@pytest.mark.parametrize("source", ["http", "crd"])
async def test_pod_is_placed_when_its_node_has_given_devices_back_after_their_pod_is_gone(source):
    async with scheduled("w1", source=source) as w:
        first = await w.world.create_pod("first", 8_000)
        assert await placed(w, "first") == "w1"
        held = {first["metadata"]["uid"]: 8_000}
        await w.nodes.say(report("w1", generation=2, held=held))
        await w.world.create_pod("second", 8_000)
        await waiting(w)
        await w.world.delete_pod("first")
        await w.nodes.say(report("w1", generation=3))
        assert await placed(w, "second") == "w1"


async def test_pod_is_placed_when_no_claim_has_its_guid_any_more():
    guid = "02:00:00:ff:fe:00:00:05"
    async with scheduled("w1", "w2", source="crd", policy_file=EVERYTHING_FILE) as w:
        for name in ("w1", "w2"):
            await w.nodes.say(report(name, pf(takes=("guid",), link_type="infiniband"), generation=2))
        new_lease = LeaseView(namespace=NAMESPACE, name=lease_name(guid), holder="w2", duration_s=3600)
        api = w.nodes.publishing["w2"].client
        lease = await api.write_lease(new_lease)
        await w.world.create_pod("p", annotation=json.dumps([{"guid": guid, "pf": PF0}]))
        await waiting(w)
        assert "address_in_use" in (await w.served.http.get("/metrics")).text
        await api.delete_lease(lease)
        assert await placed(w, "p") in {"w1", "w2"}


@pytest.mark.parametrize("source", ["http", "crd"])
async def test_pod_is_placed_when_a_link_comes_up(source):
    async with scheduled("w1", source=source) as w:
        await w.nodes.say(report("w1", pf(mbps=None), generation=2))
        await w.world.create_pod("p", 8_000)
        await waiting(w)
        await w.nodes.say(report("w1", pf(), generation=3))
        assert await placed(w, "p") == "w1"


@pytest.mark.parametrize("source", ["http", "crd"])
async def test_pod_is_placed_when_the_gpus_that_kubelet_may_choose_are_others(source):
    """While it may choose the GPU of the full card, no VF can be promised."""
    async with scheduled("w1", source=source) as w:
        await w.nodes.say(with_gpus("w1", generation=2))
        link = with_gpus("w1").pfs[0].link_mbps
        await w.world.create_pod("full", annotation=json.dumps([{"min_tx_rate": link, "pf": PF0}]))
        assert await placed(w, "full") == "w1"
        near = json.dumps([{"min_tx_rate": link, "near": "gpu"}])
        await w.world.create_pod("p", annotation=near, topology="same-pcie-switch", devices={GPU: 1})
        await waiting(w)
        await w.nodes.say(with_gpus("w1", 0, generation=3))
        assert await placed(w, "p") == "w1"


async def test_pod_is_placed_when_its_namespaces_limit_comes_free():
    limit = NamespaceLimit(namespace="default", reserved_mbps=10_000)
    async with scheduled("w1", "w2", limits=(limit,)) as w:
        await w.world.create_pod("first", 8_000)
        await placed(w, "first")
        await w.world.create_pod("second", 5_000)
        await waiting(w)
        await w.world.delete_pod("first")
        assert await placed(w, "second") in {"w1", "w2"}


async def test_pod_is_placed_when_the_room_of_a_nominated_pod_is_released():
    async with scheduled("w1") as w:
        await w.world.create_pod("known", 0)
        await placed(w, "known")
        nominated = {
            "metadata": {"name": "first", "annotations": {"rdma_interfaces_required": interfaces(8_000)}},
            "spec": {"schedulerName": "another", "priority": 5, "containers": [{"name": "c", "image": "i"}]},
        }
        url = "/api/v1/namespaces/default/pods"
        assert (await w.world.http.post(url, json=nominated)).status_code == 201
        await w.world.patch_pod("first", {"status": {"nominatedNodeName": "w1"}}, "/status")
        await w.world.create_pod("second", 8_000)
        await waiting(w)
        await w.world.delete_pod("first")
        assert await placed(w, "second") == "w1"
