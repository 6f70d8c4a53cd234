"""The Protocols of `kube.api` and `kube.api` over lightkube: pods, nodes, Leases, RdmaNodes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import msgspec
from lightkube import AsyncClient, SingleConfig
from lightkube.config.models import Cluster, Context, User
from lightkube.core.resource import ApiInfo, GlobalResource, GlobalSubResource, ResourceDef
from lightkube.operators import equal, not_in
from lightkube.types import PatchType

from k8s_rdma.core.types import NodeName
from k8s_rdma.kube.access_reviews import AccessReviews
from k8s_rdma.kube.connections import async_client
from k8s_rdma.kube.documents import connections_of, named_errors, read_refusal, segment
from k8s_rdma.kube.errors import ApiRefusedError, ApiUncertainError
from k8s_rdma.kube.kubeconfig import process_api_server, usable_credentials
from k8s_rdma.kube.list_watch import ObjectSelection, Status, decode_object, watch_objects
from k8s_rdma.kube.objects import (
    BindingObject,
    BudgetObject,
    EventObject,
    EvictionObject,
    LeaseObject,
    NodeObject,
    PodObject,
)
from k8s_rdma.kube.pod_groups import PodGroups
from k8s_rdma.kube.published_api import LeaseView, OwnNodeView, RdmaNodeView
from k8s_rdma.kube.resource_slices import ResourceSlices
from k8s_rdma.kube.selection import KubeconfigSelection
from k8s_rdma.wire.objects.meta import ObjectIdentity, ObjectMeta, OwnerReference, WholeMeta
from k8s_rdma.wire.objects.node import NodeStatus
from k8s_rdma.wire.rdma_node import GROUP, KIND, PLURAL, VERSION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    import httpx2

    from k8s_rdma.core.ledger import Pod
    from k8s_rdma.core.pod_group import PodGroup
    from k8s_rdma.core.types import Gang
    from k8s_rdma.kube.api import BudgetView, NodeView, ObjectEvent, PodBinding, PodView
    from k8s_rdma.kube.informer import Event

_NOT_FOUND = 404


_RDMA_NODE = ResourceDef(GROUP, VERSION, KIND)
_NODE = ResourceDef("", "v1", "Node")
_MOST_DIGITS = 20
"""The number of digits of a version: 64 bits."""

NODES_OF_A_PAGE = 100
"""The number of `RdmaNode`s in a page, of 20 KB each as a rule."""

_NO_SUCH_LEASE = "k8s-rdma-no-such-lease"

_NO_MANAGED_FIELDS: dict[str, list[dict[str, str]]] = {"managedFields": [{}]}
"""Leases without the record of who wrote each field take half the bytes in etcd and in every watch. Source:
Kubernetes' documentation, "Server-Side Apply", "Clearing managedFields"."""

SILENCE_S = 600.0
"""Nodes alone make a change every five minutes, by their status."""

KEEPALIVE_S = 75.0
"""An agent renews its Lease every 60 s. The API server closes idle connections after 90 s (`IdleTimeout`,
k8s.io/apiserver/pkg/server/secure_serving.go). Firewalls and load balancers that drop them silently usually
do so after minutes."""

FIRST_PAUSE_S = 0.05
LAST_PAUSE_S = 5.0
STEADY_S = 10.0
"""A watch that began so long ago was a good one: the next one may begin at once."""

_UNFINISHED = {"status.phase": not_in(("Succeeded", "Failed"))}
"""Pods that pass this leave the watch with DELETED when they finish (API conventions, field selectors)."""

_JSON = {"Content-Type": "application/json"}


class _RdmaNodeFields(msgspec.Struct):
    metadata: ObjectMeta
    apiVersion: str | None = None  # noqa: N815  the API's name
    kind: str | None = None
    spec: dict[str, Any] = {}
    status: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET

    def view(self) -> RdmaNodeView:
        """Return the object as a value; the status is a copy, so that the list does not stay in memory."""
        meta, status = self.metadata, self.status
        return RdmaNodeView(
            node=NodeName(meta.name),
            version=meta.resource_version,
            status=bytes(status) if isinstance(status, msgspec.Raw) else b"",
        )


class RdmaNodeObject(_RdmaNodeFields, GlobalResource):
    """An `RdmaNode`; its status is left as it came."""

    _api_info = ApiInfo(resource=_RDMA_NODE, plural=PLURAL, verbs=["get", "list", "watch", "post"])


class RdmaNodeStatusObject(_RdmaNodeFields, GlobalSubResource):
    """An `RdmaNode` as its status is written."""

    _api_info = ApiInfo(resource=_RDMA_NODE, parent=_RDMA_NODE, plural=PLURAL, verbs=["put"], action="status")


class OwnNodeObject(msgspec.Struct, GlobalResource):
    """A node as it is to itself."""

    _api_info = ApiInfo(resource=_NODE, plural="nodes", verbs=["list", "watch"])
    metadata: ObjectIdentity
    apiVersion: str | None = None  # noqa: N815  the API's name
    kind: str | None = None
    status: NodeStatus = NodeStatus()

    def view(self) -> OwnNodeView:
        """Return the object as a value."""
        capacity = {name: str(amount) for name, amount in (self.status.capacity or {}).items()}
        return OwnNodeView(uid=self.metadata.uid, capacity=capacity)


class NodeStatusObject(msgspec.Struct, GlobalSubResource):
    """A node as its status is patched."""

    _api_info = ApiInfo(resource=_NODE, parent=_NODE, plural="nodes", verbs=["patch"], action="status")
    metadata: ObjectIdentity


class RdmaNodes:
    """Implements both Protocols except for the calls of Leases. silence_s: as in `kube.client`."""

    def __init__(self, client: AsyncClient, *, silence_s: float) -> None:
        self._client = client
        self._http = connections_of(client)
        self._silence_s = silence_s

    async def follow_rdma_nodes(self) -> AsyncIterator[Event[RdmaNodeView]]:
        """List and watch `/apis/k8s-rdma.io/v1alpha1/rdmanodes`; the list comes in pages."""
        async for event in self._follow(RdmaNodeObject, "rdmanodes", paged=True):
            yield cast("Event[RdmaNodeView]", event)

    async def find_rdma_node(self, matches: Callable[[RdmaNodeView], bool]) -> RdmaNodeView | None:
        """List `/apis/k8s-rdma.io/v1alpha1/rdmanodes` in pages; return the first that matches."""
        with named_errors("list rdmanodes"):
            async for found in self._client.list(RdmaNodeObject, chunk_size=NODES_OF_A_PAGE):
                if matches(view := found.view()):
                    return view
        return None

    async def follow_leases(self, namespace: str) -> AsyncIterator[Event[LeaseView]]:
        """List and watch the namespace's Leases."""
        subject = f"leases of namespace {namespace}"
        async for event in self._follow(LeaseObject, subject, namespace=namespace):
            yield cast("Event[LeaseView]", event)

    async def follow_node(self, node: NodeName) -> AsyncIterator[Event[OwnNodeView]]:
        """List and watch `/api/v1/nodes`, that one."""
        fields = {"metadata.name": node}
        async for event in self._follow(OwnNodeObject, f"node {node}", fields=fields):
            yield cast("Event[OwnNodeView]", event)

    async def leases_version(self, namespace: str) -> int:
        """List the namespace's Leases of an unused name: the answer has no content, but a version."""
        action = f"list leases of namespace {namespace}"
        with named_errors(action):
            listing = self._client.list(
                LeaseObject, namespace=segment(namespace), fields={"metadata.name": _NO_SUCH_LEASE}
            )
            async for _ in listing:
                pass
            version = listing.resourceVersion
        if not (version.isdecimal() and len(version) <= _MOST_DIGITS):
            msg = f"{action}: a version that is no number: {version!r}"
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
        owner = OwnerReference.of_node(node, uid)
        obj = RdmaNodeObject(metadata=WholeMeta(name=node, owner_references=(owner,)))
        with named_errors(f"create rdmanode {node}"):
            return (await self._client.create(obj)).view()

    async def write_status(self, written: RdmaNodeView) -> RdmaNodeView:
        """`PUT /apis/k8s-rdma.io/v1alpha1/rdmanodes/NAME/status`."""
        obj = RdmaNodeStatusObject(
            metadata=ObjectMeta(name=written.node, resource_version=written.version),
            status=msgspec.Raw(written.status),
        )
        with named_errors(f"write the status of rdmanode {written.node}"):
            return (await self._client.replace(obj, segment(written.node))).view()

    async def set_capacity(self, node: NodeName, resource: str, count: int) -> None:
        """`PATCH /api/v1/nodes/NAME/status`, a JSON merge patch."""
        patch = {"status": {"capacity": {resource: str(count)}}}
        with named_errors(f"set capacity of node {node}"):
            await self._client.patch(NodeStatusObject, segment(node), patch, patch_type=PatchType.MERGE)

    def _follow(
        self, kind: Any, subject: str, *, paged: bool = False, **selectors: Any
    ) -> AsyncIterator[Event[Any]]:
        selection = ObjectSelection(kind=kind, subject=subject, **selectors)
        return watch_objects(self._http, selection, silence_s=self._silence_s, paged=paged)


async def get_lease(client: AsyncClient, namespace: str, name: str) -> LeaseView | None:
    """`GET /apis/coordination.k8s.io/v1/namespaces/NS/leases/NAME`."""
    try:
        with named_errors(f"get lease {namespace}/{name}"):
            lease = await client.get(LeaseObject, segment(name), namespace=segment(namespace))
    except ApiRefusedError as refused:
        if refused.status == 404:
            return None
        raise
    return lease.view()


async def write_lease(client: AsyncClient, lease: LeaseView) -> LeaseView:
    """Write with `POST` without a version; else with `PATCH`, which leaves the fields of others alone."""
    with named_errors(f"write lease {lease.namespace}/{lease.name}"):
        written, namespace = LeaseObject.from_view(lease), segment(lease.namespace)
        if not lease.version:
            return (await client.create(written)).view()
        name, spec = segment(lease.name), msgspec.to_builtins(written.spec)
        patch = {"metadata": {"resourceVersion": lease.version, **_NO_MANAGED_FIELDS}, "spec": spec}
        changed = await client.patch(
            LeaseObject, name, patch, namespace=namespace, patch_type=PatchType.MERGE
        )
        return changed.view()


def connect(
    kubeconfig: str | None = None,
    *,
    in_cluster: bool = False,
    timeout_s: float = 5.0,
    silence_s: float = SILENCE_S,
    keepalive_s: float = KEEPALIVE_S,
) -> Client:
    """Return a client by a kubeconfig file, or else as `kube.kubeconfig` finds the API server for a process.

    It must be called inside the event loop that uses it.
    MalformedError if there is no such configuration, or it is not usable.

    in_cluster: the service account only.
    timeout_s: for each call, and as long again for an exec plugin if one runs before it.
    silence_s: as in `Client`.
    keepalive_s: the time for which an idle connection is used again, unless the API server has closed it.
    """
    with usable_credentials(kubeconfig, in_cluster=in_cluster):
        server = process_api_server(KubeconfigSelection(file=kubeconfig), in_cluster=in_cluster)
        http = async_client(server, timeout_s=timeout_s, keepalive_s=keepalive_s)
    http.event_hooks["request"].append(_Pace().begin)
    http.event_hooks["response"].append(read_refusal)
    return Client(_calling_by(http, server.namespace), silence_s=silence_s)


def _calling_by(http: httpx2.AsyncClient, namespace: str) -> AsyncClient:
    """Return a lightkube client with these connections instead of its own, which it has never used."""
    cluster = Cluster(server=str(http.base_url), insecure=True)
    config = SingleConfig("", Context(cluster="", namespace=namespace), cluster, User())
    client = AsyncClient(config, timeout=http.timeout)
    client._client._client = http  # no other way in
    return client


def require_kubeconfig(path: str) -> None:
    """MalformedError unless a client can be made by that file; the API server is not asked for anything."""

    async def open_and_close() -> None:
        await connect(path).close()

    asyncio.run(open_and_close())


class _Pace:
    """Delays the begin of watches that end as soon as they began, longer each time.

    lightkube begins the next one without a pause. These are hundreds in a second if an API server that is
    shutting down, or a proxy before it, ends them all at once.
    """

    def __init__(self) -> None:
        self._begun: dict[str, tuple[float, float]] = {}

    async def begin(self, request: httpx2.Request) -> None:
        """Wait, if it is a watch, for as long as is due."""
        if "watch" not in request.url.params:
            return
        now_s = asyncio.get_running_loop().time()
        last, pause_s = self._begun.get(request.url.path, (float("-inf"), 0.0))
        pause_s = min(max(2 * pause_s, FIRST_PAUSE_S), LAST_PAUSE_S) if now_s - last < STEADY_S else 0.0
        self._begun[request.url.path] = now_s + pause_s, pause_s
        await asyncio.sleep(pause_s)


def _pod_path(namespace: str, name: str) -> str:
    return f"api/v1/namespaces/{segment(namespace)}/pods/{segment(name)}"


class Client(RdmaNodes, ResourceSlices, AccessReviews):
    """Every Protocol of this package through a lightkube client, which it owns.

    silence_s: a watch without a message for so long is taken for lost, because a connection that a firewall
        forgot never ends by itself.
    """

    def __init__(self, client: AsyncClient, *, silence_s: float) -> None:
        super().__init__(client, silence_s=silence_s)
        self._pod_groups = PodGroups(self._http)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def get_pod(self, namespace: str, name: str) -> PodView | None:
        """`GET /api/v1/namespaces/NS/pods/NAME`."""
        pod = await self._pod(namespace, name)
        return pod.view() if pod else None

    async def get_pod_group(self, gang: Gang) -> PodGroup:
        """Read a PodGroup as `PodGroups`."""
        return await self._pod_groups.get(gang)

    async def get_whole_pod(self, namespace: str, name: str) -> PodView | None:
        """Read a pod with all of its annotations, if it exists."""
        pod = await self._pod(namespace, name)
        return pod.whole() if pod else None

    async def annotate_pod(self, pod: Pod, key: str, value: str) -> None:
        """Patch the pod as `touch_pod`."""
        await self.touch_pod(pod, key, value)

    async def touch_pod(self, pod: Pod, key: str, value: str) -> PodView:
        """`PATCH /api/v1/namespaces/NS/pods/NAME`, a JSON merge patch; a UID in it must be the pod's."""
        with named_errors(f"annotate pod {pod.namespace}/{pod.name}"):
            return await self._patch_pod(pod, {"annotations": {key: value}})

    async def annotate_version(self, pod: Pod, version: str, annotations: Mapping[str, str]) -> None:
        """Patch the pod as `touch_pod`; a `resourceVersion` in it must be the pod's."""
        with named_errors(f"annotate pod {pod.namespace}/{pod.name}"):
            await self._patch_pod(pod, {"annotations": dict(annotations)}, resourceVersion=version)

    async def label_pod(self, pod: Pod, key: str, value: str) -> PodView:
        """Patch the pod as `touch_pod`."""
        with named_errors(f"label pod {pod.namespace}/{pod.name}"):
            return await self._patch_pod(pod, {"labels": {key: value}})

    async def create_event(self, event: ObjectEvent) -> None:
        """`POST /api/v1/namespaces/NS/events`."""
        with named_errors(f"create event {event.about.namespace}/{event.name}"):
            segment(event.about.namespace)
            await self._client.create(EventObject.from_event(event))

    async def repeat_event(self, event: ObjectEvent) -> None:
        """`PATCH /api/v1/namespaces/NS/events/NAME`, a JSON merge patch."""
        patch = EventObject.repetition(event)
        with named_errors(f"repeat event {event.about.namespace}/{event.name}"):
            name, namespace = segment(event.name), segment(event.about.namespace)
            await self._client.patch(
                EventObject, name, patch, namespace=namespace, patch_type=PatchType.MERGE
            )

    async def evict_pod(self, pod: Pod) -> None:
        """`POST /api/v1/namespaces/NS/pods/NAME/eviction`, with the UID as precondition."""
        with named_errors(f"evict pod {pod.namespace}/{pod.name}"):
            name, namespace = segment(pod.name), segment(pod.namespace)
            await self._client.create(EvictionObject.from_pod(pod), name=name, namespace=namespace)

    async def bind_pod(self, binding: PodBinding) -> None:
        """`POST /api/v1/namespaces/NS/pods/NAME/binding`."""
        with named_errors(f"bind pod {binding.namespace}/{binding.name} to node {binding.node}"):
            path = f"{_pod_path(binding.namespace, binding.name)}/binding"
            content = msgspec.json.encode(BindingObject.from_binding(binding))
            answer = await self._http.post(path, content=content, headers=_JSON)
            decode_object(Status, answer.raise_for_status().content)

    async def annotate_node(self, node: NodeName, key: str, value: str) -> None:
        """`PATCH /api/v1/nodes/NAME`, a JSON merge patch (RFC 7396)."""
        with named_errors(f"annotate node {node}"):
            await self._patch_node(node, {"annotations": {key: value}})

    async def label_node(self, node: NodeName, key: str, value: str) -> None:
        """Patch the node as `annotate_node`."""
        with named_errors(f"label node {node}"):
            await self._patch_node(node, {"labels": {key: value}})

    async def get_lease(self, namespace: str, name: str) -> LeaseView | None:
        """Implement `LeaseApi.get_lease`."""
        return await get_lease(self._client, namespace, name)

    async def write_lease(self, lease: LeaseView) -> LeaseView:
        """Implement `LeaseApi.write_lease`."""
        return await write_lease(self._client, lease)

    async def delete_lease(self, lease: LeaseView) -> None:
        """`DELETE /apis/coordination.k8s.io/v1/namespaces/NS/leases/NAME`, of that version."""
        with named_errors(f"delete lease {lease.namespace}/{lease.name}"):
            namespace, name = segment(lease.namespace), segment(lease.name)
            path = f"apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
            options = {"preconditions": {"resourceVersion": lease.version}}
            content = msgspec.json.encode({"apiVersion": "v1", "kind": "DeleteOptions", **options})
            answer = await self._http.request("DELETE", path, content=content, headers=_JSON)
            answer.raise_for_status()

    async def follow_pods(self) -> AsyncIterator[Event[PodView]]:
        """List and watch `/api/v1/pods`, unfinished ones."""
        async for event in self._follow(PodObject, "pods", paged=True, fields=_UNFINISHED):
            yield cast("Event[PodView]", event)

    async def follow_pods_of(self, node: NodeName) -> AsyncIterator[Event[PodView]]:
        """List and watch `/api/v1/pods`, unfinished ones of a node."""
        fields = {**_UNFINISHED, "spec.nodeName": equal(node)}
        async for event in self._follow(PodObject, f"pods of node {node}", fields=fields):
            yield cast("Event[PodView]", event)

    async def follow_nodes(self) -> AsyncIterator[Event[NodeView]]:
        """List and watch `/api/v1/nodes`."""
        async for event in self._follow(NodeObject, "nodes"):
            yield cast("Event[NodeView]", event)

    async def follow_budgets(self) -> AsyncIterator[Event[BudgetView]]:
        """List and watch `/apis/policy/v1/poddisruptionbudgets`."""
        async for event in self._follow(BudgetObject, "disruption budgets"):
            yield cast("Event[BudgetView]", event)

    async def _patch_pod(self, pod: Pod, meta: dict[str, dict[str, str]], **preconditions: str) -> PodView:
        patch = msgspec.json.encode({"metadata": {"uid": pod.uid, **preconditions, **meta}})
        headers = {"Content-Type": PatchType.MERGE.value}
        changed = await self._http.patch(_pod_path(pod.namespace, pod.name), content=patch, headers=headers)
        return decode_object(PodObject, changed.raise_for_status().content).view()

    async def _patch_node(self, node: NodeName, meta: dict[str, dict[str, str]]) -> None:
        patch = {"metadata": meta}
        await self._client.patch(NodeObject, segment(node), patch, patch_type=PatchType.MERGE)

    async def _pod(self, namespace: str, name: str) -> PodObject | None:
        try:
            with named_errors(f"get pod {namespace}/{name}"):
                found = await self._http.get(_pod_path(namespace, name))
                return decode_object(PodObject, found.raise_for_status().content)
        except ApiRefusedError as refused:
            if refused.status == 404:
                return None
            raise
