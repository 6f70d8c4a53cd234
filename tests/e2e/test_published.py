"""A node that publishes, and an extender that places by its publications: no server is asked."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx2

from e2e.node import Node
from k8s_rdma.config.extender import ExtenderConfig
from k8s_rdma.core.types import NodeName
from k8s_rdma.extender.extender import Extender
from k8s_rdma.extender.node_source import facts_of, facts_of_status
from k8s_rdma.kube.client import connect
from k8s_rdma.wire.extender import NOT_ENOUGH_FREE, UNREADABLE_NODE
from k8s_rdma.wire.rdma_node import decode_status
from k8s_rdma_demo.cluster.api import ApiConfig, RunningApi, serving_api
from k8s_rdma_demo.cluster.command import write_kubeconfig
from k8s_rdma_demo.cluster.objects import NODES, PODS, parse_resource_type
from k8s_rdma_demo.cluster.sandboxes import PodRef

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    MakeNode = Callable[[int], Node]

DEADLINE_S = 120
RDMA_NODES = parse_resource_type("k8s-rdma.io/v1alpha1/rdmanodes/RdmaNode")
PODS_URL = "/api/v1/namespaces/default/pods"
RENEW_S, STALE_S = 0.2, 3.0


@dataclass
class Cluster:
    """An API server, a node that publishes there, and an extender that watches."""

    api: RunningApi
    http: httpx2.AsyncClient
    node: Node
    extender: Extender

    async def create(self, name: str, rate: int) -> dict[str, Any]:
        wanted = json.dumps([{"min_tx_rate": rate}])
        made = {
            "metadata": {"name": name, "annotations": {"rdma_interfaces_required": wanted}},
            "spec": {"containers": [{"name": "c", "image": "lab.local/busybox:1"}]},
        }
        answer = await self.http.post(PODS_URL, json=made)
        assert answer.status_code == 201, answer.text
        return answer.json()

    async def refusal(self, pod: dict[str, Any]) -> str:
        """Why the node does not fit; empty when it does."""
        args = {"Pod": pod, "Nodes": None, "NodeNames": ["w1"]}
        answer = json.loads(await self.extender.filter(json.dumps(args).encode()))
        assert not answer["Error"], answer
        failed = {**(answer["FailedNodes"] or {}), **(answer["FailedAndUnresolvableNodes"] or {})}
        return failed.get("w1", "")

    async def bind(self, pod: dict[str, Any]) -> PodRef:
        """Bind it, and return it as the runtime gets it then."""
        meta = pod["metadata"]
        args = {"PodName": meta["name"], "PodNamespace": "default", "PodUID": meta["uid"], "Node": "w1"}
        assert json.loads(await self.extender.bind(json.dumps(args).encode()))["Error"] == ""
        bound = self.api.store.get(PODS, ("default", meta["name"]))["metadata"]
        return PodRef(
            namespace="default", name=meta["name"], uid=meta["uid"], annotations=bound["annotations"]
        )

    async def delete(self, name: str) -> None:
        answer = await self.http.delete(f"{PODS_URL}/{name}", params={"gracePeriodSeconds": 0})
        assert answer.status_code == 200

    def published(self) -> dict[str, Any]:
        return (self.api.store.get(RDMA_NODES, ("", "w1")) or {}).get("status") or {}

    def holders(self) -> list[str]:
        """Pods that hold something, as published."""
        return [each["pod"]["name"] for each in self.published().get("allocations", ())]

    def vfs(self) -> str | None:
        return self.api.store.get(NODES, ("", "w1"))["status"]["capacity"].get("k8s-rdma.io/vf")

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():  # noqa: ASYNC110  another process makes it hold
            await asyncio.sleep(0.01)

    async def until_refused(self, pod: dict[str, Any], start: str) -> str:
        """Until the node refuses it by that sentence, or with an empty one fits."""
        why = await self.refusal(pod)
        while not why.startswith(start) or bool(why) != bool(start):
            why = await self.refusal(pod)
            await asyncio.sleep(0.05)
        return why


@asynccontextmanager
async def cluster_of(node: Node) -> AsyncIterator[Cluster]:
    async with (
        asyncio.timeout(DEADLINE_S),
        serving_api(ApiConfig(custom_resources=(RDMA_NODES,))) as api,
        httpx2.AsyncClient(base_url=api.url, trust_env=False) as http,
    ):
        made = {"metadata": {"name": "w1"}, "status": {"capacity": {"cpu": "16"}}}
        assert (await http.post("/api/v1/nodes", json=made)).status_code == 201
        kubeconfig = str(write_kubeconfig(node.directory / "kubeconfig", api.url))
        publish = {"rdmaNode": True, "vfResource": "k8s-rdma.io/vf", "renewS": RENEW_S}
        node.settings = {"kubeconfig": kubeconfig, "publish": publish}
        await asyncio.to_thread(node.start_agent)
        config = ExtenderConfig(source="crd", stale_s=STALE_S, lease_name="", node_timeout_s=0.1)
        client = connect(kubeconfig)
        extender = Extender(config, client)
        async with extender.running():
            while extender.missing():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            yield Cluster(api, http, node, extender)
        await client.close()


def test_pods_are_placed_by_published_reports_and_not_while_the_agent_is_dead(
    make_node: MakeNode,
) -> None:
    node = make_node(4)

    async def scenario() -> None:
        async with cluster_of(node) as c:
            await c.until(lambda: c.published() != {} and c.vfs() == "8")
            first, second = await c.create("first", 600), await c.create("second", 900)
            await c.until_refused(first, "")
            runtime = node.runtime(chained=False)
            sandbox = await runtime.add(await c.bind(first))
            await c.until(
                lambda: [a["pod"]["name"] for a in c.published().get("allocations", ())] == ["first"]
            )
            same_as_asked(c)
            third = await c.create("third", 900)
            await c.until_refused(third, "")
            fourth = await runtime.add(await c.bind(third))
            why = await c.until_refused(second, NOT_ENOUGH_FREE)
            assert "400 Mb/s" in why

            node.kill_agent()
            why = await c.until_refused(second, UNREADABLE_NODE)
            assert "has not reported for" in why
            await asyncio.to_thread(node.start_agent)
            await c.until_refused(second, NOT_ENOUGH_FREE)

            await runtime.delete(fourth)
            await c.delete("third")
            await c.until_refused(second, "")
            await runtime.delete(sandbox)
            await c.until(lambda: c.holders() == [])

    asyncio.run(scenario())
    assert node.leftovers() == {}


def same_as_asked(c: Cluster) -> None:
    """The published status leads to the same facts as the agent's own report does."""
    report = c.node.try_report()
    published = decode_status(json.dumps(c.published()).encode())
    assert facts_of_status(published, NodeName("w1")) == facts_of(report, NodeName("w1"))
