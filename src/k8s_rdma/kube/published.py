"""Published nodes in the API server: values, and a Protocol each for writers and readers.

`kube.client` is the implementation; errors as in `kube.api.ClusterApi`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from k8s_rdma.core.types import NodeName

if TYPE_CHECKING:
    from k8s_rdma.kube.api import Event, LeaseView


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaNodeView:
    """An `RdmaNode`. version: `resourceVersion`. status: its bytes, empty where there is none."""

    node: NodeName
    version: str
    status: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnNodeView:
    """The Node object of the node that publishes. capacity: of its status, quantities as written there."""

    uid: str
    capacity: Mapping[str, str]


class PublishedApi(Protocol):
    """The calls of who reads."""

    def follow_rdma_nodes(self) -> AsyncIterator[Event[RdmaNodeView]]:
        """List and watch as `ClusterApi.follow_pods`, the list in pages."""
        ...

    def follow_leases(self, namespace: str) -> AsyncIterator[Event[LeaseView]]:
        """The Leases of a namespace: as `ClusterApi.follow_pods`."""
        ...

    async def leases_version(self, namespace: str) -> int:
        """The version of the API server's Leases at some moment between the call and its answer.

        A Lease of a larger `resourceVersion` was written after that moment; both are of one kind of objects,
        of which versions may be compared ("Resource versions" in Kubernetes' API concepts).
        """
        ...


class PublishingApi(Protocol):
    """The calls of who writes; what is written of an older `version` is refused (409)."""

    def follow_node(self, node: NodeName) -> AsyncIterator[Event[OwnNodeView]]:
        """The Node object, if there is one: as `ClusterApi.follow_pods`."""
        ...

    async def get_rdma_node(self, node: NodeName) -> RdmaNodeView | None:
        """The `RdmaNode` as it is now, None when there is none."""
        ...

    async def create_rdma_node(self, node: NodeName, uid: str) -> RdmaNodeView:
        """Make it, without a status; it is deleted with the Node object of that UID."""
        ...

    async def write_status(self, written: RdmaNodeView) -> RdmaNodeView:
        """Replace its status; answers what is there then."""
        ...

    async def get_lease(self, namespace: str, name: str) -> LeaseView | None:
        """Implement `LeaseApi.get_lease`."""
        ...

    async def write_lease(self, lease: LeaseView) -> LeaseView:
        """Implement `LeaseApi.write_lease`."""
        ...

    async def set_capacity(self, node: NodeName, resource: str, count: int) -> None:
        """Set one resource of the capacity in the Node object's status."""
        ...
