"""The pages above a real extender: they show its answers."""

from __future__ import annotations

import re
from time import monotonic

import httpx2
import pytest

from extender.node_server import PF0, pf, report
from extender.serving import BIND, FILTER, served
from extender.world import cluster
from k8s_rdma.config.web import ExtenderEndpoint
from k8s_rdma.core.rate_ability import NO_RATE
from k8s_rdma.web.access import LoopbackAccess
from k8s_rdma.web.app import Sources, WebApp
from k8s_rdma.web.claim_pods import ClaimPodReader
from k8s_rdma.web.extender_views import ExtenderViews
from k8s_rdma.web.node_traffic import NodeTraffic
from k8s_rdma.web.right_sizing import RecordReader
from k8s_rdma.web.traffic import PrometheusTraffic
from k8s_rdma.wire.report import rates_of
from web.cases import EXAMPLE, explanation
from web.serving import listening, serving
from web.test_pages import POD, rows_of

pytestmark = pytest.mark.anyio


async def test_pages_show_the_state_of_an_extender():
    async with cluster("w1") as c, served(c) as extender:
        await extender.ready()
        c.nodes["w1"].report = report("w1", pf(PF0, rates=rates_of(NO_RATE)))
        await c.create_pod("p", 6_000)
        assert (await extender.post(FILTER, c.args("p"))).json()["NodeNames"]
        assert (await extender.post(BIND, c.bind_args("p", "w1"))).json() == {"Error": ""}
        await c.create_pod("big", 8_000)
        assert not (await extender.post(FILTER, c.args("big"))).json()["NodeNames"]
        endpoint = ExtenderEndpoint(url=extender.url)
        views = ExtenderViews(endpoint, poll_s=60, clock=monotonic)
        await views.poll()
        assert views.failure == ""
        traffic = PrometheusTraffic(None, poll_s=60)
        sources = Sources(
            extender=views,
            traffic=traffic,
            nodes=NodeTraffic(None, clock=monotonic),
            claims=ClaimPodReader(connect=None, clock=monotonic),
            records=RecordReader(None, clock=monotonic),
        )
        async with (
            listening(WebApp(sources, LoopbackAccess())) as url,
            httpx2.AsyncClient(base_url=url, trust_env=False, timeout=20) as http,
        ):
            pages = {}
            for path in ("/", "/nodes/w1", "/namespaces/default", "/pods/default/p", "/pods/default/big"):
                reply = await http.get(path)
                assert reply.status_code == 200, path
                pages[path] = reply.text
            assert (await http.get("/pods/default/none")).status_code == 404
    assert "6 Gb/s of 10 Gb/s, accounted only · 3/4 VFs free" in pages["/"]
    assert 'href="/pods/default/big"' in pages["/"]
    assert rows_of(pages["/nodes/w1"]) == [
        "default/p 1 interface, 6 Gb/s reserved",
        "1 interface enp3s0f0 6 Gb/s none accounted only unchanged",
    ]
    assert rows_of(pages["/namespaces/default"]) == [
        "default/p 1 interface, 6 Gb/s reserved",
        "1 interface w1 enp3s0f0 6 Gb/s none accounted only unchanged",
    ]
    assert "6 Gb/s" in rows_of(pages["/pods/default/p"])[0]
    assert "missing</strong>" in pages["/pods/default/big"]
    assert "<strong>bound</strong>" in pages["/pods/default/p"]
    assert "<strong>refused</strong>" in pages["/pods/default/big"]


async def test_data_that_is_old_says_so():
    async with serving(EXAMPLE, explanation()) as site:
        assert "does not answer" not in (await site.http.get("/")).text
        site.documents.broken = b'{"extender": 1}'
        await site.extender.poll()
        page = await site.http.get("/")
        assert page.status_code == 200
        assert re.search(
            r"The extender does not answer\.</strong> This is what it said \d+ s ago\.", page.text
        )
        assert "worker-1" in page.text
        assert (await site.http.get(POD)).status_code == 503


async def test_no_data_is_no_empty_cluster():
    async with serving(EXAMPLE) as site:
        site.extender.snapshot, site.documents.broken = None, b"no JSON"
        await site.extender.poll()
        for path in ("/", "/pending", "/nodes/worker-1"):
            reply = await site.http.get(path)
            assert reply.status_code == 503
            assert "cluster view" in reply.text
            assert "0 of 0" not in reply.text
