"""Nodes that share a subnet by blocks: by Leases of an API server, and addresses by Debian's host-local."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_interface, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agent.passing_time import PassingTime
from agent.test_ipam import host_local, leases, needs_plugins, pod_with
from k8s_rdma.agent.plugins.address_blocks import VERIFY_S, AddressBlocks, lease_prefix
from k8s_rdma.agent.plugins.execution import Plugins
from k8s_rdma.agent.plugins.ipam import IpamPlugins
from k8s_rdma.core.types import NodeName
from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma.kube.client import Client, connect
from k8s_rdma.wire.plugin_config import AddressSpace
from k8s_rdma_demo.cluster.api import Api
from k8s_rdma_demo.cluster.command import write_kubeconfig
from k8s_rdma_demo.cluster.http_server import HttpService, Request, Response, Stream, serving
from k8s_rdma_demo.cluster.objects import BUILT_IN, LEASES, NODES, Target
from k8s_rdma_demo.cluster.registry import Registry
from k8s_rdma_demo.cluster.store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

SPACE = AddressSpace(ip_network("10.56.0.0/16"), 24)
FEW = AddressSpace(ip_network("10.57.0.0/24"), 26)
NAMESPACE = "k8s-rdma"
DEADLINE_S = 120


@dataclass
class World:
    """An API server, and nodes whose agents claim blocks. fails: it answers 503."""

    directory: Path
    client: Client
    store: Store
    registry: Registry
    time: PassingTime = field(default_factory=PassingTime)
    fails: bool = False
    requests: int = 0

    def node(self, name: str, *, made: bool = True) -> AddressBlocks:
        """An agent of a node that has just started."""
        if made and self.store.get(NODES, ("", name)) is None:
            self.registry.create(Target(resource=NODES), {"metadata": {"name": name}})
        file = self.directory / f"{name}.json"
        return AddressBlocks(self.client, NodeName(name), NAMESPACE, file, self.time.time())

    def lease(self, space: AddressSpace, index: int) -> dict[str, Any] | None:
        return self.store.get(LEASES, (NAMESPACE, f"{lease_prefix(space)}{index}"))

    def holders(self, space: AddressSpace) -> dict[int, str]:
        found = {index: self.lease(space, index) for index in range(space.blocks)}
        return {index: lease["spec"]["holderIdentity"] for index, lease in found.items() if lease}

    def hold(self, space: AddressSpace, index: int, holder: str) -> None:
        """Another's Lease."""
        meta = {"name": f"{lease_prefix(space)}{index}", "namespace": NAMESPACE}
        self.registry.create(
            Target(resource=LEASES, namespace=NAMESPACE),
            {"metadata": meta, "spec": {"holderIdentity": holder}},
        )

    def free(self, space: AddressSpace, index: int) -> None:
        self.store.remove(LEASES, (NAMESPACE, f"{lease_prefix(space)}{index}"))


@asynccontextmanager
async def cluster(directory: Path) -> AsyncIterator[World]:
    store = Store()
    registry = Registry(store=store)
    api = Api(registry, BUILT_IN)

    async def handle(request: Request) -> Response | Stream:
        world.requests += 1
        return Response(status=503, body=b"{}") if world.fails else await api.handle(request)

    service = HttpService(handle=handle, refuse=lambda status: Response(status=status, body=b"{}"))
    async with asyncio.timeout(DEADLINE_S), serving(service, "127.0.0.1", 0) as port:
        client = connect(str(write_kubeconfig(directory / "kubeconfig", f"http://127.0.0.1:{port}")))
        world = World(directory, client, store, registry)
        try:
            yield world
        finally:
            await client.close()


async def test_nodes_that_take_blocks_at_one_time_have_their_own(tmp_path: Path):
    async with cluster(tmp_path) as w:
        nodes = [w.node(f"w{number}") for number in range(FEW.blocks)]
        found = await asyncio.gather(*(node.block(FEW) for node in nodes))
        assert sorted(found) == [0, 1, 2, 3]
        assert w.holders(FEW) == {index: f"w{number}" for number, index in enumerate(found)}


async def test_lease_is_the_nodes_and_is_deleted_with_it(tmp_path: Path):
    async with cluster(tmp_path) as w:
        index = await w.node("w1").block(SPACE)
        lease = w.lease(SPACE, index)
        assert lease is not None
        [owner] = lease["metadata"]["ownerReferences"]
        node = w.store.get(NODES, ("", "w1"))
        assert node is not None
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", "w1", node["metadata"]["uid"])
        assert lease["metadata"]["name"] == f"addresses.10-56-0-0.16.24.{index}"


async def test_block_is_requested_once_and_kept_over_a_restart(tmp_path: Path):
    async with cluster(tmp_path) as w:
        agent = w.node("w1")
        index = await agent.block(SPACE)
        asked = w.requests
        assert await agent.block(SPACE) == index
        assert w.requests == asked
        assert await w.node("w1").block(SPACE) == index
        assert list(w.holders(SPACE).values()) == ["w1"]
        (tmp_path / "w1.json").unlink()
        assert await w.node("w1").block(SPACE) == index


async def test_former_block_stands_while_the_api_server_does_not_answer(tmp_path: Path):
    async with cluster(tmp_path) as w:
        index = await w.node("w1").block(SPACE)
        w.fails = True
        assert await w.node("w1").block(SPACE) == index
        with pytest.raises(K8sRdmaError, match="addresses: no block of") as caught:
            await w.node("w2").block(SPACE)
        assert caught.value.reason is Reason.API_FAILURE
        w.fails = False
        assert await w.node("w2").block(SPACE) != index


async def test_deleted_lease_is_made_again_and_one_that_another_took_is_left(tmp_path: Path):
    async with cluster(tmp_path) as w:
        agent = w.node("w1")
        index = await agent.block(SPACE)
        w.free(SPACE, index)
        assert await agent.block(SPACE) == index
        assert not w.holders(SPACE)
        w.time.seconds += VERIFY_S
        assert await agent.block(SPACE) == index
        assert w.holders(SPACE) == {index: "w1"}
        w.free(SPACE, index)
        w.hold(SPACE, index, "w2")
        w.time.seconds += VERIFY_S
        assert await agent.block(SPACE) == (index + 1) % SPACE.blocks
        assert w.holders(SPACE) == {index: "w2", (index + 1) % SPACE.blocks: "w1"}


async def test_full_subnet_is_refused_with_advice(tmp_path: Path):
    async with cluster(tmp_path) as w:
        for index in range(FEW.blocks):
            w.hold(FEW, index, "w2")
        with pytest.raises(K8sRdmaError) as caught:
            await w.node("w1").block(FEW)
        assert caught.value.reason is Reason.IPAM_FAILURE
        assert caught.value.message == (
            "addresses: none of 4 blocks of 10.57.0.0/24 in blocks of /26 is free; their holders: kubectl -n "
            "k8s-rdma get leases | grep addresses.10-57-0-0.24.26.; a larger range, or fewer addresses in "
            "ipam.perNode, makes more blocks"
        )
        w.free(FEW, 2)
        assert await w.node("w1").block(FEW) == 2


async def test_node_without_a_node_object_takes_no_block(tmp_path: Path):
    async with cluster(tmp_path) as w:
        with pytest.raises(K8sRdmaError, match="has no Node w9"):
            await w.node("w9", made=False).block(FEW)
        assert not w.holders(FEW)


@pytest.mark.parametrize("text", ["", "[1]", '{"addresses.10-56-0-0.16.24.": "x"}', "\xff"])
async def test_unreadable_file_counts_as_none(tmp_path: Path, text: str):
    async with cluster(tmp_path) as w:
        index = await w.node("w1").block(SPACE)
        (tmp_path / "w1.json").write_bytes(text.encode("latin-1"))
        assert await w.node("w1").block(SPACE) == index
        assert json.loads((tmp_path / "w1.json").read_text()) == {lease_prefix(SPACE): index}


@needs_plugins
async def test_pods_of_two_nodes_have_addresses_of_one_subnet_and_never_the_same(tmp_path: Path):
    plugins = Plugins(host_root=Path("/"), timeout_s=30)
    given: dict[str, set[str]] = {}
    async with cluster(tmp_path) as w:
        for name in ("w1", "w2"):
            ipams = IpamPlugins(plugins, w.node(name))
            ipam = host_local(tmp_path / name, "10.57.0.0/24", "fd00:7::/120", perNode=64)
            pod = pod_with(20, ipam)
            results = await ipams.add(pod)
            found = {address for result in results.values() for address in result.addresses}
            given[name] = {str(ip_interface(address).ip) for address in found}
            assert {ip_interface(address).network for address in found} == {
                ip_network("10.57.0.0/24"),
                ip_network("fd00:7::/120"),
            }
            assert len(leases(tmp_path / name)) == 40
            await ipams.check(pod, {})
            await ipams.collect([ipam], [pod])
            assert len(leases(tmp_path / name)) == 40
            await ipams.delete(pod)
            assert not leases(tmp_path / name)
    assert len(given["w1"]) == len(given["w2"]) == 40
    assert not given["w1"] & given["w2"]


@needs_plugins
def test_agent_without_credentials_refuses_before_it_takes_a_block(tmp_path: Path):
    ipams = IpamPlugins(Plugins(host_root=Path("/"), timeout_s=30))
    with pytest.raises(
        K8sRdmaError, match="perNode: nodes share a subnet by Leases, and the agent has no cred"
    ):
        ipams.require([host_local(tmp_path, "10.57.0.0/24", perNode=True)])
