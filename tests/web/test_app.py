"""The application: paths, methods, parameters and headers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.config.web import PrometheusEndpoint
from k8s_rdma.http_server import Answer
from k8s_rdma.http_server.asgi import JSON
from k8s_rdma.web.access import Denial, Visibility
from k8s_rdma.web.app import MAX_PAGES_OF_VIEWER
from k8s_rdma.web.source import MAX_QUESTIONS_OF_VIEWER
from k8s_rdma.wire.views import (
    ExtenderState,
    Group,
    NodeExplanation,
    PfExplanation,
    PfRow,
    Place,
    Placed,
    Refused,
)
from web.cases import EXAMPLE, HOSTILE, cluster, explanation, holder, node, waiting
from web.serving import listening, serving
from web.test_pages import PAGES, Elements

if TYPE_CHECKING:
    from collections.abc import Collection

    from k8s_rdma.http_server.asgi import Receive, Scope, Send


pytestmark = pytest.mark.anyio

OTHER_PATHS = (
    "/nope",
    "/nodes/",
    "/nodes/..%2f..%2fetc",
    "/pods/a",
    "/pods/a/b/c",
    "/nodes/A",
    "/style.css/x",
)


async def test_texts_of_others_are_shown_without_effect():
    hostile_pf = PfRow(name=HOSTILE, link_mbps=1, reserved_mbps=2, vfs=1, free_vfs=0, devices=1)
    view = cluster(
        node(HOSTILE, hostile_pf, problems=(HOSTILE,)),
        node("worker-1", hostile_pf, problems=(HOSTILE,)),
        pending=(waiting(f"ns/{HOSTILE}", HOSTILE),),
    )
    hostile = PfExplanation(
        name=HOSTILE,
        pci=HOSTILE,
        link_mbps=1,
        unreserved_mbps=0,
        vfs=1,
        free_vfs=1,
        placed=1,
        min_by=(HOSTILE,),
        objections=(HOSTILE,),
    )
    pod = explanation(
        extender=ExtenderState(role="standby", missing=(HOSTILE,)),
        state="waiting",
        policy=HOSTILE,
        malformed=HOSTILE,
        limit_refusal=HOSTILE,
        obstacles=(HOSTILE,),
        nominated=HOSTILE,
        refused=Refused(verb=HOSTILE, ago_s=1, text=HOSTILE),
        places=(
            Place(
                node=HOSTILE,
                signature=HOSTILE,
                rates=HOSTILE,
                generation=1,
                reported=(Placed(pci=HOSTILE, name=HOSTILE, interfaces=1, reserved_mbps=1),),
            ),
        ),
        groups=(
            Group(
                verdict="refused",
                count=1,
                why=HOSTILE,
                examples=(NodeExplanation(node=HOSTILE, verdict="refused", pfs=(hostile,)),),
            ),
        ),
        notes=(HOSTILE,),
    )
    async with serving(view, pod) as site:
        site.documents.holders = holder(f"research/{HOSTILE}", pf=HOSTILE, uid=HOSTILE, pool=HOSTILE)
        for path in (*PAGES, f"/?q={HOSTILE[:30]}"):
            html = (await site.http.get(path)).text
            Elements(html).assert_harmless()
            assert "\u202e" not in html
            assert "\x1b" not in html
            assert "{{ 7*7 }}" in html or "49" not in html
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in (await site.http.get("/")).text


@pytest.mark.parametrize("path", [*PAGES, "/style.css", "/icon.svg", "/healthz", "/nope", "/?sort=x"])
async def test_headers_forbid_scripts_frames_and_other_sites(path: str):
    async with serving(EXAMPLE, explanation()) as site:
        reply = await site.http.get(path)
        head = await site.http.head(path)
    policy = dict(
        part.strip().partition(" ")[::2] for part in reply.headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["style-src"] == policy["img-src"] == policy["form-action"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert "script-src" not in policy
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["referrer-policy"] == "no-referrer"
    assert reply.headers["cross-origin-resource-policy"] == "same-origin"
    assert (head.status_code, head.content) == (reply.status_code, b"")
    assert head.headers["content-type"] == reply.headers["content-type"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
async def test_only_get_and_head_are_answered(method: str):
    async with serving(EXAMPLE) as site:
        reply = await site.http.request(method, "/")
    assert (reply.status_code, reply.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", [*OTHER_PATHS, "/nodes/worker-9", "/pods/research/nope"])
async def test_unknown_path_is_a_page_with_status_404(path: str):
    async with serving(EXAMPLE) as site:
        reply = await site.http.get(path)
    assert (reply.status_code, reply.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert 'href="/"' in reply.text


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        *(
            ("sort=speed", "sort"),
            ("page=0", "page"),
            ("page=-1", "page"),
            ("page=\u0661", "page"),
            ("page=99999", "page"),
        ),
        *(
            ("refresh=2", "refresh"),
            (f"q={'a' * 254}", "q"),
            ("q=%ff", "query"),
            ("&".join(["x=1"] * 20), "query"),
        ),
    ],
)
async def test_malformed_parameter_is_refused_by_name(query: str, parameter: str):
    async with serving(EXAMPLE) as site:
        reply = await site.http.get(f"/?{query}")
    assert reply.status_code == 400
    assert f"<p>{parameter}: " in reply.text


@dataclass(frozen=True)
class Named:
    """A viewer of everything."""

    party: str

    async def visibility(self, namespaces: Collection[str]) -> Visibility:
        return Visibility(frozenset(namespaces))


class ByName:
    """Admits everyone by the name that they give."""

    async def admit(self, scope: Scope) -> Named | Denial:
        return Named(dict(scope["headers"])[b"user"].decode())


class HeldPrometheus:
    """Answers queries about pods of a namespace when it is let. waiting: how many are in flight."""

    def __init__(self, held: str) -> None:
        self._held = f"namespace%3D%22{held}%22".encode()
        self.waiting = 0
        self.some_wait = asyncio.Event()
        self.let = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._held in scope["query_string"]:
            self.waiting += 1
            self.some_wait.set()
            await self.let.wait()
        await Answer('{"data": {"result": []}}', content_type=JSON)(scope, receive, send)


async def test_viewer_with_many_slow_pages_takes_neither_pages_nor_questions_of_others():
    held = HeldPrometheus("research")
    async with (
        listening(held) as url,
        serving(EXAMPLE, access=ByName(), prometheus=PrometheusEndpoint(url=url)) as site,
    ):
        many = [
            asyncio.create_task(site.http.get("/namespaces/research", headers={"user": "greedy"}))
            for _ in range(MAX_PAGES_OF_VIEWER + 8)
        ]
        async with asyncio.timeout(120):
            await held.some_wait.wait()
            done, _ = await asyncio.wait(many, return_when=asyncio.FIRST_COMPLETED)
            refused = done.pop().result()
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert "32 pages of yours are being made already" in refused.text
            for path in ("/", "/namespaces/team-b"):
                assert (await site.http.get(path, headers={"user": "modest"})).status_code == 200
            assert held.waiting <= MAX_QUESTIONS_OF_VIEWER
            held.let.set()
            statuses = [(await task).status_code for task in many]
        assert statuses.count(200) == MAX_PAGES_OF_VIEWER
        assert (await site.http.get("/", headers={"user": "greedy"})).status_code == 200, "all are done"
