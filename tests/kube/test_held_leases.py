"""Leases that a node holds something by: created once, and deleted with the node."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.core.types import NodeName
from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma.kube.errors import ApiRefusedError
from k8s_rdma.kube.held_leases import HeldLeases
from k8s_rdma.kube.informer import Listed
from k8s_rdma.kube.published_api import LeaseView, OwnNodeView
from k8s_rdma_demo.cluster.objects import LEASES, NODES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

W1, W2 = NodeName("w1"), NodeName("w2")


async def test_lease_is_held_by_the_node_that_took_it_first_and_ends_with_it(cluster):
    async with cluster() as c:
        for name in (W1, W2):
            await c.create_node(name)
        first, second = (HeldLeases(c.client, node, "k8s-rdma", 60) for node in (W1, W2))
        assert await first.take("ip-10-0-0-1") == W1
        assert await second.take("ip-10-0-0-1") == W1
        assert await first.take("ip-10-0-0-1") == W1
        assert await second.take("ip-10-0-0-2") == W2
        stored = c.api.store.get(LEASES, ("k8s-rdma", "ip-10-0-0-1"))
        (owner,) = stored["metadata"]["ownerReferences"]
        node = c.api.store.get(NODES, ("", "w1"))
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", "w1", node["metadata"]["uid"])
    assert (stored["spec"]["holderIdentity"], stored["spec"]["leaseDurationSeconds"]) == ("w1", 60)


async def test_lease_is_not_taken_for_a_node_that_does_not_exist(cluster):
    async with cluster() as c:
        with pytest.raises(K8sRdmaError, match="no Node w1, with which its Lease a would end") as refused:
            await HeldLeases(c.client, W1, "k8s-rdma", 60).take("a")
        assert refused.value.reason is Reason.API_FAILURE
        assert await c.client.get_lease("k8s-rdma", "a") is None


@dataclass
class Race:
    """An API server in which another node creates the Lease after it was read.

    status: of the refusal. is_deleted: whether the other one has deleted it again by the next look.
    """

    status: int = 409
    is_deleted: bool = False
    written: list[LeaseView] = field(default_factory=list)

    async def get_lease(self, namespace: str, name: str) -> LeaseView | None:
        if not self.written or self.is_deleted:
            return None
        return replace(self.written[0], holder=W2, version="1")

    async def write_lease(self, lease: LeaseView) -> LeaseView:
        self.written.append(lease)
        raise ApiRefusedError("write lease: refused", status=self.status)

    async def follow_node(self, node: NodeName) -> AsyncIterator[Listed[OwnNodeView]]:
        yield Listed((OwnNodeView(uid=f"uid of {node}", capacity={}),))


@pytest.mark.parametrize(("is_deleted", "holder"), [(False, W2), (True, None)])
async def test_lease_that_another_node_took_meanwhile_has_the_holder_of_now(is_deleted, holder):
    api = Race(is_deleted=is_deleted)
    assert await HeldLeases(api, W1, "k8s-rdma", 60).take("a") == holder
    (lease,) = api.written
    assert (lease.holder, lease.owner, lease.owner_name) == (W1, "uid of w1", "w1")


async def test_lease_that_may_not_be_written_is_an_error():
    with pytest.raises(ApiRefusedError) as refused:
        await HeldLeases(Race(status=403), W1, "k8s-rdma", 60).take("a")
    assert refused.value.status == 403
