"""The Node object of this node, as the API server last told of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from k8s_rdma.agent.cluster.following import keep_following
from k8s_rdma.kube.api import Changed, Gone, Listed

if TYPE_CHECKING:
    from typing import NoReturn

    from k8s_rdma.core.ids import NodeName
    from k8s_rdma.kube.api import Event
    from k8s_rdma.kube.published import OwnNodeView, PublishingApi
    from k8s_rdma.kube.time import Time


class OwnNode:
    """Follows it; nothing is known until `run`, nor while there is none."""

    def __init__(self, api: PublishingApi, name: NodeName, time: Time) -> None:
        self.name = name
        self.view: OwnNodeView | None = None
        self._api = api
        self._time = time
        self._change = asyncio.Event()

    async def known(self) -> OwnNodeView:
        """The object, as soon as there is one."""
        return await self.other_than(None)

    async def other_than(self, known: OwnNodeView | None) -> OwnNodeView:
        """The object, as soon as it is not the known one."""
        while self.view is None or self.view == known:
            await self._change.wait()
        return self.view

    async def run(self) -> NoReturn:
        """Follow it until cancelled."""
        stream = self._api.follow_node
        await keep_following("node_not_followed", lambda: stream(self.name), self._take, self._time)

    def _take(self, event: Event[OwnNodeView]) -> None:
        match event:
            case Listed(nodes):
                self.view = nodes[0] if nodes else None
            case Changed(node):
                self.view = node
            case Gone():
                self.view = None
        change, self._change = self._change, asyncio.Event()
        change.set()
