"""Informers for objects of the API server: this node's Node, its pods and their placements.

They list, watch, and list again when the watch is lost.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NoReturn, cast

import structlog

from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.api import Changed, Deleted, Event, Listed, NodePodsApi, PodView
from k8s_rdma.kube.informer import follow, handle_item
from k8s_rdma.kube.promises import read_promise

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from k8s_rdma.core.namespace_policy import NamespacePolicies
    from k8s_rdma.core.placement import Placement
    from k8s_rdma.core.types import NodeName, PodUid
    from k8s_rdma.kube.api import OwnNodeView, PublishingApi
    from k8s_rdma.kube.time import Time
    from k8s_rdma.wire.placement_keys import KeySource

_log = structlog.get_logger()
AFTER_FAULT_S = 30.0


class OwnNode:
    """Follows the Node object; its view is None until `run`, and while there is none."""

    def __init__(self, api: PublishingApi, name: NodeName, time: Time) -> None:
        self.name = name
        self.view: OwnNodeView | None = None
        self._api = api
        self._time = time
        self._change = asyncio.Event()

    async def wait_for_node(self) -> OwnNodeView:
        """Wait until there is a Node, and return it."""
        return await self.wait_for_change(None)

    async def wait_for_change(self, previous: OwnNodeView | None) -> OwnNodeView:
        """Wait until the Node differs from the previous one, and return it."""
        while self.view is None or self.view == previous:
            await self._change.wait()
        return self.view

    async def run(self) -> NoReturn:
        """Follow the Node until cancelled."""
        await follow("node", lambda: self._api.follow_node(self.name), self._on_event, time=self._time)

    def _on_event(self, event: Event[OwnNodeView]) -> None:
        match event:
            case Listed(nodes):
                self.view = nodes[0] if nodes else None
            case Changed(node):
                self.view = node
            case Deleted():
                self.view = None
        change, self._change = self._change, asyncio.Event()
        change.set()


class NodePods:
    """Follows the pods of a node. The last state stands while the API server does not answer.

    keys: verify placements. policies: limit the PFs of unsigned placements.
    on_delete: called with the UID of a pod that has finished, was deleted or left the node.
    listed: set after the first list.
    """

    def __init__(  # noqa: PLR0913 - whose pods, and by what they are judged
        self,
        api: NodePodsApi,
        node: NodeName,
        *,
        keys: KeySource,
        policies: Callable[[], NamespacePolicies],
        on_delete: Callable[[PodUid], None],
        time: Time,
    ) -> None:
        """Know no pods until `run`."""
        self.listed = asyncio.Event()
        self._api = api
        self._node = node
        self._keys = keys
        self._policies = policies
        self._on_delete = on_delete
        self._time = time
        self._pods: dict[PodUid, Placement | None] = {}
        self._claims: Mapping[PodUid, Placement] = {}

    def claims(self) -> Mapping[PodUid, Placement]:
        """Return the placements of this node's unfinished pods, in a mapping that never changes."""
        return self._claims

    async def run(self) -> NoReturn:
        """Follow the pods until cancelled."""
        await follow("pods", self._stream, self._on_event, time=self._time)

    async def _stream(self) -> AsyncIterator[Event[PodView]]:
        """Watch until the keys change: a new list then shows placements that the new keys accept."""
        keys = self._keys()
        async with aclosing(cast("Any", self._api.follow_pods_of(self._node))) as events:
            async for event in events:
                yield event
                if self._keys() is not keys:
                    return

    def _on_event(self, event: Event[PodView]) -> None:
        match event:
            case Listed(pods):
                for uid in self._pods.keys() - {pod.uid for pod in pods}:
                    self._forget(uid)
                for pod in pods:
                    handle_item("pods", self._on_update, pod)
                self.listed.set()
                _log.info("pods_listed", pods=len(pods), claims=len(self._claims))
            case Changed(pod):
                self._on_update(pod)
            case Deleted(pod):
                self._forget(pod.uid)

    def _on_update(self, pod: PodView) -> None:
        if pod.finished or pod.node != self._node:
            self._forget(pod.uid)
            return
        if self._keys() is None and pod.uid in self._pods:
            return  # the extender writes with the Binding; who wrote since then was another
        self._know({**self._pods, pod.uid: self._promise(pod)})

    def _forget(self, uid: PodUid) -> None:
        if uid in self._pods:
            self._know({pod_uid: promise for pod_uid, promise in self._pods.items() if pod_uid != uid})
            self._on_delete(uid)

    def _know(self, pods: dict[PodUid, Placement | None]) -> None:
        self._pods = pods
        self._claims = {uid: promise for uid, promise in pods.items() if promise is not None}

    def _promise(self, pod: PodView) -> Placement | None:
        """Read a pod's placement by the same rules as an ADD (`agent.cni.pod_request`)."""
        try:
            promise = read_promise(pod, self._keys(), self._policies())
        except MalformedError:
            return None  # its ADD tells why
        return promise.placement if promise else None


async def retry_forever(work: Callable[[], Awaitable[NoReturn]], time: Time) -> NoReturn:
    """Restart work after an unexpected error: pods start without the cluster, not without the agent."""
    while True:
        try:
            await work()
        except Exception:
            _log.exception("cluster_fault")
        await time.pause(AFTER_FAULT_S)
