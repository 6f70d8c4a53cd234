"""Pages of `k8s-rdma web` for 5,000 nodes with 8 PFs: the server's time, of its own thread, and their length.

The first page after a poll indexes and sorts the received data. The decoding of the view, which is the poll's
work, is measured beside.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import TYPE_CHECKING, Any

from k8s_rdma.config.web import ExtenderEndpoint
from k8s_rdma.web.access import LoopbackAccess
from k8s_rdma.web.app import Sources, WebApp
from k8s_rdma.web.claim_pods import ClaimPodReader
from k8s_rdma.web.extender_views import ExtenderViews, ViewSnapshot
from k8s_rdma.web.node_traffic import NodeTraffic
from k8s_rdma.web.right_sizing import RecordReader
from k8s_rdma.web.traffic import PrometheusTraffic
from k8s_rdma.wire.views import Sort, decode_view, encode_view
from web.cases import large_cluster

if TYPE_CHECKING:
    from conftest import Record
    from k8s_rdma.http_server.asgi import Message
    from k8s_rdma.wire.views import ClusterView

ROUNDS = 15
BUDGET_MS = 50
BUDGET_BYTES = 100_000
PATHS = (
    *(("/", f"sort={sort.value}") for sort in Sort),
    *(("/", "q=rack&page=100"), ("/", "q=nothing"), ("/pending", ""), ("/pending", "q=team-7")),
)


def _scope(path: str, query: str) -> dict[str, Any]:
    headers = [(b"host", b"localhost")]
    return {"path": path, "method": "GET", "query_string": query.encode(), "headers": headers, "client": None}


async def _page(app: WebApp, path: str, query: str) -> tuple[float, int]:
    """Return milliseconds of this thread, and bytes."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request"}

    began = time.thread_time()
    await app(_scope(path, query), receive, send)
    ran_ms = 1000 * (time.thread_time() - began)
    assert sent[0]["status"] == 200
    return ran_ms, len(sent[1]["body"])


async def _pages(view: ClusterView) -> tuple[float, float, int]:
    """Return the slowest first page after a poll, the slowest other page, and the longest."""
    extender = ExtenderViews(ExtenderEndpoint(), poll_s=60, clock=time.monotonic)
    extender.failure = ""
    nodes = NodeTraffic(None, clock=time.monotonic)
    sources = Sources(
        extender=extender,
        traffic=PrometheusTraffic(None, poll_s=60),
        nodes=nodes,
        claims=ClaimPodReader(connect=None, clock=time.monotonic),
        records=RecordReader(None, clock=time.monotonic),
    )
    app = WebApp(sources, LoopbackAccess())
    first, others, longest = [], [], 0
    for path, query in PATHS:
        times: list[tuple[float, float]] = []
        for _ in range(ROUNDS):
            extender.snapshot = ViewSnapshot(view, time.monotonic())
            (first_ms, length), (other_ms, _) = await _page(app, path, query), await _page(app, path, query)
            times.append((first_ms, other_ms))
            longest = max(longest, length)
        for slowest, of_path in zip((first, others), zip(*times, strict=True), strict=True):
            slowest.append(statistics.median(of_path))
    return max(first), max(others), longest


def test_pages(record: Record) -> None:
    view = large_cluster()
    document = encode_view(view)
    began = time.thread_time()
    decode_view(document)
    decode_ms = 1000 * (time.thread_time() - began)
    first, others, longest = asyncio.run(_pages(view))
    nodes = len(view.nodes)
    record(
        f"page of {nodes:,} nodes with 8 PFs, the first after a poll",
        budget=BUDGET_MS,
        measured=first,
        unit="ms",
    )
    record(f"page of {nodes:,} nodes with 8 PFs, slowest", budget=BUDGET_MS, measured=others, unit="ms")
    record(
        f"page of {nodes:,} nodes with 8 PFs, longest", budget=BUDGET_BYTES, measured=longest, unit="bytes"
    )
    record(
        f"view of {nodes:,} nodes with 8 PFs, decode",
        budget=None,
        measured=decode_ms,
        unit="ms",
        note=f"{len(document) / 1e6:.1f} MB, in every poll",
    )
