"""Holdings by pod: names of interfaces and traffic of now on the pages, for those who may see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from web.cases import HOSTILE, cluster, explanation, holder, node, pf
from web.node_servers import ADDRESS, Node, Turns, Vf, measuring, metrics
from web.serving import serving
from web.test_access import OPERATOR, TENANT, reviewed
from web.test_pages import Elements, rows_of

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.anyio

VIEW = cluster(node("worker-1", pf(0), addresses=(ADDRESS,)), node("worker-2", pf(0), addresses=()))
POD = "/pods/research/llama-pretrain-worker-0"
PODS = (
    *holder("research/llama-pretrain-worker-0", 2),
    *holder("research/llama-pretrain-worker-0", reserved_mbps=0, cap_mbps=0),
    *holder("team-b/secret"),
)


def counted(sent: int) -> str:
    """The metrics of these pods: each interface has sent that many bytes times its number."""
    held = [
        ("research/llama-pretrain-worker-0", "rdma0", 20_000),
        ("research/llama-pretrain-worker-0", "rdma1", 20_000),
    ]
    vfs = [Vf(number, pod, name, number * sent) for number, (pod, name, _) in enumerate(held, start=1)]
    return metrics(
        "worker-1",
        *vfs,
        Vf(3, "research/llama-pretrain-worker-0", "rdma2", 3 * sent, reserved_mbps=0, cap_mbps=0),
        Vf(4, "team-b/secret", "rdma0", 4 * sent),
        Vf(5, "research/of-another-node", "rdma9", 5 * sent),
    )


async def test_interfaces_are_shown_by_pod_with_their_names_and_traffic():
    turns, server = Turns(), Node(counted(0))
    async with (
        measuring(server, turns) as traffic,
        serving(VIEW, explanation(uid="uid-of-llama-pretrain-worker-0"), node_traffic=traffic) as site,
    ):
        site.documents.holders = PODS
        before = (await site.http.get("/nodes/worker-1")).text
        waiting = await turns.read()
        server.text = counted(1_875_000)
        await turns.again(waiting)
        page, pod, overview = [(await site.http.get(path)).text for path in ("/nodes/worker-1", POD, "/")]
    assert "Traffic is being measured" in before
    assert 'http-equiv="refresh" content="5"' in before
    assert "Traffic is being measured" not in page
    assert 'http-equiv="refresh" content="15"' in page
    assert rows_of(page) == [
        "research/llama-pretrain-worker-0 3 interfaces, 40 Gb/s reserved · sends 6 Mb/s, receives 0 Mb/s",
        "rdma0, rdma1 enp65s0f0np0 20 Gb/s each 40 Gb/s each 3 Mb/s 0 Mb/s hardware unchanged",
        "rdma2 enp65s0f0np0 none none 3 Mb/s 0 Mb/s hardware unchanged",
        "team-b/secret 1 interface, 20 Gb/s reserved · sends 4 Mb/s, receives 0 Mb/s",
        "rdma0 enp65s0f0np0 20 Gb/s 40 Gb/s 4 Mb/s 0 Mb/s hardware unchanged",
    ]
    assert "rdma0, rdma1 worker-1" in " ".join(rows_of(pod))
    assert "of-another-node" not in page + pod, "a node says nothing about pods that it does not hold"
    assert "pods send 15 Mb/s" in overview
    assert "sent by pods" in overview


async def test_names_are_left_out_if_node_and_extender_differ():
    turns, server = Turns(), Node(metrics("worker-1", Vf(1, "research/llama-pretrain-worker-0", "rdma0")))
    async with measuring(server, turns) as traffic, serving(VIEW, node_traffic=traffic) as site:
        site.documents.holders = PODS
        await site.http.get("/nodes/worker-1")
        await turns.read()
        page = (await site.http.get("/nodes/worker-1")).text
    assert rows_of(page)[1].startswith("2 interfaces enp65s0f0np0")


async def test_node_that_cannot_be_measured_reports_why_and_hides_no_other():
    turns, server = Turns(), Node("", status=401)
    async with measuring(server, turns) as traffic, serving(VIEW, node_traffic=traffic) as site:
        site.documents.holders = PODS
        await site.http.get("/")
        await turns.read(2)
        page, overview = [(await site.http.get(path)).text for path in ("/nodes/worker-1", "/")]
    why = "Traffic of worker-1 is not measured: 127.0.0.1: its server answers HTTP 401 for /metrics"
    assert why in Elements(page).text
    assert why in Elements(overview).text
    assert "Traffic of worker-2 is not measured: the extender knows no address" in Elements(overview).text
    assert 'content="15"' in overview, "nothing is waited for"
    assert len(rows_of(page)) == 5


async def test_hostile_names_of_interfaces_are_harmless():
    label = HOSTILE.replace('"', "").replace("{", "").replace("}", "").replace("\x1b", "")
    turns = Turns()
    server = Node(metrics("worker-1", Vf(1, "research/llama-pretrain-worker-0", label * 3)))
    async with measuring(server, turns) as traffic, serving(VIEW, node_traffic=traffic) as site:
        site.documents.holders = holder("research/llama-pretrain-worker-0")
        await site.http.get("/nodes/worker-1")
        await turns.read()
        page = (await site.http.get("/nodes/worker-1")).text
    Elements(page).assert_harmless()
    assert "&lt;script&gt;" in page
    assert "\u202e" not in page
    assert len(page) < 10_000


async def test_traffic_of_a_namespace_is_shown_to_those_who_may_list_its_pods(tmp_path: Path):
    turns, server = Turns(), Node(counted(0))
    async with (
        measuring(server, turns) as traffic,
        reviewed(tmp_path, VIEW, node_traffic=traffic) as (site, _),
    ):
        site.documents.holders = PODS
        assert (await site.http.get("/namespaces/team-b", headers=TENANT)).status_code == 403
        assert (await site.http.get("/nodes/worker-1")).status_code == 401
        assert not server.tokens, "who may see nothing has no node read"
        await site.http.get("/nodes/worker-1", headers=TENANT)
        waiting = await turns.read()
        server.text = counted(1_875_000)
        await turns.again(waiting)
        pages = [
            (await site.http.get("/nodes/worker-1", headers=headers)).text for headers in (TENANT, OPERATOR)
        ]
    assert "sends 6 Mb/s" in pages[0]
    assert "team-b" not in pages[0]
    assert "sends 4 Mb/s" not in pages[0]
    assert "sends 4 Mb/s" in pages[1]
