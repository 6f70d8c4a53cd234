"""ResourceSlices of a node, ResourceClaims and pods as documents (`resource.k8s.io/v1`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
from lightkube import ApiError
from lightkube.core.resource import (
    ApiInfo,
    GlobalResource,
    NamespacedResource,
    NamespacedSubResource,
    ResourceDef,
)
from lightkube.types import PatchType

from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.documents import named_errors, segment
from k8s_rdma.kube.errors import ApiRefusedError, ApiUncertainError
from k8s_rdma.kube.list_watch import ObjectSelection, watch_objects
from k8s_rdma.wire.claims import DRIVER
from k8s_rdma.wire.nesting import TOO_DEEP, NestingError, require_shallow
from k8s_rdma.wire.objects.meta import ObjectIdentity, OwnerReference, WholeMeta

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2
    from lightkube import AsyncClient

    from k8s_rdma.core.types import NodeName
    from k8s_rdma.kube.informer import Event

_API = "resource.k8s.io"
_CLAIM = ResourceDef(_API, "v1", "ResourceClaim")
_NOT_FOUND = 404
_NULL = msgspec.Raw(b"null")


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceView:
    """A ResourceSlice. spec: as the API server has it. version: of the object."""

    name: str
    version: str
    spec: bytes


class ResourceSliceObject(msgspec.Struct, GlobalResource):
    """A ResourceSlice; its `spec` is left as it came."""

    _api_info = ApiInfo(
        resource=ResourceDef(_API, "v1", "ResourceSlice"),
        plural="resourceslices",
        verbs=["get", "list", "watch", "post", "put", "patch", "delete"],
    )
    metadata: WholeMeta
    apiVersion: str | None = None  # noqa: N815  the API's name
    kind: str | None = None
    spec: msgspec.Raw = _NULL

    def view(self) -> SliceView:
        """Return the object as a value."""
        meta = self.metadata
        return SliceView(name=meta.name, version=meta.resource_version, spec=bytes(self.spec))


class _Document(msgspec.Struct, omit_defaults=True):
    """An object whose parts are left as they came."""

    metadata: msgspec.Raw = _NULL
    apiVersion: str | None = None  # noqa: N815  the API's name
    kind: str | None = None
    spec: msgspec.Raw = _NULL
    status: msgspec.Raw = _NULL


class ResourceClaimDocument(_Document, NamespacedResource):
    """A ResourceClaim."""

    _api_info = ApiInfo(resource=_CLAIM, plural="resourceclaims", verbs=["get"])


class ResourceClaimStatusDocument(_Document, NamespacedSubResource):
    """A ResourceClaim's status."""

    _api_info = ApiInfo(
        resource=_CLAIM, parent=_CLAIM, plural="resourceclaims", verbs=["patch"], action="status"
    )


class PodDocument(_Document, NamespacedResource):
    """A pod."""

    _api_info = ApiInfo(resource=ResourceDef("", "v1", "Pod"), plural="pods", verbs=["get"])


D = TypeVar("D", ResourceClaimDocument, PodDocument)


class SlicesApi(Protocol):
    """The calls of a DRA driver. They raise `kube.api`'s errors."""

    def follow_slices(self, node: NodeName, driver: str) -> AsyncIterator[Event[SliceView]]:
        """List and watch the slices of a node and driver."""
        ...

    async def create_slice(
        self, name: str, spec: dict[str, Any], owner: OwnerReference, *, dry_run: bool = False
    ) -> SliceView:
        """Create a slice that is deleted with its owner, and return it as it was, or would be, stored."""
        ...

    async def replace_slice(self, found: SliceView, spec: dict[str, Any], owner: OwnerReference) -> SliceView:
        """Replace a slice unless it has changed since, and return it as it was stored."""
        ...

    async def delete_slice(self, name: str) -> None:
        """Delete a slice; one that is gone is no failure."""
        ...

    async def annotate_slice(self, name: str, key: str, value: str) -> None:
        """Set an annotation of a slice."""
        ...

    async def get_claim_document(self, namespace: str, name: str) -> bytes | None:
        """Read a ResourceClaim as JSON of one line, if the API server has it.

        MalformedError for one that is nested too deep to be read.
        """
        ...

    async def apply_claim_status(self, namespace: str, name: str, status: dict[str, Any], uid: str) -> None:
        """Apply this driver's fields of a claim's status, unless the claim has another UID (409)."""
        ...

    async def get_pod_document(self, namespace: str, name: str) -> bytes | None:
        """Read a pod as JSON of one line, if it exists; MalformedError as for claims."""
        ...

    async def node_uid(self, node: NodeName) -> str:
        """Read the UID of a Node object."""
        ...


class ResourceSlices:
    """Implements `SlicesApi` by a lightkube client; silence_s: as in `kube.client`."""

    _client: AsyncClient
    _http: httpx2.AsyncClient
    _silence_s: float

    async def follow_slices(self, node: NodeName, driver: str) -> AsyncIterator[Event[SliceView]]:
        """List and watch `/apis/resource.k8s.io/v1/resourceslices` of a node and driver."""
        selection = ObjectSelection(
            kind=ResourceSliceObject,
            subject=f"resourceslices of {driver} on node {node}",
            fields={"spec.nodeName": node, "spec.driver": driver},
        )
        objects = watch_objects(self._http, selection, silence_s=self._silence_s)
        async for event in objects:
            yield event

    async def create_slice(
        self, name: str, spec: dict[str, Any], owner: OwnerReference, *, dry_run: bool = False
    ) -> SliceView:
        """`POST /apis/resource.k8s.io/v1/resourceslices`."""
        metadata = WholeMeta(name=name, owner_references=(owner,))
        with named_errors(f"create resourceslice {name}"):
            return (await self._client.create(_slice(metadata, spec), dry_run=dry_run)).view()

    async def replace_slice(self, found: SliceView, spec: dict[str, Any], owner: OwnerReference) -> SliceView:
        """`PUT /apis/resource.k8s.io/v1/resourceslices/NAME`."""
        metadata = WholeMeta(name=found.name, resource_version=found.version, owner_references=(owner,))
        with named_errors(f"replace resourceslice {found.name}"):
            return (await self._client.replace(_slice(metadata, spec), segment(found.name))).view()

    async def delete_slice(self, name: str) -> None:
        """`DELETE /apis/resource.k8s.io/v1/resourceslices/NAME`."""
        try:
            with named_errors(f"delete resourceslice {name}"):
                await self._client.delete(ResourceSliceObject, segment(name))
        except ApiRefusedError as refused:
            if refused.status != _NOT_FOUND:
                raise

    async def annotate_slice(self, name: str, key: str, value: str) -> None:
        """`PATCH /apis/resource.k8s.io/v1/resourceslices/NAME`, a strategic merge patch."""
        patch = {"metadata": {"annotations": {key: value}}}
        with named_errors(f"annotate resourceslice {name}"):
            await self._client.patch(ResourceSliceObject, segment(name), patch)

    async def get_claim_document(self, namespace: str, name: str) -> bytes | None:
        """`GET /apis/resource.k8s.io/v1/namespaces/NS/resourceclaims/NAME`."""
        return await self._document(ResourceClaimDocument, namespace, name)

    async def apply_claim_status(self, namespace: str, name: str, status: dict[str, Any], uid: str) -> None:
        """`PATCH /apis/resource.k8s.io/v1/namespaces/NS/resourceclaims/NAME/status`, a server-side apply."""
        kind = ResourceClaimStatusDocument
        patch = {
            "apiVersion": _CLAIM.api_version,
            "kind": _CLAIM.kind,
            "metadata": {"name": name, "namespace": namespace, "uid": uid},
            "status": status,
        }
        with named_errors(f"apply status of resourceclaim {namespace}/{name}"):
            await self._client.patch(
                kind,
                segment(name),
                patch,
                namespace=segment(namespace),
                patch_type=PatchType.APPLY,
                field_manager=DRIVER,
                force=True,
            )

    async def get_pod_document(self, namespace: str, name: str) -> bytes | None:
        """`GET /api/v1/namespaces/NS/pods/NAME`."""
        return await self._document(PodDocument, namespace, name)

    async def node_uid(self, node: NodeName) -> str:
        """`GET /api/v1/nodes/NAME`."""
        with named_errors(f"get node {node}"):
            return (await self._client.get(NodeUidObject, segment(node))).metadata.uid

    async def _document(self, kind: type[D], namespace: str, name: str) -> bytes | None:
        """Read an object, if it exists; only a Status that names it counts, because proxies answer 404."""
        try:
            with named_errors(f"get {kind._api_info.plural} {namespace}/{name}"):
                return await self._get(kind, namespace, name)
        except ApiRefusedError as refused:
            if refused.status != _NOT_FOUND:
                raise
            msg = f"{refused.message}: the answer does not say whether there is {name}"
            raise ApiUncertainError(msg) from refused

    async def _get(self, kind: type[D], namespace: str, name: str) -> bytes | None:
        plural = kind._api_info.plural
        try:
            found = await self._client.get(kind, segment(name), namespace=segment(namespace))
            document = msgspec.json.format(msgspec.json.encode(found), indent=-1)
            require_shallow(document)
        except ApiError as error:
            details = error.status.details
            named = details is not None and (details.kind, details.name) == (plural, name)
            if named and error.status.reason == "NotFound":
                return None
            raise
        except (RecursionError, NestingError) as error:
            msg = f"{plural} {namespace}/{name}: {TOO_DEEP}"
            raise MalformedError(msg) from error
        return document


class NodeUidObject(msgspec.Struct, GlobalResource):
    """A node's name and UID."""

    _api_info = ApiInfo(resource=ResourceDef("", "v1", "Node"), plural="nodes", verbs=["get"])
    metadata: ObjectIdentity


def _slice(metadata: WholeMeta, spec: dict[str, Any]) -> ResourceSliceObject:
    return ResourceSliceObject(metadata=metadata, spec=msgspec.Raw(msgspec.json.encode(spec)))
