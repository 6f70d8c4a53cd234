"""A cluster's API in memory: its lists, the changes of a test, and the writes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec import structs

from k8s_rdma.core.pod_group import PodGroup
from k8s_rdma.kube.api import BudgetView, NodeView, PodBinding, PodView
from k8s_rdma.kube.errors import ApiRefusedError
from k8s_rdma.kube.informer import Changed, Event, Listed
from k8s_rdma.kube.published_api import LeaseView, RdmaNodeView

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from k8s_rdma.core.ledger import Pod
    from k8s_rdma.core.types import Gang, NodeName


@dataclass
class Watch:
    """Objects of a kind by key, and the recipients of their changes."""

    objects: dict[str, Any] = field(default_factory=dict)
    told: list[asyncio.Queue[Event[Any]]] = field(default_factory=list)

    async def follow(self) -> AsyncIterator[Event[Any]]:
        queue: asyncio.Queue[Event[Any]] = asyncio.Queue()
        self.told.append(queue)
        yield Listed(tuple(self.objects.values()))
        while True:
            yield await queue.get()

    def put(self, key: str, item: Any) -> None:
        self.objects[key] = item
        for queue in self.told:
            queue.put_nowait(Changed(item))


@dataclass
class MemoryApi:
    """`ClusterApi` and `PublishedApi`. touched: nodes that were annotated."""

    pods: Watch = field(default_factory=Watch)
    nodes: Watch = field(default_factory=Watch)
    budgets: Watch = field(default_factory=Watch)
    statuses: Watch = field(default_factory=Watch)
    leases: Watch = field(default_factory=Watch)
    touched: list[str] = field(default_factory=list)
    _version: int = 100

    # arranged by a test

    def add_pod(self, pod: PodView) -> None:
        self._version += 1
        self.pods.put(f"{pod.namespace}/{pod.name}", structs.replace(pod, version=str(self._version)))

    def publish(self, node: NodeName, status: bytes, named: str) -> None:
        """The node publishes, and its Lease names this generation."""
        self._version += 1
        self.nodes.put(node, NodeView(node, ()))
        self.statuses.put(node, RdmaNodeView(node=node, version=str(self._version), status=status))
        lease = LeaseView(
            namespace="k8s-rdma", name=node, holder=named, duration_s=40, version=str(self._version)
        )
        self.leases.put(node, lease)

    # ClusterApi

    async def get_pod(self, namespace: str, name: str) -> PodView | None:
        return self.pods.objects.get(f"{namespace}/{name}")

    async def get_pod_group(self, gang: Gang) -> PodGroup:
        return PodGroup()

    async def bind_pod(self, binding: PodBinding) -> None:
        pod = self.pods.objects[f"{binding.namespace}/{binding.name}"]
        if pod.node is not None:
            msg = "bound"
            raise ApiRefusedError(msg, status=409)
        self.add_pod(
            structs.replace(pod, node=binding.node, annotations={**pod.annotations, **binding.annotations})
        )

    async def touch_pod(self, pod: Pod, key: str, value: str) -> PodView:
        view = self.pods.objects[f"{pod.namespace}/{pod.name}"]
        self.add_pod(structs.replace(view, annotations={**view.annotations, key: value}))
        return self.pods.objects[f"{pod.namespace}/{pod.name}"]

    async def annotate_node(self, node: NodeName, key: str, value: str) -> None:
        self.touched.append(node)

    label_node = annotate_node

    def follow_pods(self) -> AsyncIterator[Event[PodView]]:
        return self.pods.follow()

    def follow_nodes(self) -> AsyncIterator[Event[NodeView]]:
        return self.nodes.follow()

    def follow_budgets(self) -> AsyncIterator[Event[BudgetView]]:
        return self.budgets.follow()

    # PublishedApi

    def follow_rdma_nodes(self) -> AsyncIterator[Event[RdmaNodeView]]:
        return self.statuses.follow()

    def follow_leases(self, namespace: str) -> AsyncIterator[Event[LeaseView]]:
        return self.leases.follow()

    async def leases_version(self, namespace: str) -> int:
        self._version += 1
        return self._version
