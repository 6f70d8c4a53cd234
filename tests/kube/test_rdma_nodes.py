"""Objects that nodes publish: written with preconditions, followed as bytes."""

from __future__ import annotations

import pytest

from k8s_rdma.core.types import NodeName
from k8s_rdma.kube.errors import ApiRefusedError
from k8s_rdma.kube.informer import Changed, Deleted, Listed
from k8s_rdma.kube.published_api import LeaseView, RdmaNodeView
from k8s_rdma_demo.cluster.api import ApiConfig
from k8s_rdma_demo.cluster.objects import LEASES, NODES, parse_resource_type

pytestmark = pytest.mark.anyio

RDMA_NODES = parse_resource_type("k8s-rdma.io/v1alpha1/rdmanodes/RdmaNode")
CONFIG = ApiConfig(custom_resources=(RDMA_NODES,))
W1 = NodeName("w1")


def status(node: RdmaNodeView, text: bytes) -> RdmaNodeView:
    return RdmaNodeView(node=node.node, version=node.version, status=text)


async def test_rdma_node_goes_with_its_node_and_is_made_without_a_status(cluster):
    async with cluster(CONFIG) as c:
        api = c.client
        assert await api.get_rdma_node(W1) is None
        made = await api.create_rdma_node(W1, "uid-1")
        assert (made.node, made.status) == (W1, b"")
        assert await api.get_rdma_node(W1) == made
        stored = c.api.store.get(RDMA_NODES, ("", "w1"))
        owner = {"apiVersion": "v1", "kind": "Node", "name": "w1", "uid": "uid-1"}
        assert (stored["metadata"]["ownerReferences"], stored["spec"]) == ([owner], {})


async def test_status_is_replaced_as_a_whole(cluster):
    async with cluster(CONFIG) as c:
        api = c.client
        made = await api.create_rdma_node(W1, "uid-1")
        first = await api.write_status(status(made, b'{"a":1,"b":[2]}'))
        assert first.status == b'{"a":1,"b":[2]}'
        assert (await api.write_status(status(first, b'{"b":[]}'))).status == b'{"b":[]}'


async def test_status_of_an_older_version_is_not_written(cluster):
    async with cluster(CONFIG) as c:
        api = c.client
        made = await api.create_rdma_node(W1, "uid-1")
        await api.write_status(status(made, b'{"a":1}'))
        with pytest.raises(ApiRefusedError) as refused:
            await api.write_status(status(made, b'{"a":2}'))
        assert refused.value.status == 409


async def test_rdma_nodes_are_followed(cluster):
    async with cluster(CONFIG) as c:
        api = c.client
        made = await api.create_rdma_node(W1, "uid-1")
        events = api.follow_rdma_nodes()
        assert await anext(events) == Listed((made,))
        written = await api.write_status(status(made, b'{"a":1}'))
        assert await anext(events) == Changed(written)
        await c.http.delete("/apis/k8s-rdma.io/v1alpha1/rdmanodes/w1")
        gone = await anext(events)
        assert isinstance(gone, Deleted)
        assert gone.item.node == W1
        await events.aclose()


async def test_leases_of_a_namespace_are_followed_and_go_with_their_node(cluster):
    async with cluster() as c:
        api = c.client
        lease = LeaseView(namespace="k8s-rdma", name="w1", holder="4f.1", duration_s=40, owner="uid-1")
        await api.write_lease(LeaseView(namespace="other", name="x", holder="x", duration_s=1))
        made = await api.write_lease(lease)
        events = api.follow_leases("k8s-rdma")
        assert await anext(events) == Listed((made,))
        renewed = LeaseView(
            namespace="k8s-rdma", name="w1", holder="4f.2", duration_s=40, version=made.version
        )
        written = await api.write_lease(renewed)
        assert await anext(events) == Changed(written)
        assert written.holder == "4f.2"
        (owner,) = c.api.store.get(LEASES, ("k8s-rdma", "w1"))["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Node", "uid-1")
        await events.aclose()


async def test_version_of_leases_is_between_earlier_and_later_writes(cluster):
    async with cluster() as c:
        api = c.client
        lease = LeaseView(namespace="k8s-rdma", name="w1", holder="4f.1", duration_s=40)
        before = await api.write_lease(lease)
        version = await api.leases_version("k8s-rdma")
        renewed = LeaseView(
            namespace="k8s-rdma", name="w1", holder="4f.2", duration_s=40, version=before.version
        )
        after = await api.write_lease(renewed)
        assert int(before.version) <= version < int(after.version)


async def test_capacity_is_set_beside_existing_ones(cluster):
    async with cluster() as c:
        await c.create_node("w1")
        api = c.client
        events = api.follow_node(W1)
        (listed,) = (await anext(events)).items
        assert listed.uid == c.api.store.get(NODES, ("", "w1"))["metadata"]["uid"]
        await api.set_capacity(W1, "k8s-rdma.io/vf", 240)
        assert (await anext(events)).item.capacity == {"k8s-rdma.io/vf": "240"}
        await c.create_node("w2")
        await api.set_capacity(W1, "other.io/x", 1)
        assert (await anext(events)).item.capacity == {"k8s-rdma.io/vf": "240", "other.io/x": "1"}
        await events.aclose()
