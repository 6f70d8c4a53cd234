"""An agent with credentials: the facts that it learns from the API server, and its reports there."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from e2e.node import Node, pod
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.types import NodeName, PciAddress, PodUid
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, encode
from k8s_rdma_demo.cluster.api import RunningApi, serving_api
from k8s_rdma_demo.cluster.cni_plugin import CniError
from k8s_rdma_demo.cluster.command import write_kubeconfig
from k8s_rdma_demo.cluster.objects import EVENTS, PODS
from k8s_rdma_demo.cluster.sandboxes import PodRef

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    MakeNode = Callable[[int], Node]

DEADLINE_S = 120
PF0, PF1 = PciAddress("0000:01:00.0"), PciAddress("0000:01:00.1")
NETWORK_STATUS = "k8s-rdma.io/network-status"
NO_ANNOTATIONS = {"capabilities": {}}
"""A network configuration as one of RIT's: the runtime is not asked for the pods' annotations."""


@dataclass
class Cluster:
    """An API server beside a node."""

    api: RunningApi
    http: httpx2.AsyncClient
    node: Node

    async def bound(self, name: str, *interfaces: dict[str, Any], told: bool = False) -> PodRef:
        """Return a pod bound to the node. told: whether the runtime gets its annotations."""
        annotations = {"rdma_interfaces_required": json.dumps(interfaces)} if interfaces else {}
        meta = {"name": name, "annotations": annotations}
        spec = {"nodeName": "w1", "containers": [{"name": "c", "image": "lab.local/busybox:1"}]}
        made = await self.http.post("/api/v1/namespaces/default/pods", json={"metadata": meta, "spec": spec})
        assert made.status_code == 201, made.text
        uid = made.json()["metadata"]["uid"]
        return PodRef(namespace="default", name=name, uid=uid, annotations=annotations if told else {})

    async def promise(self, pod: PodRef, pf: PciAddress, rate: int) -> None:
        placed = PlacedInterface(pf=pf, min_tx_rate_mbps=rate, max_tx_rate_mbps=0)
        placement = Placement(node=NodeName("w1"), interfaces=(placed,))
        await self.annotate(pod.name, PLACEMENT_ANNOTATION, encode(placement, PodUid(pod.uid), None))

    async def annotate(self, name: str, key: str, text: str) -> None:
        patch = {"metadata": {"annotations": {key: text}}}
        url = f"/api/v1/namespaces/default/pods/{name}"
        headers = {"Content-Type": "application/merge-patch+json"}
        assert (await self.http.patch(url, json=patch, headers=headers)).status_code == 200

    def pod(self, name: str) -> dict[str, Any]:
        return self.api.store.get(PODS, ("default", name))

    def status(self, name: str) -> list[dict[str, Any]]:
        """Return the networks that the pod was given, by its annotation."""
        return json.loads(self.pod(name)["metadata"].get("annotations", {}).get(NETWORK_STATUS, "[]"))

    def events(self) -> dict[str, dict[str, Any]]:
        """By reason."""
        return {each["reason"]: each for each in self.api.store.items(EVENTS)}

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():  # noqa: ASYNC110  another process makes it hold
            await asyncio.sleep(0.01)


@asynccontextmanager
async def cluster_of(node: Node, **settings: object) -> AsyncIterator[Cluster]:
    """The node's agent is configured for it, and not started."""
    async with (
        asyncio.timeout(DEADLINE_S),
        serving_api() as api,
        httpx2.AsyncClient(base_url=api.url, trust_env=False) as http,
    ):
        kubeconfig = write_kubeconfig(node.directory / "kubeconfig", api.url)
        node.settings = {"kubeconfig": str(kubeconfig), **settings}
        yield Cluster(api, http, node)


def listed(node: Node) -> list[int]:
    """How many claims each of the agent's lists of its pods had."""
    return [line["placements"] for line in node.log() if line["event"] == "pods_listed"]


def test_annotation_that_the_runtime_does_not_tell_comes_from_the_api_server(make_node: MakeNode) -> None:
    node = make_node(4)

    async def scenario() -> None:
        async with cluster_of(node) as cluster:
            node.start_agent()
            runtime = node.runtime(chained=True, ours=NO_ANNOTATIONS)
            wants, plain = await cluster.bound("wants", {"min_tx_rate": 100}), await cluster.bound("plain")
            sandbox, other = await runtime.add(wants), await runtime.add(plain)
            assert "rdma0" in {each["name"] for each in sandbox.result["interfaces"]}
            assert {each["ifname"] for each in node.ip("link", "show", netns=other.netns)} == {"lo", "eth0"}
            before = PodRef(namespace="default", name="wants", uid="of-the-one-before")
            with pytest.raises(CniError, match=r"has UID .*, not of-the-one-before; .*try again"):
                await runtime.add(before)
            for each in (sandbox, other):
                await runtime.delete(each)

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_pod_is_annotated_with_given_interfaces(make_node: MakeNode) -> None:
    node = make_node(4)

    async def scenario() -> None:
        async with cluster_of(node) as cluster:
            node.start_agent()
            runtime = node.runtime(chained=False)
            given = await cluster.bound("p", {"min_tx_rate": 100}, {}, told=True)
            sandbox = await runtime.add(given)
            await cluster.until(lambda: bool(cluster.status("p")))
            addresses = [ip["address"].partition("/")[0] for ip in sandbox.result["ips"]]
            by_result = {
                each["name"]: (each["mac"], address)
                for each, address in zip(sandbox.result["interfaces"], addresses, strict=True)
            }
            told = {each["interface"]: (each["mac"], *each["ips"]) for each in cluster.status("p")}
            assert told == by_result
            functions = {each["device-info"]["pci"]["pf-pci-address"] for each in cluster.status("p")}
            assert functions <= {PF0, PF1}
            await runtime.delete(sandbox)

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_unplaced_pod_does_not_take_room_promised_to_one_that_has_not_started(make_node: MakeNode) -> None:
    node = make_node(4)

    async def scenario() -> None:
        async with cluster_of(node) as cluster:
            placed = await cluster.bound("placed", {"min_tx_rate": 900})
            await cluster.promise(placed, PF0, 900)
            node.start_agent()
            await cluster.until(lambda: listed(node) == [1])
            runtime = node.runtime(chained=False, ours=NO_ANNOTATIONS)
            greedy = await cluster.bound("greedy", {"min_tx_rate": 600}, {"min_tx_rate": 600})
            with pytest.raises(CniError, match="cannot give pod default/greedy"):
                await runtime.add(greedy)
            modest = await cluster.bound("modest", {"min_tx_rate": 600})
            sandboxes = [await runtime.add(modest), await runtime.add(placed)]
            used = {pf for (pf, _), rates in node.rates().items() if rates[0] == "900Mbit"}
            assert used == {"enp1s0f0"}
            for each in sandboxes:
                await runtime.delete(each)

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_refused_pod_has_one_event_and_is_evicted_when_it_stays_stuck(make_node: MakeNode) -> None:
    node = make_node(4)

    async def scenario() -> None:
        async with cluster_of(node, stuckAfterS=0.5) as cluster:
            node.start_agent()
            runtime = node.runtime(chained=False)
            big = await cluster.bound("big", {"min_tx_rate": 5000}, told=True)
            while "deletionTimestamp" not in cluster.pod("big")["metadata"]:
                with pytest.raises(CniError, match="5000"):
                    await runtime.add(big)
                await asyncio.sleep(0.1)
            told = cluster.events()
            assert set(told) == {"RdmaExceedsCapacity", "RdmaEvicting"}
            assert {each["type"] for each in told.values()} == {"Warning"}
            assert {each["involvedObject"]["uid"] for each in told.values()} == {big.uid}
            assert "5000" in told["RdmaExceedsCapacity"]["message"]

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_pods_start_and_stop_while_the_api_server_is_silent(make_node: MakeNode) -> None:
    node = make_node(4)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        node.settings = {"kubeconfig": str(write_kubeconfig(node.directory / "kubeconfig", url))}
        node.start_agent()

        async def scenario() -> None:
            runtime = node.runtime(chained=False)
            async with asyncio.timeout(4):  # less than the agent waits for an answer of the API server
                sandbox = await runtime.add(pod("p", {"min_tx_rate": 100}))
                with pytest.raises(CniError, match="5000"):
                    await runtime.add(pod("big", {"min_tx_rate": 5000}))
                await runtime.delete(sandbox)

        asyncio.run(scenario())
        assert node.leftovers() == {}
