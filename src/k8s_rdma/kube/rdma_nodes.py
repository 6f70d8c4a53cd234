"""`PublishedApi` and `PublishingApi` over lightkube, a part of `kube.client.Client`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec
from lightkube.core.resource import ApiInfo, GlobalResource, GlobalSubResource, ResourceDef
from lightkube.types import PatchType

from k8s_rdma.core.ids import NodeName
from k8s_rdma.kube.api import ApiRefusedError, ApiUncertainError
from k8s_rdma.kube.calls import following, named_errors, segment
from k8s_rdma.kube.objects import LeaseObject, Metadata, OwnedMetadata, OwnerReference
from k8s_rdma.kube.published import OwnNodeView, RdmaNodeView
from k8s_rdma.wire.rdma_node import GROUP, KIND, PLURAL, VERSION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from lightkube import AsyncClient

    from k8s_rdma.kube.api import Event, LeaseView

_RDMA_NODE = ResourceDef(GROUP, VERSION, KIND)
_NODE = ResourceDef("", "v1", "Node")
_MOST_DIGITS = 20
"""Of a version: 64 bits."""

_NO_SUCH_LEASE = "k8s-rdma-no-such-lease"


class _RdmaNodeFields(msgspec.Struct):
    metadata: Metadata
    apiVersion: str | None = None  # noqa: N815  the API's name
    kind: str | None = None
    spec: dict[str, Any] = {}
    status: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET

    def view(self) -> RdmaNodeView:
        """The same as a value; the status is a copy, so that no list stays in memory for its sake."""
        meta, status = self.metadata, self.status
        return RdmaNodeView(
            node=NodeName(meta.name),
            version=meta.resourceVersion or "",
            status=bytes(status) if isinstance(status, msgspec.Raw) else b"",
        )


class RdmaNodeObject(_RdmaNodeFields, GlobalResource):
    """An `RdmaNode`; its status is left as it came."""

    _api_info = ApiInfo(resource=_RDMA_NODE, plural=PLURAL, verbs=["get", "list", "watch", "post"])


class RdmaNodeStatusObject(_RdmaNodeFields, GlobalSubResource):
    """An `RdmaNode` as its status is written."""

    _api_info = ApiInfo(resource=_RDMA_NODE, parent=_RDMA_NODE, plural=PLURAL, verbs=["put"], action="status")


class _Capacity(msgspec.Struct, frozen=True):
    capacity: dict[str, str | int] | None = None


class OwnNodeObject(msgspec.Struct, GlobalResource):
    """A node as it is to itself."""

    _api_info = ApiInfo(resource=_NODE, plural="nodes", verbs=["list", "watch"])
    metadata: Metadata
    apiVersion: str | None = None  # noqa: N815  the API's name
    kind: str | None = None
    status: _Capacity = _Capacity()

    def view(self) -> OwnNodeView:
        """The same as a value."""
        capacity = {name: str(amount) for name, amount in (self.status.capacity or {}).items()}
        return OwnNodeView(uid=self.metadata.uid or "", capacity=capacity)


class NodeStatusObject(msgspec.Struct, GlobalSubResource):
    """A node as its status is patched."""

    _api_info = ApiInfo(resource=_NODE, parent=_NODE, plural="nodes", verbs=["patch"], action="status")
    metadata: Metadata


class RdmaNodes:
    """Both Protocols, but for the calls for a Lease, which its owner has; silence_s: as in `kube.client`."""

    def __init__(self, client: AsyncClient, *, silence_s: float) -> None:
        self._client = client
        self._silence_s = silence_s

    async def follow_rdma_nodes(self) -> AsyncIterator[Event[RdmaNodeView]]:
        """List and watch `/apis/k8s-rdma.io/v1alpha1/rdmanodes`; the list comes in pages."""
        async for event in self._follow(RdmaNodeObject, "rdmanodes", paged=True):
            yield cast("Event[RdmaNodeView]", event)

    async def follow_leases(self, namespace: str) -> AsyncIterator[Event[LeaseView]]:
        """List and watch the namespace's Leases."""
        where = {"namespace": segment(namespace)}
        async for event in self._follow(LeaseObject, f"leases of namespace {namespace}", **where):
            yield cast("Event[LeaseView]", event)

    async def follow_node(self, node: NodeName) -> AsyncIterator[Event[OwnNodeView]]:
        """List and watch `/api/v1/nodes`, that one."""
        fields = {"metadata.name": node}
        async for event in self._follow(OwnNodeObject, f"node {node}", fields=fields):
            yield cast("Event[OwnNodeView]", event)

    async def leases_version(self, namespace: str) -> int:
        """List the namespace's Leases of a name that none has: an answer without content, but a version."""
        what = f"list leases of namespace {namespace}"
        with named_errors(what):
            listing = self._client.list(
                LeaseObject, namespace=segment(namespace), fields={"metadata.name": _NO_SUCH_LEASE}
            )
            async for _ in listing:
                pass
            version = listing.resourceVersion
        if not (version.isdecimal() and len(version) <= _MOST_DIGITS):
            msg = f"{what}: a version that is no number: {version!r}"
            raise ApiUncertainError(msg)
        return int(version)

    async def get_rdma_node(self, node: NodeName) -> RdmaNodeView | None:
        """`GET /apis/k8s-rdma.io/v1alpha1/rdmanodes/NAME`."""
        try:
            with named_errors(f"get rdmanode {node}"):
                return (await self._client.get(RdmaNodeObject, segment(node))).view()
        except ApiRefusedError as refused:
            if refused.status == 404:
                return None
            raise

    async def create_rdma_node(self, node: NodeName, uid: str) -> RdmaNodeView:
        """`POST /apis/k8s-rdma.io/v1alpha1/rdmanodes`."""
        owner = OwnerReference(name=node, uid=uid)
        obj = RdmaNodeObject(metadata=OwnedMetadata(name=node, ownerReferences=[owner]))
        with named_errors(f"create rdmanode {node}"):
            return (await self._client.create(obj)).view()

    async def write_status(self, written: RdmaNodeView) -> RdmaNodeView:
        """`PUT /apis/k8s-rdma.io/v1alpha1/rdmanodes/NAME/status`."""
        obj = RdmaNodeStatusObject(
            metadata=Metadata(name=written.node, resourceVersion=written.version),
            status=msgspec.Raw(written.status),
        )
        with named_errors(f"write the status of rdmanode {written.node}"):
            return (await self._client.replace(obj, segment(written.node))).view()

    async def set_capacity(self, node: NodeName, resource: str, count: int) -> None:
        """`PATCH /api/v1/nodes/NAME/status`, a JSON merge patch."""
        patch = {"status": {"capacity": {resource: str(count)}}}
        with named_errors(f"set capacity of node {node}"):
            await self._client.patch(NodeStatusObject, segment(node), patch, patch_type=PatchType.MERGE)

    def _follow(self, kind: Any, what: str, **where: Any) -> AsyncIterator[Event[Any]]:
        return following(self._client, kind, what, silence_s=self._silence_s, **where)
