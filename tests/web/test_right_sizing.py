"""The page "Right-sizing": records of workloads in Prometheus, for those who may see them."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from k8s_rdma.config.web import PrometheusEndpoint
from k8s_rdma.errors import MalformedError
from k8s_rdma.http_server import Answer
from k8s_rdma.http_server.asgi import JSON
from k8s_rdma.web.open_pages import WATCH_S
from k8s_rdma.web.right_sizing import MAX_WORKLOADS, RecordReader, decode_records
from web.cases import EXAMPLE, HOSTILE
from web.node_servers import Turns
from web.serving import listening, serving
from web.test_access import OPERATOR, TENANT, reviewed
from web.test_pages import Elements

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from k8s_rdma.http_server.asgi import Receive, Scope, Send

pytestmark = pytest.mark.anyio

RESERVED = "namespace_workload:k8s_rdma_vf_reserved_bits:sum"
P95 = "namespace_workload:k8s_rdma_vf_transmitted_bits:p95_1d"
MAXIMUM = "namespace_workload:k8s_rdma_vf_transmitted_bits:max_1d"


def recorded(name: str, reserved: object, p95: object = None, maximum: object = None) -> list[dict[str, Any]]:
    """The records of `namespace/workload`, in Gb/s."""
    namespace, _, workload = name.partition("/")
    values = {RESERVED: reserved, P95: p95, MAXIMUM: maximum}
    return [
        {
            "metric": {"__name__": record, "namespace": namespace, "workload": workload},
            "value": [1.7e9, value if isinstance(value, str) else f"{value}e9"],
        }
        for record, value in values.items()
        if value is not None
    ]


def answer(*records: list[dict[str, Any]]) -> bytes:
    result = [each for found in records for each in found]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


WORKLOADS = (
    recorded("research/small", 5, 4.5, 5),
    recorded("research/llama", 400, 91, 120),
    recorded("team-b/secret", 80, 10, 20),
    recorded("research/verbs-only", 40),
    recorded("research/beyond", 10, 14, 30),
)


class RecordingPrometheus:
    """Answers with records. queries: that it got."""

    def __init__(self, body: bytes, status: int = 200) -> None:
        self.body, self.status = body, status
        self.queries: list[bytes] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.queries.append(scope["query_string"])
        await Answer(self.body, status=self.status, content_type=JSON)(scope, receive, send)


@asynccontextmanager
async def records_of(prometheus: RecordingPrometheus, turns: Turns) -> AsyncIterator[RecordReader]:
    """Run a reader of a Prometheus."""
    async with listening(prometheus) as url:
        reader = RecordReader(PrometheusEndpoint(url=url), clock=turns.clock, pause=turns.pause)
        running = asyncio.create_task(reader.run())
        try:
            yield reader
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def text_of(html: str) -> str:
    return " ".join(Elements(html).text.split())


async def test_workloads_are_sorted_by_stranded_bandwidth():
    turns, prometheus = Turns(), RecordingPrometheus(answer(*WORKLOADS))
    async with records_of(prometheus, turns) as records, serving(EXAMPLE, records=records) as site:
        before = text_of((await site.http.get("/right-sizing")).text)
        await turns.read()
        page = (await site.http.get("/right-sizing")).text
        filtered = text_of((await site.http.get("/right-sizing?q=research/l")).text)
        namespace = (await site.http.get("/namespaces/research")).text
    text = text_of(page)
    assert "Records are being read." in before
    assert "5 workloads · 535 Gb/s reserved, of which 379.5 Gb/s are stranded · 1 not measured" in text
    rows = (
        "research/llama 309 Gb/s stranded · 400 Gb/s reserved · p95 91 Gb/s, maximum 120 Gb/s",
        "team-b/secret 70 Gb/s stranded · 80 Gb/s reserved · p95 10 Gb/s, maximum 20 Gb/s",
        "research/small 500 Mb/s stranded · 5 Gb/s reserved · p95 4.5 Gb/s, maximum 5 Gb/s",
        "research/beyond 0 Mb/s stranded · 10 Gb/s reserved · p95 14 Gb/s, maximum 30 Gb/s",
        "research/verbs-only not measured · 40 Gb/s reserved",
    )
    assert [text.index(row) for row in rows] == sorted(text.index(row) for row in rows)
    sums = (
        (
            "research 4 workloads 309.5 Gb/s stranded · 415 Gb/s reserved · p95 109.5 Gb/s, maximum 155 Gb/s "
            "· without 1 not measured"
        ),
        "team-b 1 workload 70 Gb/s stranded · 80 Gb/s reserved · p95 10 Gb/s, maximum 20 Gb/s",
    )
    assert [text.index(row) for row in sums] == sorted(text.index(row) for row in sums)
    assert text.index(sums[-1]) < text.index(rows[0])
    assert 'href="/right-sizing?q=team-b%2F"' in page
    assert "Namespaces" not in filtered, "of one namespace there is nothing to add up"
    assert 'aria-label="40 Gb/s reserved, p95 unknown, maximum unknown"' in page
    assert "1 workload · 400 Gb/s reserved" in filtered
    assert 'href="/right-sizing?q=research/"' in namespace


async def test_reader_of_a_namespace_sees_its_workloads_and_a_sum_of_others(tmp_path: Path):
    turns, prometheus = Turns(), RecordingPrometheus(answer(*WORKLOADS))
    async with (
        records_of(prometheus, turns) as records,
        reviewed(tmp_path, records=records) as (site, _),
    ):
        assert (await site.http.get("/right-sizing")).status_code == 401
        assert not prometheus.queries, "who may see nothing has nothing read"
        await site.http.get("/right-sizing", headers=TENANT)
        await turns.read()
        tenant, operator = [
            (await site.http.get("/right-sizing", headers=headers)).text for headers in (TENANT, OPERATOR)
        ]
        searched = (await site.http.get("/right-sizing?q=secret", headers=TENANT)).text
    assert "research/llama" in text_of(tenant)
    assert "team-b" not in tenant + searched
    assert "1 workload in namespaces whose pods you may not list, 70 Gb/s stranded." in text_of(tenant)
    assert "team-b/secret" in text_of(operator)


async def test_records_are_read_once_for_all_viewers_and_for_open_pages_alone():
    turns, prometheus = Turns(), RecordingPrometheus(answer(*WORKLOADS))
    async with records_of(prometheus, turns) as records, serving(EXAMPLE, records=records) as site:
        await site.http.get("/")
        assert not prometheus.queries
        for _ in range(5):
            await site.http.get("/right-sizing")
        waiting = await turns.read()
        assert len(prometheus.queries) == 1
        turns.now += WATCH_S
        waiting[0].set_result(None)
        assert not records.want().is_read, "what is old is not shown as if it were new"
        await turns.read()
        assert len(prometheus.queries) == 2


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        (answer(), 200, "Prometheus has no records of workloads: load the rules"),
        (b"{}", 200, "Prometheus has no records of workloads: load the rules"),
        (b"no JSON", 200, "What workloads send is not known: the Prometheus's answer cannot be read"),
        (answer(recorded("a/b", "many")), 200, "What workloads send is not known: the Prometheus's answer"),
        (b'{"error": "overloaded"}', 503, "answers HTTP 503: overloaded"),
    ],
    ids=["none", "empty", "no-json", "no-number", "refusal"],
)
async def test_prometheus_without_records_is_explained(body: bytes, status: int, why: str):
    turns = Turns()
    async with (
        records_of(RecordingPrometheus(body, status), turns) as records,
        serving(EXAMPLE, records=records) as site,
    ):
        await site.http.get("/right-sizing")
        await turns.read()
        page = await site.http.get("/right-sizing")
    assert page.status_code == 200
    assert why in text_of(page.text)
    assert "stranded" not in text_of(page.text)


async def test_pages_without_prometheus_name_its_setting():
    async with serving(EXAMPLE) as site:
        page = await site.http.get("/right-sizing")
    assert page.status_code == 200
    assert "set prometheus.url" in text_of(page.text)


async def test_hostile_labels_are_shown_without_effect():
    turns = Turns()
    body = answer(recorded(f"research/{HOSTILE}", 5, 1, 1), recorded(f"research/{'x' * 254}", 5, 1, 1))
    async with (
        records_of(RecordingPrometheus(body), turns) as records,
        serving(EXAMPLE, records=records) as site,
    ):
        await site.http.get("/right-sizing")
        await turns.read()
        page = (await site.http.get("/right-sizing")).text
    Elements(page).assert_harmless()
    assert "&lt;script&gt;" in page
    assert "\u202e" not in page
    assert "xxx" not in page, "no workload has such a name"


def test_series_are_bounded_and_odd_values_unknown():
    many = answer(*(recorded(f"n/w{index}", 1) for index in range(MAX_WORKLOADS + 1)))
    with pytest.raises(MalformedError, match="more than 20000 workloads"):
        decode_records(many)
    odd = answer(
        recorded("n/nan", 5, "NaN", "+Inf"),
        recorded("n/negative", 5, -1, 1),
        recorded("n/unreserved", "NaN", 1, 1),
        recorded("n/replicas", 5, 1, 2),
        recorded("n/replicas", 5, 3, 4),
        recorded("", 5, 1, 1),
    )
    found = {each.workload: (each.p95_mbps, each.max_mbps) for each in decode_records(odd)}
    assert found == {"nan": (None, None), "negative": (None, 1000.0), "replicas": (3000.0, 4000.0)}


async def test_page_of_many_workloads_is_short_and_whole():
    turns = Turns()
    name = "team-{}/a-training-job-with-a-long-name-{}"
    body = answer(
        *(recorded(name.format(index % 40, index), 400, index % 300, 300) for index in range(5_000))
    )
    async with (
        records_of(RecordingPrometheus(body), turns) as records,
        serving(EXAMPLE, records=records) as site,
    ):
        await site.http.get("/right-sizing")
        await turns.read()
        first = (await site.http.get("/right-sizing")).text
        last = (await site.http.get("/right-sizing?page=100")).text
    assert "5000 workloads" in text_of(first)
    assert "and 30 more namespaces" in text_of(first)
    assert "more namespaces" not in text_of(last)
    assert len(first) < 100_000
    assert "4951 to 5000 of 5000" in text_of(last)
