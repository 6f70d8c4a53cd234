"""Access to the pages: a browser on this host, and users whom the API server knows."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

from k8s_rdma.config.faults import fit
from k8s_rdma.config.web import WebConfig
from k8s_rdma.errors import MalformedError
from k8s_rdma.http_server import Answer
from k8s_rdma.http_server.asgi import JSON
from k8s_rdma.kube.client import connect
from k8s_rdma.web.access import (
    MAX_IN_FLIGHT,
    MAX_LOGINS_OF_PEER,
    MAX_NAMESPACES,
    MAX_REFUSED,
    MAX_REFUSED_OF_PEER,
    REVIEW_S,
    ReviewedAccess,
)
from k8s_rdma.web.parties import Recent
from k8s_rdma.wire.report import MentionedPod
from web.cases import EXAMPLE, cluster, explanation, node, pf, waiting
from web.serving import Site, listening, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from k8s_rdma.http_server.asgi import Receive, Scope, Send
    from k8s_rdma.web.claim_pods import ClaimPodReader
    from k8s_rdma.web.node_traffic import NodeTraffic
    from k8s_rdma.web.right_sizing import RecordReader
    from k8s_rdma.wire.views import ClusterView

pytestmark = pytest.mark.anyio

OPERATOR, TENANT, NOBODY = ({"authorization": f"Bearer {name}"} for name in ("operator", "tenant", "nobody"))
POD = "/pods/research/llama-pretrain-worker-0"


@dataclass(slots=True)
class Reviews:
    """An API server that reviews: an operator lists all pods, a tenant those of `research`.

    answering: set while wrong tokens are answered. waiting: set once `MAX_LOGINS_OF_PEER` of them wait.
    """

    down: bool = False
    answering: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    reviews: list[dict[str, Any]] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        review = json.loads(body)
        if review["spec"].get("token", "operator") not in ("operator", "tenant"):
            if self.in_flight == MAX_LOGINS_OF_PEER:
                self.waiting.set()
            await self.answering.wait()
        await asyncio.sleep(0.01)
        self.in_flight -= 1
        await self._answer(review)(scope, receive, send)

    def _answer(self, review: dict[str, Any]) -> Answer:
        self.reviews.append(review)
        if self.down:
            return Answer("{}", status=500, content_type=JSON)
        spec = review["spec"]
        if review["kind"] == "TokenReview":
            user = {"username": spec["token"], "groups": ["system:authenticated"], "extra": {"scope": ["a"]}}
            status: dict[str, Any] = {"authenticated": True, "user": user}
            if spec["token"] not in ("operator", "tenant"):
                status = {"authenticated": False, "error": "invalid bearer token"}
        else:
            attributes = spec["resourceAttributes"]
            assert (attributes["verb"], attributes["resource"]) == ("list", "pods")
            assert spec["groups"] == ["system:authenticated"]
            assert spec["extra"] == {"scope": ["a"]}
            status = {"allowed": spec["user"] == "operator" or attributes["namespace"] == "research"}
        return Answer(json.dumps({**review, "status": status}), status=201, content_type=JSON)


@asynccontextmanager
async def reviewed(
    directory: Path,
    view: ClusterView = EXAMPLE,
    *,
    clock: Callable[[], float] = monotonic,
    node_traffic: NodeTraffic | None = None,
    claims: ClaimPodReader | None = None,
    records: RecordReader | None = None,
) -> AsyncIterator[tuple[Site, Reviews]]:
    reviews = Reviews()
    reviews.answering.set()
    async with listening(reviews) as url:
        kubeconfig = {
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        (directory / "kubeconfig").write_text(json.dumps(kubeconfig))
        client = connect(str(directory / "kubeconfig"))
        try:
            access = ReviewedAccess(client, clock)
            async with serving(
                view,
                explanation(),
                access=access,
                node_traffic=node_traffic,
                claims=claims,
                records=records,
            ) as site:
                yield site, reviews
        finally:
            await client.close()


PROBLEMS = (
    "pod research/train: the caps of its annotation are not programmed: rdma0: beyond the link",
    "VF 3 of PF enp65s0f0np0, which pod finance/payroll.0 has, no longer has the rates that were programmed",
    "PF enp65s0f0np0: 5 Mb/s are reserved, and its link speed is unknown now",
)


@pytest.mark.parametrize("mentions", [True, False], ids=["with-mentions", "of-an-older-agent"])
async def test_problems_of_a_node_name_no_pods_of_namespaces_that_a_viewer_may_not_list(
    tmp_path: Path, mentions: bool
):
    pods = (("research", "train"), ("finance", "payroll.0")) if mentions else ()
    named = tuple(MentionedPod(namespace=namespace, name=name) for namespace, name in pods)
    view = cluster(node("worker-1", pf(0), problems=PROBLEMS, mentions=named))
    async with reviewed(tmp_path, view) as (site, _):
        for path in ("/", "/nodes/worker-1"):
            for header, expected in ((OPERATOR, True), (TENANT, False)):
                text = (await site.http.get(path, headers=header)).text
                assert ("finance" in text, "payroll" in text) == (expected, expected)
                assert "pod research/train: the caps" in text
                assert ("which a pod of another namespace has, no longer" in text) is not expected
                assert "its link speed is unknown now" in text


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:54008", "LOCALHOST:1", "[::1]:8080"])
async def test_loopback_is_for_names_of_this_host(host: str):
    async with serving(EXAMPLE) as site:
        assert (await site.http.get("/", headers={"host": host})).status_code == 200


@pytest.mark.parametrize("host", ["rebound.example.com", "127.0.0.1.example.com:54008", "[::2]", "10.0.0.1"])
async def test_page_of_another_site_reads_no_data(host: str):
    async with serving(EXAMPLE, explanation()) as site:
        for path in ("/", "/pending", "/nodes/worker-1", POD):
            reply = await site.http.get(path, headers={"host": host})
            assert reply.status_code == 403
            assert "worker" not in reply.text


async def test_request_without_a_token_of_the_cluster_is_refused(tmp_path: Path):
    async with reviewed(tmp_path) as (site, _):
        for headers in ({}, NOBODY, {"authorization": "Basic eDp5"}, {"authorization": "Bearer"}):
            reply = await site.http.get("/", headers=headers)
            assert (reply.status_code, reply.headers["www-authenticate"]) == (401, "Bearer")
            assert "worker" not in reply.text
        twice = [("authorization", "Bearer operator"), ("authorization", "Bearer nobody")]
        assert (await site.http.get("/", headers=twice)).status_code == 401
        assert (await site.http.get("/healthz")).status_code == 200


async def test_tenant_sees_own_pods_and_sums_of_others(tmp_path: Path):
    async with reviewed(tmp_path) as (site, _):
        pages = [(await site.http.get(path, headers=TENANT)).text for path in ("/", "/pending")]
        for page in pages:
            assert "research/llama-pretrain-worker-0" in page
            assert "team-b" not in page
            assert "1 more pod waits in namespaces whose pods you may not list" in page
        assert "255 Gb/s" in pages[0]
        for path in ("/", "/pending"):
            assert "team-b" in (await site.http.get(path, headers=OPERATOR)).text


async def test_pod_of_another_namespace_is_neither_shown_nor_queried(tmp_path: Path):
    async with reviewed(tmp_path) as (site, _):
        assert (await site.http.get(POD, headers=TENANT)).status_code == 200
        site.documents.requests.clear()
        for name in ("bandwidth-test", "no-such-pod"):
            reply = await site.http.get(f"/pods/team-b/{name}", headers=TENANT)
            assert reply.status_code == 403
        assert site.documents.requests == []


async def test_holders_of_other_namespaces_are_a_sum(tmp_path: Path):
    async with reviewed(tmp_path) as (site, _):
        page = (await site.http.get("/nodes/worker-1", headers=TENANT)).text
        assert "research/notebook" in page
        assert "team-b" not in page
        assert "3 interfaces of pods that you may not list, 12.5 Gb/s reserved." in page
        assert "team-b/bandwidth" in (await site.http.get("/nodes/worker-1", headers=OPERATOR)).text
        assert (await site.http.get("/namespaces/research", headers=TENANT)).status_code == 200
        site.documents.requests.clear()
        assert (await site.http.get("/namespaces/team-b", headers=TENANT)).status_code == 403
        assert site.documents.requests == []


async def test_reviews_are_requested_once_a_minute(tmp_path: Path):
    async with reviewed(tmp_path) as (site, reviews):
        for _ in range(5):
            assert (await site.http.get("/", headers=TENANT)).status_code == 200
        kinds = [review["kind"] for review in reviews.reviews]
        assert kinds.count("TokenReview") == 1
        assert kinds.count("SubjectAccessReview") == 3  # of all namespaces, research and team-b


async def test_api_server_that_does_not_answer_opens_no_page(tmp_path: Path):
    async with reviewed(tmp_path) as (site, reviews):
        reviews.down = True
        for headers in (OPERATOR, NOBODY):
            reply = await site.http.get("/", headers=headers)
            assert reply.status_code == 503
            assert "worker" not in reply.text
        reviews.down = False
        assert (await site.http.get("/", headers=OPERATOR)).status_code == 200, "a failure is not kept"


async def test_request_asks_about_a_bounded_number_of_namespaces(tmp_path: Path):
    pods = tuple(waiting(f"team-{index}/pod") for index in range(300))
    async with reviewed(tmp_path, cluster(pending=pods)) as (site, reviews):
        page = await site.http.get("/", headers=TENANT)
    assert "300 more pods wait in namespaces" in page.text
    assert len(reviews.reviews) == 2 + MAX_NAMESPACES
    assert 1 < reviews.most_in_flight <= MAX_IN_FLIGHT


async def test_namespaces_beyond_the_bound_are_found_by_later_requests_and_stay(tmp_path: Path):
    now = [0.0]
    others = [f"team-{index}" for index in range(250)]
    pods = (*(waiting(f"{name}/pod") for name in others), waiting("research/pod"))
    async with reviewed(tmp_path, cluster(pending=pods), clock=lambda: now[0]) as (site, reviews):

        async def load(path: str) -> str:
            reviews.reviews.clear()
            page = (await site.http.get(path, headers=TENANT)).text
            assert len(reviews.reviews) <= 2 + MAX_NAMESPACES
            return page

        first, second, third = [await load("/pending") for _ in range(3)]
        assert "151 more namespaces may be yours" in first
        assert "51 more namespaces may be yours" in second
        assert "/pods/research/pod" not in first + second
        assert "may be yours" not in third
        assert "/pods/research/pod" in third
        now[0] = REVIEW_S
        later = await load("/pending")
        assert "/pods/research/pod" in later
        assert "250 more pods wait" in later
        assert "may be yours" not in later


async def test_namespaces_of_a_filter_are_reviewed_first(tmp_path: Path):
    pods = (*(waiting(f"team-{index}/pod") for index in range(250)), waiting("research/pod"))
    async with reviewed(tmp_path, cluster(pending=pods)) as (site, _):
        assert "/pods/research/pod" in (await site.http.get("/pending?q=research", headers=TENANT)).text


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def test_wrong_tokens_of_a_peer_are_bounded_and_users_who_logged_in_go_on(tmp_path: Path):
    now = [0.0]
    async with reviewed(tmp_path, clock=lambda: now[0]) as (site, reviews):
        assert (await site.http.get("/", headers=TENANT)).status_code == 200
        reviews.reviews.clear()
        wrong = [bearer(f"wrong-{index}") for index in range(MAX_REFUSED_OF_PEER + 20)]
        replies = await asyncio.gather(*(site.http.get("/", headers=headers) for headers in wrong))
        assert {reply.status_code for reply in replies} == {401, 429}
        limited = next(reply for reply in replies if reply.status_code != 401)
        assert limited.headers["retry-after"] == f"{REVIEW_S:.0f}"
        assert MAX_REFUSED_OF_PEER <= len(reviews.reviews) < MAX_REFUSED_OF_PEER + MAX_LOGINS_OF_PEER
        assert reviews.most_in_flight <= MAX_IN_FLIGHT
        now[0] = REVIEW_S  # the tenant's review counts no more; counting wrong tokens begins anew
        assert (await site.http.get("/", headers=TENANT)).status_code == 200
        assert (await site.http.get("/", headers=OPERATOR)).status_code == 200


async def test_user_who_logged_in_does_not_wait_for_the_reviews_of_new_tokens(tmp_path: Path):
    now = [0.0]
    async with reviewed(tmp_path, clock=lambda: now[0]) as (site, reviews):
        assert (await site.http.get("/", headers=TENANT)).status_code == 200
        now[0] = REVIEW_S
        reviews.answering.clear()
        wrong = [asyncio.create_task(site.http.get("/", headers=bearer(f"w{index}"))) for index in range(8)]
        async with asyncio.timeout(120):
            await reviews.waiting.wait()
            assert (await site.http.get("/", headers=TENANT)).status_code == 200
        assert not any(task.done() for task in wrong)
        assert reviews.in_flight == MAX_LOGINS_OF_PEER
        reviews.answering.set()
        assert {(await task).status_code for task in wrong} == {401}


def test_recent_answers_are_bounded_in_number_and_time():
    now = [0.0]
    recent: Recent[int, bool] = Recent(lambda: now[0], MAX_REFUSED, lasts_s=REVIEW_S)
    for key in range(MAX_REFUSED + 10):
        recent.put(key, True, party="a")
    assert recent.last(9) is recent.get(9) is None
    assert recent.get(10)
    now[0] = REVIEW_S
    assert recent.get(10) is None
    assert recent.last(10) == (0.0, True)


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        ({"listen": ""}, "listen: all addresses; beyond loopback, set access: reviews"),
        ({"listen": "10.0.0.1"}, "listen: 10.0.0.1; beyond loopback, set access: reviews"),
        ({"extender": {"url": "http://x/path"}}, "extender.url: http://x/path; wanted a URL without a path"),
        ({"extender": {"url": "ftp://x"}}, "extender.url: ftp://x; wanted a URL"),
        (
            {"extender": {"certFile": "/a"}},
            "extender.certFile and keyFile: one is of no use without the other",
        ),
        ({"access": "none"}, "access: none; wanted loopback or reviews"),
        ({"pollS": 0}, "pollS: 0; wanted"),
    ],
)
def test_configuration_that_contradicts_itself_is_refused_by_field(document: dict[str, Any], fault: str):
    with pytest.raises(MalformedError) as refused:
        fit(WebConfig, document)
    assert fault in refused.value.message


@pytest.mark.parametrize("document", [{}, {"listen": "::1"}, {"listen": "", "access": "reviews"}])
def test_configuration_that_is_safe_is_taken(document: dict[str, Any]):
    fit(WebConfig, document)
