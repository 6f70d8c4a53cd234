"""Views for people, `/v1/explain` and `/v1/cluster`, over HTTP."""

from __future__ import annotations

import asyncio
import re

import msgspec
import pytest

from extender.node_server import PF0, PF1, pf, report
from extender.serving import BIND, FILTER, Served, served
from extender.world import World, cluster
from k8s_rdma.config.extender import NamespaceLimit
from k8s_rdma.core.inventory import CLAIMS_POOL
from k8s_rdma.core.rate_ability import NO_RATE
from k8s_rdma.core.types import NodeName
from k8s_rdma.extender.node_source import facts_of_status
from k8s_rdma.wire.placement_keys import PlacementKeys
from k8s_rdma.wire.rdma_node import status_of
from k8s_rdma.wire.report import rates_of
from k8s_rdma.wire.views import ClusterView, Explanation, decode_explanation, decode_view

pytestmark = pytest.mark.anyio
KEY = PlacementKeys.shared(b"secret")


async def explained(http: Served, pod: str, **query: str) -> Explanation:
    reply = await http.http.get("/v1/explain", params={"pod": f"default/{pod}", **query})
    assert reply.status_code == 200, reply.text
    return decode_explanation(reply.content)


async def view(http: Served, **query: object) -> ClusterView:
    reply = await http.http.get("/v1/cluster", params=query)
    assert reply.status_code == 200, reply.text
    return decode_view(reply.content)


async def bind(c: World, http: Served, pod: str, node: str) -> None:
    assert (await http.post(FILTER, c.args(pod))).json()["NodeNames"]
    assert (await http.post(BIND, c.bind_args(pod, node))).json() == {"Error": ""}


async def test_explain_lists_the_possible_placement_on_every_node():
    async with cluster("w1", "w2") as c, served(c) as http:
        await http.ready()
        c.nodes["w1"].report = report("w1", pf(PF0), pf(PF1, vfs=1))
        c.nodes["w2"].report = report("w2", pf(PF0, mbps=4000))
        await c.create_pod("p", 6000, 5000)
        told = await explained(http, "p")
        assert (told.state, told.extender.role, told.reserved_mbps) == ("waiting", "active", 11_000)
        fits, refused = told.groups
        assert (fits.verdict, fits.count, fits.examples[0].node) == ("fits", 1, "w1")
        assert {(each.placed, each.placed_mbps) for each in fits.examples[0].pfs} == {(1, 5000), (1, 6000)}
        assert (refused.verdict, refused.count) == ("refused", 1)
        [look] = refused.examples[0].pfs
        assert (look.room_for, look.placed, look.free_vfs, look.unreserved_mbps) == (0, 0, 4, 4000)
        assert look.objections == ("4000 Mb/s unreserved, and the smallest interface needs 5000",)
        assert look.short_mbps == 1000
        assert not refused.examples[0].evictable


async def test_explain_names_the_enforcer_of_rates_that_the_hardware_does_not_enforce():
    none = rates_of(NO_RATE)
    async with cluster("w1", "w2", "w3") as c, served(c) as http:
        await http.ready()
        c.nodes["w1"].report = report("w1", pf(PF0, rates=none, takes=("software-caps",)))
        c.nodes["w2"].report = report("w2", pf(PF0, rates=none))
        c.nodes["w3"].report = report("w3", pf(PF0, takes=("software-caps",)))
        asked = '[{"min_tx_rate": 10, "max_tx_rate": 500}, {"max_tx_rate": 10000}, {}]'
        await c.create_pod("p", annotation=asked)
        told = await explained(http, "p", all="1")
        looks = {node.node: node.pfs[0] for node in told.nodes}
        assert (looks["w1"].min_by, looks["w1"].max_by) == (("accounted",), ("hardware", "software"))
        assert (looks["w2"].min_by, looks["w2"].max_by) == (("accounted",), ("accounted", "hardware"))
        assert (looks["w3"].min_by, looks["w3"].max_by) == ((), ())


async def test_explain_of_a_bound_pod_has_its_node_and_reported_interfaces():
    async with cluster("w1") as c, served(c, key=KEY) as http:
        await http.ready()
        pod = await c.create_pod("p", 6000)
        await bind(c, http, "p", "w1")
        told = await explained(http, "p")
        assert told.state == "bound"
        [place] = told.places
        assert (place.node, place.signature, place.reported) == ("w1", "valid", ())
        assert [(each.name, each.reserved_mbps) for each in place.placement] == [("enp3s0f0", 6000)]
        assert told.groups[0].examples[0].pfs[0].unreserved_mbps == 10_000, (
            "its own does not count against it"
        )
        c.nodes["w1"].report = report("w1", generation=2, held={pod["metadata"]["uid"]: 6000})
        [place] = (await explained(http, "p", node="w1")).places
        assert [(each.name, each.reserved_mbps) for each in place.reported] == [("enp3s0f0", 6000)]


async def test_explain_reports_the_fault_of_a_foreign_placement():
    async with cluster("w1") as c, served(c, key=KEY) as http:
        await http.ready()
        await c.create_pod("p", 6000)
        await c.bind_by_hand("p", "w1", **{"k8s-rdma.io_placement": '{"version":1}'})
        [place] = (await explained(http, "p")).places
        assert "k8s-rdma.io/placement" in place.signature
        assert place.placement == ()


async def test_explain_has_the_last_refusal_and_top_lists_waiting_pods():
    async with cluster("w1", "w2") as c, served(c) as http:
        await http.ready()
        await c.create_pod("big", 8000)
        await c.create_pod("holder", 8000)
        await bind(c, http, "holder", "w1")
        assert not (await http.post(FILTER, c.args("big", "w1"))).json()["NodeNames"]
        told = await explained(http, "big")
        assert (told.state, told.refused.verb) == ("refused", "filter")
        assert told.refused.text == "0/1 nodes: 1 insufficient"
        assert [(group.verdict, group.count) for group in told.groups] == [("fits", 1), ("refused", 1)]
        shown = await view(http)
        [row] = shown.pending
        assert (row.pod, row.interfaces, row.reserved_mbps) == ("default/big", 1, 8000)
        assert (shown.totals.nodes, shown.totals.reserved_mbps, shown.totals.pods) == (2, 8000, 1)
        assert [node.name for node in shown.nodes] == ["w1", "w2"]
        await c.delete_pod("big")
        await until_nobody_waits(http)


async def until_nobody_waits(http: Served) -> None:
    while (await view(http)).pending_total:  # noqa: ASYNC110  it has no event for tests
        await asyncio.sleep(0.01)


async def test_nodes_that_differ_in_numbers_alone_are_one_group():
    names = [f"w{number}" for number in range(8)]
    async with cluster(*names) as c, served(c) as http:
        await http.ready()
        for number, node in enumerate(c.nodes.values()):
            node.report = report(node.name, pf(mbps=1000 + number))
        c.nodes["w7"].raw = b"HTTP/1.1 500 no\r\nContent-Length: 0\r\n\r\n"
        await c.create_pod("p", 5000)
        groups = (await explained(http, "p")).groups
        assert [(group.verdict, group.count) for group in groups] == [("refused", 7), ("unreadable", 1)]
        assert len(groups[0].examples) == 3
        assert "needs 1 interface of 5000 Mb/s; no PF has" in groups[0].why
        assert not re.search("100[0-7]", groups[0].why)
        assert len((await explained(http, "p", all="1")).nodes) == 8


async def test_malformed_question_is_refused_by_the_name_of_its_parameter():
    async with cluster("w1") as c, served(c) as http:
        await http.ready()
        for path, word in (
            ("/v1/explain", "pod"),
            ("/v1/explain?pod=x", "pod"),
            ("/v1/cluster?sort=size", "sort"),
            ("/v1/cluster?limit=-1", "limit"),
            ("/v1/cluster?limit=10001", "limit"),
        ):
            reply = await http.http.get(path)
            assert (reply.status_code, reply.json()["error"]["message"].split(":")[0]) == (400, word)
        reply = await http.http.get("/v1/explain", params={"pod": "default/none"})
        assert reply.status_code == 404
        assert "default/none" in reply.json()["error"]["message"]


async def test_explain_of_a_malformed_annotation_names_the_field():
    async with cluster("w1") as c, served(c) as http:
        await http.ready()
        await c.create_pod("p", annotation='[{"min_tx": 1}]')
        told = await explained(http, "p")
        assert (told.state, told.groups) == ("refused", ())
        assert "min_tx" in told.malformed
        await http.post(FILTER, c.args("p"))
        [waiting] = (await view(http)).pending
        assert waiting.why == told.malformed


async def test_explain_of_a_pod_with_another_count_of_vfs_agrees_with_filter():
    async with cluster("w1") as c, served(c, vf_resource="example.com/vfs") as http:
        await http.ready()
        container = {"name": "c", "image": "x", "resources": {"requests": {"example.com/vfs": "3"}}}
        meta = {"name": "p", "annotations": {"rdma_interfaces_required": "[{}, {}]"}}
        pod = {"metadata": meta, "spec": {"containers": [container]}}
        assert (await c.http.post("/api/v1/namespaces/default/pods", json=pod)).status_code == 201
        told = await explained(http, "p")
        assert (told.state, told.groups) == ("refused", ())
        assert "asks for 2 interfaces, but the pod's containers request 3" in told.malformed


async def test_overview_sorts_and_counts_all_however_few_are_shown():
    async with cluster("w1", "w2", "w3") as c, served(c) as http:
        await http.ready()
        await c.create_pod("p", 9000)
        await bind(c, http, "p", "w3")
        shown = await view(http, sort="reserved", limit=1)
        assert [node.name for node in shown.nodes] == ["w3"]
        assert (shown.totals.nodes, shown.totals.vfs, shown.totals.free_vfs) == (3, 12, 11)
        assert [node.name for node in (await view(http, sort="name")).nodes] == ["w1", "w2", "w3"]


async def test_overview_shows_the_last_report_of_an_unreadable_node():
    async with cluster("w1", "w2") as c, served(c) as http:
        await http.ready()
        c.nodes["w2"].raw = b"no HTTP"
        await c.create_pod("p", 1000)
        await bind(c, http, "p", "w1")
        c.nodes["w1"].raw = b"no HTTP"
        await http.post(FILTER, c.args("p"))
        shown = await view(http, sort="name")
        w1, w2 = shown.nodes
        assert (w1.unreadable, w1.pods, [pf.reserved_mbps for pf in w1.pfs]) == (True, 1, [1000])
        assert (w2.unreadable, w2.pods, w2.pfs) == (True, 0, ())
        totals = shown.totals
        assert (totals.unreadable, totals.pods, totals.pfs) == (2, 1, 0)


async def test_views_are_answered_before_any_promise():
    async with cluster("w1") as c:
        c.api.watching.clear()
        async with served(c) as http:
            told = await view(http)
            assert told.extender.role == "starting"
            assert "pods" in told.extender.missing
            c.api.watching.set()


async def test_explain_shows_the_limit_of_the_namespace_and_how_the_pod_exceeds_it():
    limit = NamespaceLimit(namespace="default", reserved_mbps=7000)
    async with cluster("w1", "w2") as c, served(c, limits=(limit,)) as http:
        await http.ready()
        await c.create_pod("holder", 6000)
        await bind(c, http, "holder", "w1")
        await c.create_pod("p", 2000)
        assert not (await http.post(FILTER, c.args("p"))).json()["NodeNames"]
        [waiting] = (await view(http)).pending
        assert waiting.why == "namespace default holds 6000 of 7000 reserved Mb/s; needs 2000"
        told = await explained(http, "p")
        assert (told.limit.used_mbps, told.limit.limit_mbps, told.limit.limit_vfs) == (6000, 7000, None)
        assert "6000 of 7000" in told.limit_refusal
        assert (await explained(http, "holder")).limit_refusal == ""


async def test_view_of_one_node_has_numbers_although_refusals_have_only_the_cause():
    async with cluster("w1") as c, served(c, refusal_detail="cause") as http:
        await http.ready()
        await c.create_pod("p", 60_000)
        [group] = (await explained(http, "p")).groups
        assert "10000" not in group.why
        assert "best PF has 10000 Mb/s" in group.examples[0].why


async def test_explain_shows_the_policy_and_keeps_to_it():
    async with cluster("w1") as c, served(c) as http:
        await http.ready()
        c.nodes["w1"].report = report("w1", pf(PF0), pf(PF1))
        await c.create_pod("p", 1000, 1000)
        await c.patch_pod("p", {"metadata": {"annotations": {"k8s-rdma.io/policy": "spread-pfs"}}})
        told = await explained(http, "p")
        assert told.policy == "spread-pfs"
        assert [look.placed for look in told.groups[0].examples[0].pfs] == [1, 1]


async def test_overview_shows_problems_of_nodes_first_if_requested():
    async with cluster("w1", "w2", "w3") as c, served(c) as http:
        await http.ready()
        down = pf(PF0, mbps=None, problems=("port 1 is down",))
        c.nodes["w2"].report = msgspec.structs.replace(report("w2", down), problems=("a lease is left over",))
        c.nodes["w3"].raw = b"HTTP/1.1 500 no\r\nContent-Length: 0\r\n\r\n"
        await http.post(FILTER, c.args((await c.create_pod("p", 1))["metadata"]["name"]))
        shown = await view(http, sort="problems")
    told = {node.name: node.problems for node in shown.nodes}
    assert list(told) == ["w2", "w3", "w1"]
    assert told["w2"] == (
        "enp3s0f0: link speed unknown (link down?)",
        "a lease is left over",
        "enp3s0f0: port 1 is down",
    )
    assert "HTTP 500" in told["w3"][0]
    assert (shown.totals.unreadable, shown.totals.with_problems) == (1, 2)


POOL = "tencent.com/rdma"


async def test_explain_counts_exclusive_devices_as_the_most_of_each_pf():
    async with cluster("w1", "w2") as c, served(c) as http:
        await http.ready()
        c.nodes["w1"].report = report("w1", pf(PF0, pools={POOL: 1}), pf(PF1, pools={POOL: 4}))
        c.nodes["w2"].report = report("w2", pf(PF0, mbps=8000, pools={POOL: 4}), pf(PF1))
        await c.create_pod("p", 6000, 3000, devices={POOL: 2})
        told = await explained(http, "p")
        fits, refused = told.groups
        assert [
            (each.devices, each.placed, each.placed_mbps, each.room_for) for each in fits.examples[0].pfs
        ] == [(1, 1, 6000, 1), (4, 2, 9000, 2)]
        assert [(each.devices, each.placed, each.room_for) for each in refused.examples[0].pfs] == [
            (4, 2, 1),
            (0, 0, 0),
        ]
        assert refused.examples[0].pfs[0].objections == (
            "8000 Mb/s unreserved, and kubelet may choose devices here for 9000",
        )
        await bind(c, http, "p", "w1")
        told = await explained(http, "p")
        [place] = told.places
        assert [(each.at_most, each.interfaces, each.reserved_mbps) for each in place.placement] == [
            (True, 1, 6000),
            (True, 2, 9000),
        ]


async def test_explain_shows_a_pod_that_asks_both_pools_why_no_node_takes_it():
    async with cluster("w1") as c, served(c) as http:
        await http.ready()
        c.nodes["w1"].report = report("w1", pf(PF0, pools={POOL: 4}))
        await c.create_pod("p", 6000, devices={POOL: 2})
        [refused] = (await explained(http, "p")).groups
        assert "the pod asks both pools" in refused.why
        assert not refused.examples[0].evictable
        assert [(each.devices, each.placed, each.objections) for each in refused.examples[0].pfs] == [
            (4, 0, ())
        ]


async def test_top_shows_exclusive_devices_beside_the_vfs():
    async with cluster("w1") as c, served(c) as http:
        await http.ready()
        held = report("w1", pf(PF0, pools={POOL: 4}), held={"u": [1000, 1000]})
        [allocation] = held.allocations
        interfaces = tuple(msgspec.structs.replace(each, pool=POOL) for each in allocation.interfaces)
        c.nodes["w1"].report = msgspec.structs.replace(
            held, allocations=(msgspec.structs.replace(allocation, interfaces=interfaces),)
        )
        [row] = (await view(http)).nodes[0].pfs
        assert (row.vfs, row.free_vfs, row.devices, row.held_devices) == (4, 4, 4, 2)
        assert row.reserved_mbps == 2000


async def test_top_shows_pfs_for_claims_separately():
    async with cluster("w1") as c, served(c) as http:
        await http.ready()
        pfs = pf(PF0, vfs=0, pools={CLAIMS_POOL: 4}), pf(PF1)
        held = report("w1", *pfs, held={"u": [1000, 1500]})
        [allocation] = held.allocations
        interfaces = tuple(msgspec.structs.replace(each, pool=CLAIMS_POOL) for each in allocation.interfaces)
        c.nodes["w1"].report = msgspec.structs.replace(
            held, allocations=(msgspec.structs.replace(allocation, interfaces=interfaces),)
        )
        found = await view(http)
        annotation, claims = found.nodes[0].pfs
        assert (claims.use, claims.reserved_mbps, claims.vfs, claims.free_vfs) == ("claims", 2500, 4, 2)
        assert (annotation.use, annotation.reserved_mbps, annotation.free_vfs) == ("annotation", 0, 4)
        assert (found.totals.pfs, found.totals.reserved_mbps, found.totals.vfs) == (1, 0, 4)
        assert (found.claims.pfs, found.claims.reserved_mbps, found.claims.vfs) == (1, 2500, 4)


async def test_top_shows_both_parts_of_a_split_pf_and_its_problem_once():
    async with cluster("w1") as c, served(c) as http:
        await http.ready()
        split = msgspec.structs.replace(pf(PF0, vfs=4, pools={CLAIMS_POOL: 4}), claims_mbps=4000)
        held = report("w1", split, held={"u": [1000, 1500]})
        [allocation] = held.allocations
        by_claim, by_annotation = allocation.interfaces
        by_claim = msgspec.structs.replace(by_claim, pool=CLAIMS_POOL)
        held = msgspec.structs.replace(
            held,
            allocations=(msgspec.structs.replace(allocation, interfaces=(by_claim, by_annotation)),),
        )
        c.nodes["w1"].report = held
        found = await view(http)
        annotation, claims = found.nodes[0].pfs
        assert (annotation.link_mbps, annotation.reserved_mbps, annotation.free_vfs) == (6000, 1500, 3)
        assert (claims.link_mbps, claims.reserved_mbps, claims.free_vfs) == (4000, 1000, 3)
        c.nodes["w1"].report = msgspec.structs.replace(
            held, generation="e.2", pfs=(msgspec.structs.replace(split, link_mbps=None),)
        )
        async with asyncio.timeout(120):
            while not (problems := (await view(http)).nodes[0].problems):  # noqa: ASYNC110  it has no event
                await asyncio.sleep(0.1)
        assert problems == (f"{split.name}: link speed unknown (link down?)",)


def test_part_for_claims_that_an_older_agent_does_not_tell_is_unknown():
    status = status_of(report("w1", pf(PF0, vfs=0, pools={CLAIMS_POOL: 4})))
    older = msgspec.structs.replace(
        status, pfs=tuple(msgspec.structs.replace(each, claims=None) for each in status.pfs)
    )
    [use] = facts_of_status(older, NodeName("w1")).claims
    assert (use.mbps, use.reserved_mbps, use.vfs, use.free_vfs) == (None, None, 4, 4)
