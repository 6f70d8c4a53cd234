"""Leases by which a node holds something in the cluster, for example an address, or a block of them.

The API server creates an object of a name once, so that two nodes never hold one thing. A Lease ends with the
Node object.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Protocol, cast

from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma.kube.errors import ApiRefusedError
from k8s_rdma.kube.informer import Listed
from k8s_rdma.kube.published_api import LeaseApi, LeaseView

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from k8s_rdma.core.types import NodeName
    from k8s_rdma.kube.informer import Event
    from k8s_rdma.kube.published_api import OwnNodeView

_CONFLICT = 409


class LeaseHolderApi(LeaseApi, Protocol):
    """The calls to hold a Lease for a node; errors as in `ClusterApi`."""

    def follow_node(self, node: NodeName) -> AsyncIterator[Event[OwnNodeView]]:
        """Implement `PublishingApi.follow_node`."""
        ...


class HeldLeases:
    """Holds Leases of a namespace for a node. duration_s: that they name; they end otherwise."""

    def __init__(self, api: LeaseHolderApi, node: NodeName, namespace: str, duration_s: int) -> None:
        """Send no request yet."""
        self._api = api
        self._node = node
        self._namespace = namespace
        self._duration_s = duration_s

    async def take(self, name: str) -> str | None:
        """Create the Lease of a name, unless it exists; return its holder.

        The holder is unknown (None) if another node created it at the same time and has deleted it since.
        K8sRdmaError (`API_FAILURE`) if there is no Node object.
        """
        lease = await self._api.get_lease(self._namespace, name)
        if lease is None:
            new_lease = LeaseView(
                namespace=self._namespace,
                name=name,
                holder=self._node,
                duration_s=self._duration_s,
                owner=await self._node_uid(name),
                owner_name=self._node,
            )
            try:
                lease = await self._api.write_lease(new_lease)
            except ApiRefusedError as refused:
                if refused.status != _CONFLICT:
                    raise
                lease = await self._api.get_lease(self._namespace, name)
        return None if lease is None else lease.holder

    async def _node_uid(self, name: str) -> str:
        async with aclosing(cast("Any", self._api.follow_node(self._node))) as events:
            async for event in events:
                if isinstance(event, Listed) and event.items:
                    return str(event.items[0].uid)
                break
        msg = f"addresses: the API server has no Node {self._node}, with which its Lease {name} would end"
        raise K8sRdmaError(msg, reason=Reason.API_FAILURE)
