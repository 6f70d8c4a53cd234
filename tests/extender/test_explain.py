"""Parts of an explanation: groups of nodes, PFs as a pod meets them, slices, and refusals."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from extender.node_server import pf, report
from extender.world import World, cluster, extending, world
from k8s_rdma.core.inventory import Inventory, Pf
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.pf_use import Used
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.core.types import LinkType, NodeName, pci_address
from k8s_rdma.errors import Reason
from k8s_rdma.extender.explain import MAX_GROUPS, Groups, JudgedNode, look_at_pfs
from k8s_rdma.extender.extender import boottime_s
from k8s_rdma.extender.fit_cache import FitCache
from k8s_rdma.extender.node_cache import NodeSnapshot
from k8s_rdma.extender.verdicts import Infeasible
from k8s_rdma.kube.leader_election import LeaderElectionConfig, LeaderElector
from k8s_rdma.kube.published_api import LeaseView
from k8s_rdma.wire.views import Explanation, decode_explanation, decode_view

PCI = pci_address("03:00.0")


async def explained(w: World, query: str) -> Explanation:
    answer = await w.extender.views.routes()["/v1/explain"]({"query_string": query.encode()})
    return decode_explanation(answer.body)


def situation(*, link_mbps: int | None = 1000, used: Used | None = None, **more: object) -> NodeSnapshot:
    only = Pf(name="enp3s0f0", pci=PCI, capacity_vfs=2, link_mbps=link_mbps, **more)
    return NodeSnapshot(Inventory(node=NodeName("w1"), pfs=(only,)), {PCI: used or Used()})


def request(*rates: int, **options: object) -> Request:
    asked = InterfaceOptions(**options)
    return Request(tuple(InterfaceRequest(min_tx_rate_mbps=rate, options=asked) for rate in rates))


UNKNOWN_LINK = "its link speed is not known (link down?), so that nothing can be reserved"
ETHERNET = "its link is ethernet, and link_type is infiniband"
TOO_LITTLE = "500 Mb/s unreserved, and the largest interface needs 600"


@pytest.mark.parametrize(
    ("asked", "there", "room_for", "objections"),
    [
        (request(400, 600), situation(), 2, ()),
        (request(400, 600), situation(used=Used(1, 100)), 1, ()),
        (request(400, 600), situation(used=Used(1, 500)), 1, (TOO_LITTLE,)),
        (request(400, 600), situation(used=Used(2, 0)), 0, ("no VF is free",)),
        (request(0), situation(link_mbps=None), 1, ()),
        (request(1), situation(link_mbps=None), 0, (UNKNOWN_LINK,)),
        (request(1, link_type=LinkType.INFINIBAND), situation(), 0, (ETHERNET,)),
        (request(1, mtu=9000), situation(mtu=1500), 0, ("its MTU is 1500, and mtu is 9000",)),
    ],
)
def test_explain_of_a_pf_has_its_room_and_its_objections_to_the_interfaces(
    asked, there, room_for, objections
):
    [look] = look_at_pfs(asked, there)
    assert (look.room_for, look.objections) == (room_for, objections)


@pytest.mark.anyio
async def test_groups_are_bounded_however_many_things_nodes_say():
    groups, there = Groups(), situation()
    for number in range(2 * MAX_GROUPS):
        why = f"cause {''.join(map(chr, (97 + number % 26, 97 + number // 26)))}"
        groups.add(JudgedNode(NodeName(f"w{number}"), there, Infeasible(Reason.INSUFFICIENT, why)))
    found = await groups.documents(request(1), FitCache())
    assert sum(group.count for group in found) == 2 * MAX_GROUPS
    assert len(found) == MAX_GROUPS + 1


@pytest.mark.anyio
async def test_addresses_do_not_make_groups():
    groups = Groups()
    for number in range(4):
        why = f"10.0.0.{number}:54005: no answer in 1.5 s; [fd00::{number}]:54005: no answer in 1.5 s"
        groups.add(JudgedNode(NodeName(f"w{number}"), None, None, why))
    [group] = await groups.documents(request(1), FitCache())
    assert (group.verdict, group.count, len(group.examples)) == ("unreadable", 4, 3)


@pytest.mark.anyio
async def test_others_have_their_turn_between_the_searches_of_an_explanation():
    names = [f"w{number}" for number in range(80)]
    async with world(*names) as w:
        for number, node in enumerate(w.nodes.values()):
            node.report = report(node.name, pf(mbps=1000 + number))
        await w.create_pod("p", *range(100, 160))
        seen, done = [w.metric("searches_total")], asyncio.Event()

        async def take_turns() -> None:
            while not done.is_set():
                seen.append(w.metric("searches_total"))
                await asyncio.sleep(0)

        beside = asyncio.create_task(take_turns())
        told = await explained(w, "pod=default/p")
        done.set()
        await beside
    assert sum(group.count for group in told.groups) == 80
    assert seen[-1] - seen[0] == 80
    assert max(after - before for before, after in pairwise(seen)) < 40


@pytest.mark.anyio
async def test_standby_answers_from_its_own_caches_and_says_so():
    held = LeaseView(namespace="kube-system", name="held", holder="other", duration_s=3600)
    async with cluster("w1") as c:
        await c.api.real.write_lease(held)
        await c.create_pod("p", 1000)
        terms = LeaderElectionConfig(namespace="kube-system", name="held", holder="me", lease_s=15)
        async with extending(c, lease=LeaderElector(c.api.real, terms, boottime_s)) as w:
            while (told := await explained(w, "pod=default/p")).extender.role != "standby":
                assert told.extender.role == "starting"
            shown = await w.extender.views.routes()["/v1/cluster"]({"query_string": b""})
    assert "held by other" in told.extender.missing[0]
    assert [(group.verdict, group.count) for group in told.groups] == [("fits", 1)]
    assert decode_view(shown.body).totals.nodes == 1
