"""The pages over real sockets: their content, escaping and refusals."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from k8s_rdma.web.pages import short_reason
from k8s_rdma.wire.extender import NOT_ENOUGH_FREE
from k8s_rdma.wire.views import Group, Limit, NodeExplanation, Sort
from web.cases import EXAMPLE, cluster, explanation, holder, large_cluster, node, pf, waiting
from web.serving import serving

pytestmark = pytest.mark.anyio

POD = "/pods/research/llama-pretrain-worker-0"
PAGES = ("/", "/pending", "/nodes/worker-1", "/namespaces/research", POD)
TAGS = frozenset(
    {
        *("html", "head", "meta", "title", "link", "body", "header", "nav", "main", "footer", "section"),
        *("h1", "h2", "p", "a", "dl", "div", "dt", "dd", "ul", "li", "span", "small", "em", "strong", "code"),
        *("svg", "rect", "form", "label", "input", "select", "option", "button"),
        *("wbr", "table", "caption", "thead", "tbody", "tr", "th", "td"),
    }
)


class Elements(HTMLParser):
    """Every element of a page with its attributes, and all of its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def assert_harmless(self) -> None:
        """No element, attribute or address that a template did not write."""
        assert {tag for tag, _ in self.elements} <= TAGS
        for tag, attributes in self.elements:
            assert not [name for name in attributes if name.startswith("on") or name == "style"], tag
            assert all((attributes.get(name) or "/")[0] in "/?#" for name in ("href", "action", "src"))


async def test_overview_shows_health_pending_pods_and_nodes():
    async with serving(EXAMPLE) as site:
        reply = await site.http.get("/")
    text = " ".join(Elements(reply.text).text.split())
    assert reply.status_code == 200
    assert "Nodes ready3 of 5 · 4 with problems PFs up7 of 7 Reserved255 Gb/s of 600 Gb/s · 42 %" in text
    assert "claims: 25 Gb/s of 100 Gb/s VFs free120 of 192" in text
    assert "Pods pending3 by annotation Oldest report5 min 1 node never reported" in text
    assert "Pods that wait by ResourceClaim are not listed" in text
    assert "team-b/bandwidth-test2 interfaces, 80 Gb/s · waits 5 min5 nodes: no PF has 4 free VFs" in text
    assert (
        "waits 5 min4 nodes: too small for the pod, even when empty; 1 node: not known to the exten" in text
    )
    assert "unknown of 100 Gb/s · 20/32 VFs free" in text, "unknown is not zero"
    assert "12.5 Gb/s of 100 Gb/s, accounted only · 20/32 VFs free" in text
    assert text.count("accounted only") == 1


async def test_node_shows_all_its_pfs():
    many = node("worker-1", *(pf(index) for index in range(40)))
    async with serving(cluster(many)) as site:
        overview, page = [(await site.http.get(path)).text for path in ("/", "/nodes/worker-1")]
    assert overview.count('<svg class="bar"') == 8
    assert "32 more PFs" in overview
    assert page.count('<svg class="bar"') == 40


def rows_of(html: str) -> list[str]:
    """The rows of tables but for their heads, as text with single spaces."""
    found = re.findall(r"<tr(?: class=\"pod-head\")?>(.*?)</tr>", html.partition("<tbody>")[2], re.DOTALL)
    return [" ".join(re.sub("<[^>]*>", " ", row).split()) for row in found]


async def test_node_shows_holders_of_its_vfs():
    async with serving(EXAMPLE) as site:
        page = await site.http.get("/nodes/worker-1")
        other = await site.http.get("/nodes/worker-2")
    by = "reservation: accounted only, cap: software"
    assert rows_of(page.text) == [
        "research/llama-pretrain-worker-7 4 interfaces, 80 Gb/s reserved",
        "4 interfaces enp65s0f0np0 20 Gb/s each 40 Gb/s each hardware unchanged",
        "research/notebook 1 interface, 20 Gb/s reserved",
        f"1 interface enp66s0f0np0 20 Gb/s 40 Gb/s {by} change 2",
        "team-b, a pod with UID 4d1c2b3a 1 interface, 0 Mb/s reserved",
        "1 interface enp65s0f0np0 none none unknown unchanged",
        "team-b/bandwidth 2 interfaces, 12.5 Gb/s reserved",
        "2 interfaces enp65s0f0np0 6.25 Gb/s each none hardware change 3 admitted, 2 programmed",
    ]
    assert "Note: a note" in page.text
    assert "No pod holds an interface here." in other.text


async def test_namespace_shows_its_limit_and_usage_of_its_pods():
    async with serving(EXAMPLE) as site:
        without = await site.http.get("/namespaces/research")
        site.documents.limit = Limit(used_mbps=100_000, limit_mbps=400_000, used_vfs=5, limit_vfs=None)
        page = await site.http.get("/namespaces/research")
    text = " ".join(Elements(page.text).text.split())
    assert "5 interfaces, 100 Gb/s reserved" in text
    assert "Reserved100 Gb/s of 400 Gb/s VFs5, no limit" in text
    assert "research/llama-pretrain-worker-1" in text
    assert "team-b" not in text
    assert [" ".join(row.split()[:4]) for row in rows_of(page.text)] == [
        "research/llama-pretrain-worker-7 4 interfaces, 80",
        "4 interfaces worker-1 enp65s0f0np0",
        "research/notebook 1 interface, 20",
        "1 interface worker-1 enp66s0f0np0",
    ]
    assert "This namespace has no limit." in without.text


async def test_pod_is_explained():
    async with serving(EXAMPLE, explanation()) as site:
        text = " ".join(Elements((await site.http.get(POD)).text).text.split())
    assert "refused · 2 interfaces, 80 Gb/s reserved, priority 0" in text
    assert "Last refused3 s ago by filter On worker-1" in text, "the nodes say why, once"
    assert "holds 120 Gb/s of 400 Gb/s and 12 VFs of its limit" in text
    assert "2 nodes: no: needs more bandwidth than its PFs have left" in text
    assert "72.5 Gb/s missing: needs 80000 Mb/s, has 7500" in text
    assert "missing for this pod" in text, "the legend"
    assert "1 interface here, 40 Gb/s; reservations by nobody (accounted only)" in text
    assert "the node cannot be read" in text
    assert "1 node: cannot be read: no report for 5 min worker-3" in text


async def test_last_refusal_of_a_pod_that_would_fit_now_keeps_its_reason():
    fits = Group(verdict="fits", count=1, examples=(NodeExplanation(node="worker-1", verdict="fits"),))
    async with serving(EXAMPLE, explanation(groups=(fits,))) as site:
        text = " ".join(Elements((await site.http.get(POD)).text).text.split())
    assert "3 s ago by filter: 2 nodes: not enough free for the pod" in text


@pytest.mark.parametrize(
    ("why", "shown"),
    [
        (f"{NOT_ENOUGH_FREE} (needs 3 interfaces (of 600 Mb/s))", "needs 3 interfaces (of 600 Mb/s)"),
        (NOT_ENOUGH_FREE, NOT_ENOUGH_FREE),
        ("no report for 5 min", "no report for 5 min"),
    ],
)
def test_reason_is_shown_without_the_sentence_for_the_scheduler(why: str, shown: str):
    assert short_reason(why) == shown


async def test_pod_without_the_annotation_is_no_riddle():
    async with serving(EXAMPLE, explanation(state="no-rdma", interfaces=())) as site:
        text = " ".join(Elements((await site.http.get(POD)).text).text.split())
    assert "requests no RDMA interfaces by annotation. For ResourceClaims, see k8s-rdma explain pod" in text
    assert "no-rdma" not in text


async def test_nodes_are_sorted_and_selected():
    async with serving(EXAMPLE) as site:

        async def names(query: str) -> list[str]:
            return re.findall(
                r'node-head"><a href="/nodes/([^"]+)"', (await site.http.get(f"/?{query}")).text
            )

        for sort in Sort:
            assert len(await names(f"sort={sort.value}")) == 5
        assert (await names("sort=name"))[:2] == ["worker-1", "worker-2"]
        assert (await names("sort=age"))[:2] == ["worker-5", "worker-3"]
        assert (await names("sort=reserved"))[0].startswith("worker-4")
        assert await names("q=%20RACK-17") == ["worker-4.rack-17.cluster.example.com"]
        assert await names("q=nothing") == []


async def test_pages_of_a_large_cluster_are_short_and_whole():
    async with serving(large_cluster(nodes=600, pending=300)) as site:
        found, path = set(), "/?sort=reserved"
        while path:
            reply = await site.http.get(path)
            assert len(reply.content) < 100_000
            found |= set(re.findall(r'node-head"><a href="/nodes/([^"]+)"', reply.text))
            following = re.search(r'rel="next" href="([^"]+)"', reply.text)
            path = "/" + following[1].replace("&amp;", "&") if following else ""
        assert len(found) == 600
        pending = await site.http.get("/pending?page=6")
        assert len(pending.content) < 100_000
        assert "251 to 300 of 300" in pending.text


async def test_page_of_a_pod_with_gates_says_that_it_cannot_be_scheduled():
    pod = explanation(state="waiting", obstacles=("schedulingGates example.com/a: wait",))
    async with serving(EXAMPLE, pod) as site:
        found = Elements((await site.http.get(POD)).text).text
        assert "Cannot be scheduled: schedulingGates example.com/a: wait" in found
        assert "No scheduler has asked" not in found


async def test_long_texts_do_not_make_long_pages():
    long = "x" * 20_000
    view = cluster(
        *(node(f"worker-{index}", pf(0), problems=(long,) * 20) for index in range(50)),
        pending=tuple(waiting(f"ns/pod-{index}", long) for index in range(50)),
    )
    pod = explanation(malformed=long, notes=(long,) * 1000, limit_refusal=long, obstacles=(long,) * 1000)
    async with serving(view, pod) as site:
        site.documents.holders = tuple(
            row for index in range(1000) for row in holder(f"research/{'x' * 240}-{index}", 2)
        )
        for path in PAGES:
            assert len((await site.http.get(path)).content) < 100_000, path
