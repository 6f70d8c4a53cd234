"""Answers of a page's sources: bounded, and shown as texts whatever they say."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.config.web import PrometheusEndpoint
from k8s_rdma.http_server import Answer
from k8s_rdma.http_server.asgi import JSON
from k8s_rdma.web.source import MAX_QUESTIONS
from k8s_rdma.web.traffic import PrometheusTraffic
from web.cases import EXAMPLE
from web.serving import listening, serving

if TYPE_CHECKING:
    from k8s_rdma.http_server.asgi import Receive, Scope, Send


pytestmark = pytest.mark.anyio

HOSTILE_BODIES = [
    b'{"error":{"reason":"\xff","message":"\xff"}}',
    b'{"a":' + b"[" * 100_000,
    b'{"error":{"reason":"r","message":"' + b"x" * 1_000_000 + b'"}}',
    b"x" * 1_000_000,
    b'{"error":"' + b"x" * 1_000_000 + b'"}',
]


@pytest.mark.parametrize("body", HOSTILE_BODIES, ids=["no UTF-8", "deep", "long", "no JSON", "Prometheus'"])
async def test_refusal_of_a_source_is_shown_whatever_it_says(body: bytes):
    async with serving(EXAMPLE) as site, listening(site.documents) as url:
        site.documents.broken, site.documents.status = body, 500
        traffic = PrometheusTraffic(PrometheusEndpoint(url=url), poll_s=60)
        await traffic.poll()
        await site.extender.poll()
        page = await site.http.get("/")
    assert page.status_code == 200
    assert "The extender does not answer." in page.text
    for failure in (traffic.failure, site.extender.failure):
        assert "answers HTTP 500: " in failure
        assert len(failure) < 300


class SlowPrometheus:
    """Answers each query with an empty result, after some time. most_in_flight: queries at one time."""

    def __init__(self) -> None:
        self.in_flight = self.most_in_flight = self.queries = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.queries += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await asyncio.sleep(0.01)
        self.in_flight -= 1
        await Answer('{"data": {"result": []}}', content_type=JSON)(scope, receive, send)


async def test_viewers_put_a_bounded_number_of_queries_to_prometheus_at_a_time():
    slow = SlowPrometheus()
    async with listening(slow) as url, serving(EXAMPLE, prometheus=PrometheusEndpoint(url=url)) as site:
        pages = await asyncio.gather(*(site.http.get("/nodes/worker-1") for _ in range(20)))
        assert {page.status_code for page in pages} == {200}
        assert slow.queries == 41
        assert 1 < slow.most_in_flight <= MAX_QUESTIONS
