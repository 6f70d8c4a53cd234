"""Informers for objects of the API server: the Node of this node, its pods and what they were promised.

They list, watch, and begin again when the watch is lost.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

import structlog

from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.api import Changed, Deleted, Listed
from k8s_rdma.kube.informer import follow, handle_item
from k8s_rdma.kube.promises import read_promise

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from typing import NoReturn

    from k8s_rdma.core.ids import NodeName, PodUid
    from k8s_rdma.core.namespace_policy import NamespacePolicies
    from k8s_rdma.core.placement import Placement
    from k8s_rdma.kube.api import Event, NodePodsApi, PodView
    from k8s_rdma.kube.published import OwnNodeView, PublishingApi
    from k8s_rdma.kube.time import Time
    from k8s_rdma.wire.placement_keys import KeySource

AFTER_FAULT_S = 30.0


async def retry_forever(work: Callable[[], Awaitable[NoReturn]], time: Time) -> NoReturn:
    """Begin again after a fault of ours: pods start without the cluster, not without the agent."""
    while True:
        try:
            await work()
        except Exception:
            _log.exception("cluster_fault")
        await time.pause(AFTER_FAULT_S)


_log = structlog.get_logger()


class OwnNode:
    """Follows it; nothing is known until `run`, nor while there is none."""

    def __init__(self, api: PublishingApi, name: NodeName, time: Time) -> None:
        self.name = name
        self.view: OwnNodeView | None = None
        self._api = api
        self._time = time
        self._change = asyncio.Event()

    async def wait_for_node(self) -> OwnNodeView:
        """The object, as soon as there is one."""
        return await self.wait_for_change(None)

    async def wait_for_change(self, previous: OwnNodeView | None) -> OwnNodeView:
        """The object, as soon as it is not the known one."""
        while self.view is None or self.view == previous:
            await self._change.wait()
        return self.view

    async def run(self) -> NoReturn:
        """Follow it until cancelled."""
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
    """Follows the pods of a node. What was known last stands while the API server cannot be asked.

    keys: verify placements. policies: bound what one takes that nobody signs.
    on_delete: called with the UID of a pod that has finished, was deleted or left the node.
    listed: set once all of them have been told.
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
        """Nothing is known until `run`."""
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
        """What the unfinished pods of this node were promised; never changed afterwards."""
        return self._claims

    async def run(self) -> NoReturn:
        """Follow, and begin again when the watch is lost, until cancelled."""
        await follow("pods", self._stream, self._on_event, time=self._time)

    async def _stream(self) -> AsyncIterator[Event[PodView]]:
        """Ends when the keys change: what did not count may count by the new ones, and a list shows it."""
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
            self._know({known: promise for known, promise in self._pods.items() if known != uid})
            self._on_delete(uid)

    def _know(self, pods: dict[PodUid, Placement | None]) -> None:
        self._pods = pods
        self._claims = {uid: promise for uid, promise in pods.items() if promise is not None}

    def _promise(self, pod: PodView) -> Placement | None:
        """By a placement that counts, as it does at an ADD (`agent.cni.pod_request`)."""
        try:
            promise = read_promise(pod, self._keys(), self._policies())
        except MalformedError:
            return None  # its ADD tells why
        return promise.placement if promise else None
