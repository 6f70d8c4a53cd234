"""The part of the Kubernetes API by which nodes are published: values and Protocols.

Agents write the RdmaNode and the Leases of their node, and the extender reads those of all nodes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from k8s_rdma.core.types import NodeName

if TYPE_CHECKING:
    from k8s_rdma.kube.informer import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseView:
    """A Lease of `coordination.k8s.io/v1`.

    holder: `holderIdentity`, empty if it was released.
    duration_s: `leaseDurationSeconds`, whole seconds for which a renewal counts.
    version: `resourceVersion`, another one with every write; empty while the object does not exist.
    owner: the UID of a Node object with which it is to be deleted; used when it is created.
    owner_name: of that Node, if the Lease does not have its name.
    """

    namespace: str
    name: str
    holder: str
    duration_s: int
    version: str = ""
    owner: str = ""
    owner_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaNodeView:
    """An `RdmaNode`. version: `resourceVersion`. status: its bytes, empty without a status."""

    node: NodeName
    version: str
    status: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnNodeView:
    """The Node object of the node that publishes. capacity: of its status, quantities as written there."""

    uid: str
    capacity: Mapping[str, str]


class LeaseApi(Protocol):
    """The calls for a Lease; errors as in `ClusterApi`."""

    async def get_lease(self, namespace: str, name: str) -> LeaseView | None:
        """Return the present state of the Lease, if it exists."""
        ...

    async def write_lease(self, lease: LeaseView) -> LeaseView:
        """Take, renew or release: set holder and duration, with the present time; return the result.

        It creates the object if `version` is empty.
        ApiRefusedError with 409 if it exists already, or has another version: somebody else has written it.
        """
        ...


class PublishedApi(Protocol):
    """The calls of who reads."""

    def follow_rdma_nodes(self) -> AsyncIterator[Event[RdmaNodeView]]:
        """List and watch as `ClusterApi.follow_pods`, the list in pages."""
        ...

    def follow_leases(self, namespace: str) -> AsyncIterator[Event[LeaseView]]:
        """Follow the Leases of a namespace, as `ClusterApi.follow_pods`."""
        ...

    async def leases_version(self, namespace: str) -> int:
        """Return the version of the API server's Leases at some moment between the call and its answer.

        A Lease of a larger `resourceVersion` was written after that moment. Both are of one kind of objects,
        so their versions may be compared ("Resource versions" in Kubernetes' API concepts).
        """
        ...


class PublishingApi(Protocol):
    """The calls of a writer; a write with an older `version` is refused (409)."""

    def follow_node(self, node: NodeName) -> AsyncIterator[Event[OwnNodeView]]:
        """Follow the Node object, if it exists, as `ClusterApi.follow_pods`."""
        ...

    async def get_rdma_node(self, node: NodeName) -> RdmaNodeView | None:
        """Return the present state of the `RdmaNode`, if it exists."""
        ...

    async def create_rdma_node(self, node: NodeName, uid: str) -> RdmaNodeView:
        """Make it, without a status; it is deleted with the Node object of that UID."""
        ...

    async def write_status(self, written: RdmaNodeView) -> RdmaNodeView:
        """Replace its status; return the result."""
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


class AddressesApi(Protocol):
    """The calls by which an agent holds addresses for its pods; errors as in `ClusterApi`."""

    def follow_node(self, node: NodeName) -> AsyncIterator[Event[OwnNodeView]]:
        """Implement `PublishingApi.follow_node`."""
        ...

    async def find_rdma_node(self, matches: Callable[[RdmaNodeView], bool]) -> RdmaNodeView | None:
        """Return the first `RdmaNode` that matches, if one does."""
        ...

    async def get_lease(self, namespace: str, name: str) -> LeaseView | None:
        """Implement `LeaseApi.get_lease`."""
        ...

    async def write_lease(self, lease: LeaseView) -> LeaseView:
        """Implement `LeaseApi.write_lease`."""
        ...

    async def delete_lease(self, lease: LeaseView) -> None:
        """Delete that version of a Lease: 409 if somebody has written it since, 404 if it is gone."""
        ...
