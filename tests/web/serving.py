"""The pages on a real socket, above an extender's documents on another."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import httpx2

from k8s_rdma.config.web import ExtenderEndpoint, PrometheusEndpoint
from k8s_rdma.http_server import Answer, HttpServer, listen
from k8s_rdma.http_server.asgi import JSON, error_answer
from k8s_rdma.web.access import AccessRule, LoopbackAccess
from k8s_rdma.web.app import Sources, WebApp
from k8s_rdma.web.claim_pods import ClaimPodReader
from k8s_rdma.web.extender_views import ExtenderViews
from k8s_rdma.web.node_traffic import NodeTraffic
from k8s_rdma.web.right_sizing import RecordReader
from k8s_rdma.web.traffic import PrometheusTraffic
from k8s_rdma.wire.http_error import Error
from k8s_rdma.wire.views import (
    CLUSTER_PATH,
    HOLDERS_PATH,
    NAMESPACE_PATH,
    ClusterView,
    Explanation,
    HolderRow,
    HoldersView,
    Limit,
    NamespaceView,
    encode_explanation,
    encode_view,
)
from k8s_rdma_demo.plain_http import NO_TLS
from web.cases import HOLDERS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from k8s_rdma.http_server.asgi import Application, Receive, Scope, Send


@dataclass(slots=True)
class Documents:
    """An ASGI application with an extender's paths. broken: the body it answers instead, with that status."""

    view: ClusterView
    explanations: dict[str, Explanation] = field(default_factory=dict)
    holders: tuple[HolderRow, ...] = ()
    limit: Limit | None = None
    broken: bytes | None = None
    status: int = 200
    requests: list[tuple[str, dict[str, list[str]]]] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = parse_qs(scope["query_string"].decode())
        self.requests.append((scope["path"], query))
        await self._answer(scope["path"], query)(scope, receive, send)

    def _answer(self, path: str, query: dict[str, list[str]]) -> Answer:
        if self.broken is not None:
            return Answer(self.broken, status=self.status, content_type=JSON)
        if path == CLUSTER_PATH:
            return Answer(encode_view(self.view), content_type=JSON)
        if path == HOLDERS_PATH:
            rows = tuple(row for row in self.holders if row.node == query["node"][0])
            return Answer(encode_view(HoldersView(holders=rows, notes=("a note",))), content_type=JSON)
        if path == NAMESPACE_PATH:
            return Answer(encode_view(self._namespace(query["name"][0])), content_type=JSON)
        found = self.explanations.get(query["pod"][0])
        if found is None:
            return error_answer(404, Error(reason="not_found", message="there is no such pod"))
        return Answer(encode_explanation(found), content_type=JSON)

    def _namespace(self, name: str) -> NamespaceView:
        rows = tuple(row for row in self.holders if row.namespace == name)
        return NamespaceView(
            namespace=name,
            interfaces=len(rows),
            reserved_mbps=sum(row.reserved_mbps for row in rows),
            holders=rows,
            limit=self.limit,
        )


@asynccontextmanager
async def listening(app: Application, *, port: int = 0) -> AsyncIterator[str]:
    """Serve an application; its URL."""
    server = HttpServer(app, shutdown_s=1)
    with listen("127.0.0.1", port) as listener:
        task = asyncio.create_task(server.serve(listener))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.stop()
            await task


@dataclass(slots=True)
class Site:
    """The running pages. documents: the extender's answers."""

    url: str
    http: httpx2.AsyncClient
    documents: Documents
    extender: ExtenderViews
    traffic: PrometheusTraffic
    nodes: NodeTraffic
    app: WebApp


@asynccontextmanager
async def serving(
    view: ClusterView,
    *explanations: Explanation,
    access: AccessRule | None = None,
    prometheus: PrometheusEndpoint | None = None,
    node_traffic: NodeTraffic | None = None,
    claims: ClaimPodReader | None = None,
    records: RecordReader | None = None,
) -> AsyncIterator[Site]:
    """Serve pages of a view that was polled once."""
    documents = Documents(view, {f"{each.namespace}/{each.name}": each for each in explanations})
    documents.holders = HOLDERS
    async with listening(documents) as url:
        extender = ExtenderViews(ExtenderEndpoint(url=url), poll_s=60, clock=monotonic)
        await extender.poll()
        traffic = PrometheusTraffic(prometheus, poll_s=60)
        await traffic.poll()
        node_traffic = node_traffic or NodeTraffic(None, clock=monotonic)
        claims = claims or ClaimPodReader(connect=None, clock=monotonic)
        records = records or RecordReader(None, clock=monotonic)
        sources = Sources(
            extender=extender, traffic=traffic, nodes=node_traffic, claims=claims, records=records
        )
        app = WebApp(sources, access or LoopbackAccess())
        async with (
            listening(app) as address,
            httpx2.AsyncClient(base_url=address, trust_env=False, verify=NO_TLS, timeout=20) as http,
        ):
            yield Site(address, http, documents, extender, traffic, node_traffic, app)
