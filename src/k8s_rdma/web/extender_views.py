"""The extender's views: the cluster, polled in the background, and single pods on request.

The extender's last answer stays, with its age.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.web.source import Source, SourceUnavailableError
from k8s_rdma.wire.http_error import message_of
from k8s_rdma.wire.views import (
    CLUSTER_PATH,
    EXPLAIN_PATH,
    HOLDERS_PATH,
    MAX_ROWS,
    NAMESPACE_PATH,
    ClusterView,
    Explanation,
    HoldersView,
    NamespaceView,
    Sort,
    decode_explanation,
    decode_holders,
    decode_namespace,
    decode_view,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from k8s_rdma.config.web import ExtenderEndpoint

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ViewSnapshot:
    """A view of the cluster. received_at: seconds, by the clock of `ExtenderViews`."""

    view: ClusterView
    received_at: float


class ExtenderViews:
    """Asks the extender. failure: why the last question got no answer; empty when it did."""

    def __init__(self, endpoint: ExtenderEndpoint, *, poll_s: float, clock: Callable[[], float]) -> None:
        """Read the files that the endpoint names. MalformedError names the field."""
        self.snapshot: ViewSnapshot | None = None
        self.failure = "the extender has not answered yet"
        self.clock = clock
        self._source = Source("extender", endpoint, field="extender", explain_refusal=message_of)
        self._poll_s = poll_s

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            await self.poll()
            await asyncio.sleep(self._poll_s)

    async def poll(self) -> None:
        """Ask for the whole cluster once; if there is no answer, the former one stays."""
        query = {"sort": Sort.NAME.value, "limit": str(MAX_ROWS)}
        try:
            view = await self._source.get(CLUSTER_PATH, query, decode_view)
        except SourceUnavailableError as error:
            if not self.failure:
                _log.warning("extender_lost", error=error.message)
            self.failure = error.message
        else:
            self.snapshot = ViewSnapshot(view, self.clock())
            if self.failure:
                _log.info("extender_answers", url=self._source.url)
            self.failure = ""

    async def explain(self, party: str, namespace: str, name: str) -> Explanation | None:
        """Explain a pod to a viewer's party, if the extender has a pod of that name. NoAnswerError."""
        return await self._source.ask(party, EXPLAIN_PATH, {"pod": f"{namespace}/{name}"}, decode_explanation)

    async def holders(self, party: str, node: str) -> HoldersView | None:
        """List the holders on a node, if the extender has a node of that name. NoAnswerError."""
        return await self._source.ask(party, HOLDERS_PATH, {"node": node}, decode_holders)

    async def namespace(self, party: str, name: str) -> NamespaceView | None:
        """Show the use of a namespace, if the extender has such a view. NoAnswerError."""
        return await self._source.ask(party, NAMESPACE_PATH, {"name": name}, decode_namespace)
