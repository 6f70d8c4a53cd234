"""Traffic of the pages by Prometheus: their own query, by Prometheus' own promtool."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from k8s_rdma.config.web import PrometheusEndpoint
from k8s_rdma.http_server import Answer
from k8s_rdma.http_server.asgi import JSON
from k8s_rdma.web.traffic import PrometheusTraffic
from monitoring.test_alerts import needs_promtool, promtool
from web.serving import listening

if TYPE_CHECKING:
    from pathlib import Path

    from k8s_rdma.http_server.asgi import Receive, Scope, Send

STEADY = "0+7500000x60"
"""1 Mb/s."""

SERIES = {
    "steady": (STEADY, STEADY),
    "restarted": (STEADY, "0+7500000x56 0+7500000x3"),
    "dip": (STEADY, "0+7500000x56 0 435000000+7500000x2"),  # some drivers report a 0 now and then
    "after": (STEADY, "0+7500000x40 0 315000000+7500000x18"),
}
"""Values of the two VFs of each PF, one a minute."""


async def query_of_pages() -> str:
    """The query that pages send for all PFs."""
    queries: list[str] = []

    async def prometheus(scope: Scope, receive: Receive, send: Send) -> None:
        queries.extend(parse_qs(scope["query_string"].decode())["query"])
        await Answer('{"data": {"result": []}}', content_type=JSON)(scope, receive, send)

    async with listening(prometheus) as url:
        await PrometheusTraffic(PrometheusEndpoint(url=url), poll_s=60).poll()
    [query] = queries
    return query


@needs_promtool
def test_pf_whose_counter_began_anew_or_was_0_once_is_unknown_and_no_burst(tmp_path: Path):
    series = [
        {
            "series": f'k8s_rdma_vf_transmitted_bytes_total{{node="w1", pf="{pf}", vf="{vf}", pod="p{vf}"}}',
            "values": values,
        }
        for pf, vfs in SERIES.items()
        for vf, values in enumerate(vfs)
    ]
    expected = [{"labels": f'{{node="w1", pf="{pf}"}}', "value": 2.0} for pf in ("steady", "after")]
    case = {"expr": asyncio.run(query_of_pages()), "eval_time": "60m", "exp_samples": expected}
    test = {"interval": "1m", "input_series": series, "promql_expr_test": [case]}
    (tmp_path / "cases.yaml").write_text(json.dumps({"tests": [test]}))
    promtool("test", "rules", tmp_path / "cases.yaml")
