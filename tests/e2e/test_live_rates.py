"""Rates of a running pod, changed by its placement: API server, agent, kernel and pod are real."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx2

from e2e.node import Node
from e2e.test_rebuild_ledger import keep, lost, rebuild, spoilt
from e2e.test_rest import URL as SERVER_URL
from e2e.test_rest import serve
from k8s_rdma.config.extender import ExtenderConfig
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.types import NodeName, PciAddress, PodUid
from k8s_rdma.extender.extender import BinderIdentity, Extender
from k8s_rdma.kube.client import Client
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, encode
from k8s_rdma.wire.placement_keys import FixedKeys, PlacementKeys
from k8s_rdma.wire.rates_status import RATES_STATUS_ANNOTATION, RatesStatus, decode_rates_status
from k8s_rdma_demo.cluster.api import ApiConfig, RunningApi, serving_api
from k8s_rdma_demo.cluster.command import write_kubeconfig
from k8s_rdma_demo.cluster.objects import EVENTS, parse_resource_type
from k8s_rdma_demo.cluster.sandboxes import PodRef, Sandbox
from lightkube_client import lightkube_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    MakeNode = Callable[[int], Node]

DEADLINE_S = 120
RDMA_NODES = parse_resource_type("k8s-rdma.io/v1alpha1/rdmanodes/RdmaNode")
PODS_URL = "/api/v1/namespaces/default/pods"
SECRET = "a key of this test"  # noqa: S105
KEY = PlacementKeys.shared(SECRET.encode())
PF = PciAddress("0000:01:00.0")
MERGE = {"Content-Type": "application/merge-patch+json"}
MOMENTS_S = [0.003 * number**2 for number in range(5)]


def placed(least: int, most: int, generation: int) -> Placement:
    interface = PlacedInterface(pf=PF, min_tx_rate_mbps=least, max_tx_rate_mbps=most)
    return Placement(node=NodeName("w1"), interfaces=(interface,), generation=generation)


@dataclass
class Cluster:
    """An API server, and a node that publishes there."""

    api: RunningApi
    http: httpx2.AsyncClient
    node: Node

    async def create(self, name: str, placement: Placement) -> PodRef:
        """Create a pod that is bound to the node; return it as the runtime gets it."""
        spec = {"containers": [{"name": "c", "image": "lab.local/busybox:1"}], "nodeName": "w1"}
        made = await self.http.post(PODS_URL, json={"metadata": {"name": name}, "spec": spec})
        uid = PodUid(made.json()["metadata"]["uid"])
        pod = PodRef(namespace="default", name=name, uid=uid, annotations={})
        return await self.place(pod, placement)

    async def place(self, pod: PodRef, placement: Placement) -> PodRef:
        annotations = {PLACEMENT_ANNOTATION: encode(placement, PodUid(pod.uid), KEY)}
        patch = {"metadata": {"annotations": annotations}}
        answer = await self.http.patch(f"{PODS_URL}/{pod.name}", json=patch, headers=MERGE)
        assert answer.status_code == 200, answer.text
        return PodRef(namespace="default", name=pod.name, uid=pod.uid, annotations=annotations)

    def published(self) -> dict[str, Any]:
        return (self.api.store.get(RDMA_NODES, ("", "w1")) or {}).get("status") or {}

    def generations(self) -> list[int]:
        return [each.get("generation", 0) for each in self.published().get("allocations", ())]

    def events(self) -> set[str]:
        return {each["reason"] for each in self.api.store.items(EVENTS, "default")}

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():  # noqa: ASYNC110  another process makes it hold
            await asyncio.sleep(0.01)


def reserved(node: Node) -> list[tuple[int, int]]:
    """Generation and reservation of each interface, as the node reports it."""
    report = node.try_report()
    return [
        (allocation.generation, interface.min_tx_rate)
        for allocation in (report.allocations if report else ())
        for interface in allocation.interfaces
    ]


def problems(node: Node) -> tuple[str, ...]:
    report = node.try_report()
    return report.problems if report else ()


@asynccontextmanager
async def cluster_of(node: Node, **settings: Any) -> AsyncIterator[Cluster]:
    async with (
        asyncio.timeout(DEADLINE_S),
        serving_api(ApiConfig(custom_resources=(RDMA_NODES,))) as api,
        httpx2.AsyncClient(base_url=api.url, trust_env=False) as http,
    ):
        made = await http.post("/api/v1/nodes", json={"metadata": {"name": "w1"}})
        assert made.status_code == 201
        key_file = node.directory / "key"
        key_file.write_text(SECRET)
        node.settings = {
            "kubeconfig": str(write_kubeconfig(node.directory / "kubeconfig", api.url)),
            "publish": {"rdmaNode": True},
            "placementKeyFile": str(key_file),
            **settings,
        }
        await asyncio.to_thread(node.start_agent)
        yield Cluster(api, http, node)


def with_gold(node: Node, scenario: Callable[[Cluster, PodRef, Sandbox], Awaitable[None]]) -> None:
    """Run with a pod of 500 to 600 Mb/s. In the end, no trace of it is left."""

    async def whole() -> None:
        async with cluster_of(node) as c:
            runtime = node.runtime(chained=False)
            pod = await c.create("gold", placed(500, 600, 0))
            sandbox = await runtime.add(pod)
            await scenario(c, pod, sandbox)
            await runtime.delete(sandbox)

    asyncio.run(whole())
    assert node.leftovers() == {}


def test_rates_of_a_running_pod_follow_its_placement_and_are_published_with_their_generation(
    make_node: MakeNode,
) -> None:
    node = make_node(4)

    async def scenario(c: Cluster, pod: PodRef, sandbox: Sandbox) -> None:
        await c.until(lambda: c.generations() == [0])
        assert node.rates()["enp1s0f0", 0] == ("500Mbit", "600Mbit")
        await c.place(pod, placed(700, 800, 1))
        await c.until(lambda: c.generations() == [1])
        assert node.rates()["enp1s0f0", 0] == ("700Mbit", "800Mbit")
        await c.until(lambda: "RdmaRatesChanged" in c.events())
        assert reserved(node) == [(1, 700)]

        await c.place(pod, placed(1001, 0, 2))
        await c.until(lambda: "RdmaRatesRefused" in c.events())
        assert node.rates()["enp1s0f0", 0] == ("700Mbit", "800Mbit")
        await c.until(lambda: problems(node) != ())
        [problem] = problems(node)
        assert "1001 Mb/s needed, and others leave 1000 of 1000 Mb/s to the pod" in problem
        await c.place(pod, placed(900, 0, 3))
        await c.until(lambda: c.generations() == [3])

    with_gold(node, scenario)


def test_rates_are_the_old_or_the_new_ones_whenever_the_agent_is_killed(make_node: MakeNode) -> None:
    node = make_node(4)

    async def scenario(c: Cluster, pod: PodRef, sandbox: Sandbox) -> None:
        rates = [("500Mbit", "600Mbit"), ("300Mbit", "900Mbit")]
        for generation, moment_s in enumerate(MOMENTS_S, 1):
            old, new = rates[(generation + 1) % 2], rates[generation % 2]
            await c.place(pod, placed(*((500, 600), (300, 900))[generation % 2], generation))
            await asyncio.sleep(moment_s)
            node.kill_agent()
            assert node.rates()["enp1s0f0", 0] in (old, new)
            await asyncio.to_thread(node.start_agent)
            await c.until(lambda now=generation: c.generations() == [now])
            assert node.rates()["enp1s0f0", 0] == new

    with_gold(node, scenario)


def test_rebuilt_ledger_has_the_rates_of_now_once_the_agent_follows_the_placement(
    make_node: MakeNode,
) -> None:
    """The runtime's cache has the annotations of the pod's ADD."""
    node = make_node(4)

    async def scenario(c: Cluster, pod: PodRef, sandbox: Sandbox) -> None:
        keep(node, node.runtime(chained=False), sandbox)
        await c.place(pod, placed(300, 900, 1))
        await c.until(lambda: c.generations() == [1])
        node.kill_agent()
        spoilt(node, lost)
        done = await asyncio.to_thread(rebuild, node)
        assert done.returncode == 0, done.stdout + done.stderr
        await asyncio.to_thread(node.start_agent)
        await c.until(lambda: reserved(node) == [(1, 300)])
        assert node.rates()["enp1s0f0", 0] == ("300Mbit", "900Mbit")

    with_gold(node, scenario)


@asynccontextmanager
async def extender_of(node: Node, api: RunningApi, http: httpx2.Client) -> AsyncIterator[Extender]:
    """The node's server, and an extender that polls it and signs with the agents' key."""
    serve(node, http)
    config = ExtenderConfig(source="http", node_timeout_s=5.0, poll_s=0.1)
    async with lightkube_client(api.url) as client:
        identity = BinderIdentity(keys=FixedKeys(KEY))
        extender = Extender(config, Client(client, silence_s=DEADLINE_S), identity)
        async with extender.running():
            while extender.missing():  # noqa: ASYNC110  it has no event
                await asyncio.sleep(0.01)
            yield extender


async def has_status(c: Cluster, name: str, state: str, generation: int) -> RatesStatus:
    while True:
        annotations = (await c.http.get(f"{PODS_URL}/{name}")).json()["metadata"]["annotations"]
        if text := annotations.get(RATES_STATUS_ANNOTATION):
            status = decode_rates_status(text)
            if (status.state, status.generation) == (state, generation):
                return status
        await asyncio.sleep(0.01)


def test_agent_without_credentials_gets_the_rates_that_the_extender_delivers(make_node: MakeNode) -> None:
    """Owner, API server, extender, node server, agent and kernel: only the owner's edit is ours."""
    node = make_node(4)
    (node.directory / "key").write_text(SECRET)
    node.settings = {"placementKeyFile": str(node.directory / "key")}

    async def scenario(http: httpx2.Client) -> None:
        async with (
            asyncio.timeout(DEADLINE_S),
            serving_api(ApiConfig(custom_resources=(RDMA_NODES,))) as api,
            httpx2.AsyncClient(base_url=api.url, trust_env=False) as client,
        ):
            addresses = [{"type": "InternalIP", "address": "127.0.0.1"}]
            made = {"metadata": {"name": "w1"}, "status": {"addresses": addresses}}
            assert (await client.post("/api/v1/nodes", json=made)).status_code == 201
            await asyncio.to_thread(node.start_agent)
            c = Cluster(api, client, node)
            async with extender_of(node, api, http) as extender:
                ref = await bound(c, extender, [{"min_tx_rate": 500, "max_tx_rate": 600}])
                sandbox = await node.runtime(chained=False).add(ref)
                assert node.rates()["enp1s0f0", 0] == ("500Mbit", "600Mbit")
                await edit(c, [{"min_tx_rate": 700, "max_tx_rate": 800}])
                await has_status(c, "gold", "programmed", 1)
                assert node.rates()["enp1s0f0", 0] == ("700Mbit", "800Mbit")
                assert reserved(node) == [(1, 700)]
                node.kill_agent()
                await edit(c, [{"min_tx_rate": 300, "max_tx_rate": 900}])
                await asyncio.to_thread(node.start_agent)
                await has_status(c, "gold", "programmed", 2)
                assert node.rates()["enp1s0f0", 0] == ("300Mbit", "900Mbit")
                await node.runtime(chained=False).delete(sandbox)

    with httpx2.Client(base_url=SERVER_URL, trust_env=False) as http:
        asyncio.run(scenario(http))
    assert node.leftovers() == {}


async def bound(c: Cluster, extender: Extender, interfaces: list[dict[str, int]]) -> PodRef:
    """Create a pod, let the extender bind it to the node, and return it as the runtime gets it."""
    spec = {"containers": [{"name": "c", "image": "lab.local/busybox:1"}]}
    meta = {"name": "gold", "annotations": {"rdma_interfaces_required": json.dumps(interfaces)}}
    uid = (await c.http.post(PODS_URL, json={"metadata": meta, "spec": spec})).json()["metadata"]["uid"]
    args = {"PodName": "gold", "PodNamespace": "default", "PodUID": uid, "Node": "w1"}
    while error := json.loads(bytes(await extender.bind(json.dumps(args).encode())))["Error"]:
        assert "w1" in error
        await asyncio.sleep(0.05)
    stored = (await c.http.get(f"{PODS_URL}/gold")).json()["metadata"]["annotations"]
    return PodRef(namespace="default", name="gold", uid=uid, annotations=stored)


async def edit(c: Cluster, interfaces: list[dict[str, int]]) -> None:
    patch = {"metadata": {"annotations": {"rdma_interfaces_required": json.dumps(interfaces)}}}
    assert (await c.http.patch(f"{PODS_URL}/gold", json=patch, headers=MERGE)).status_code == 200
