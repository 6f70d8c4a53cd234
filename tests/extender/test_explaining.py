"""What an explanation is made of: groups of nodes, PFs as a pod meets them, slices, and what was refused."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise

import pytest

from extender.node_server import pf, report
from extender.world import World, cluster, extending, world
from k8s_rdma.core.inventory import Inventory, Pf
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.pf_use import Used
from k8s_rdma.core.pod_constraints import gates_obstacles
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.core.types import LinkType, NodeName, PodUid, pci_address
from k8s_rdma.errors import Reason
from k8s_rdma.extender.decision_log import BOUND, FIT, MAX_AGE_S, MAX_PODS, LastRefusals, Outcome
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


def outcome(pod: str, reason: str = Reason.INSUFFICIENT, *, verb: str = "filter", **more: object) -> Outcome:
    told = {"candidates": 3, "reasons": Counter({reason: 2, Reason.NO_RDMA: 1}), **more}
    return Outcome(verb=verb, pod=f"default/{pod}", uid=f"uid-{pod}", reason=reason, duration_s=0.0, **told)


def situation(*, link_mbps: int | None = 1000, used: Used | None = None, **more: object) -> NodeSnapshot:
    only = Pf(name="enp3s0f0", pci=PCI, capacity_vfs=2, link_mbps=link_mbps, **more)
    return NodeSnapshot(Inventory(node=NodeName("w1"), pfs=(only,)), {PCI: used or Used()})


def request(*rates: int, **options: object) -> Request:
    asked = InterfaceOptions(**options)
    return Request(tuple(InterfaceRequest(min_tx_rate_mbps=rate, options=asked) for rate in rates))


@pytest.mark.anyio
async def test_explain_names_the_gates_of_a_pod():
    async with world("w1") as w:
        container = {"name": "c", "image": "lab.local/busybox:1"}
        meta = {"name": "p", "annotations": {"rdma_interfaces_required": "[{}]"}}
        gates = [{"name": "kueue.x-k8s.io/admission"}]
        pod = {"metadata": meta, "spec": {"containers": [container], "schedulingGates": gates}}
        assert (await w.http.post("/api/v1/namespaces/default/pods", json=pod)).is_success
        await w.create_pod("q", 1_000)
        gated, plain = await explained(w, "pod=default/p"), await explained(w, "pod=default/q")
    assert gated.obstacles == gates_obstacles(["kueue.x-k8s.io/admission"])
    assert [group.verdict for group in gated.groups] == ["fits"]
    assert plain.obstacles == ()


# pods that were bound past the extender


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"allow_unplaced": False}, "; its agent refuses it. "),
        ({}, "; its agent gives it what is not promised to other pods there, or refuses it. "),
        ({"binder": "scheduler"}, ""),
    ],
)
@pytest.mark.anyio
async def test_explain_of_a_pod_that_skipped_the_extender_gives_advice(config: dict, says: str):
    async with world("w1", **config) as w:
        for name, rates in (("p", [1_000]), ("q", [])):
            await w.create_pod(name, *rates)
            await w.bind_by_hand(name, "w1")
        told, other = await explained(w, "pod=default/p"), await explained(w, "pod=default/q")
    assert (told.state, other.notes) == ("bound", ())
    notes = [note for note in told.notes if "was bound to w1 without a placement, past this extender" in note]
    assert len(notes) == bool(says)
    assert all(says in note and "make the pod anew" in note for note in notes)


@pytest.mark.anyio
async def test_pod_that_the_extender_bound_did_not_skip_it():
    async with world("w1") as w:
        await w.create_pod("p", 1_000)
        assert await w.bind("p", "w1") == ""
        assert (await explained(w, "pod=default/p")).notes == ()


@pytest.mark.anyio
async def test_pod_whose_annotation_is_misspelt_is_explained_with_the_nearest_one():
    async with world("w1") as w:
        await w.create_pod("p", annotations={"k8s-rdma.io/interface": "[{}]"})
        found = await explained(w, "pod=default/p")
    assert (found.state, len(found.notes)) == ("no-rdma", 1)
    assert found.notes[0].endswith("did you mean k8s-rdma.io/interfaces?")


# the last refusals


def test_refusal_is_known_until_the_pod_fits_or_is_bound():
    now = 10.0
    attempts = LastRefusals(lambda: now)
    attempts.record(outcome("p"))
    now = 20.0
    attempts.record(outcome("p", verb="bind", error="gone", node="w1", reasons={}))
    attempt = attempts.last_of(PodUid("uid-p"))
    assert (attempt.why, attempt.first_at, attempt.refused_at) == ("w1: gone", 10.0, 20.0)
    attempts.record(outcome("p", "fit", verb="prioritize"))
    assert attempts.pending() == [attempt], "prioritize says nothing of whether it fits"
    for good in (FIT, BOUND):
        attempts.record(outcome("p"))
        assert attempts.named("default/p") == "uid-p"
        attempts.record(outcome("p", good))
        assert attempts.named("default/p") is None


def test_longest_wait_is_that_of_the_pod_refused_first():
    now = 10.0
    attempts = LastRefusals(lambda: now)
    [(_, _, read)] = attempts.readings().values()
    assert read() == 0
    attempts.record(outcome("p"))
    now = 30.0
    attempts.record(outcome("q"))
    attempts.record(outcome("p"))
    now = 40.0
    assert read() == 30
    attempts.record(outcome("p", FIT))
    assert read() == 10


def test_refusal_counts_the_nodes_of_each_cause():
    attempts = LastRefusals(lambda: 0.0)
    attempts.record(outcome("p"))
    assert attempts.last_of(PodUid("uid-p")).why == "0/3 nodes: 2 insufficient, 1 no_rdma"


def test_refusals_are_bounded_and_forgotten_if_not_tried_again():
    now = 0.0
    attempts = LastRefusals(lambda: now)
    for number in range(MAX_PODS + 1):
        attempts.record(outcome(str(number)))
    assert attempts.last_of(PodUid("uid-0")) is None
    assert len(attempts.pending()) == MAX_PODS
    attempts.retain({PodUid("uid-1")}, 0.0)
    assert len(attempts.pending()) == MAX_PODS, "tried since the list began"
    attempts.retain({PodUid("uid-1")}, 1.0)
    assert [attempt.outcome.pod for attempt in attempts.pending()] == ["default/1"]
    now = MAX_AGE_S + 1
    assert attempts.pending() == []


# PFs


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


# groups


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


# in an extender


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


@pytest.mark.anyio
async def test_explain_without_an_api_server_knows_only_refused_pods_and_says_so():
    async with world("w1", api=False, binder="scheduler") as w:
        await w.create_pod("p", 60_000)
        answer = await w.extender.views.routes()["/v1/explain"]({"query_string": b"pod=default/p"})
        assert answer.status == 404
        assert b"no credentials for the API server" in answer.body
        w.extender.scheduling.states.suggest(NodeName("w1"), lambda: (w.nodes["w1"].address,))
        await w.filter("p")
        told = await explained(w, "pod=default/p")
    assert (told.state, told.uid) == ("refused", w.pods["p"]["metadata"]["uid"])
    assert [(group.verdict, group.count) for group in told.groups] == [("refused", 1)]
    assert "no credentials for the API server" in told.notes[0]


@pytest.mark.anyio
async def test_explain_of_an_unreadable_pod_shows_its_refusal():
    async with world("w1") as w:
        await w.create_pod("p", 60_000)
        await w.filter("p")
        w.api.unread = 1
        told = await explained(w, "pod=default/p")
    assert told.state == "refused"
    assert told.notes[0].startswith("the pod could not be read: ")
