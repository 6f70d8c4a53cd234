"""MACs and GUIDs are unique in the cluster: who has one keeps it, on whatever node another asks for it."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace as replaced
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from extender.node_server import PF0, pf, report
from extender.preemption import create, place, preempt
from extender.world import World, cluster, extending, until, world
from k8s_rdma.core.mac_ranges import MacRanges
from k8s_rdma.core.namespace_policy import address_number
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.placement import PlacedInterface
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.extender.fit_cache import FitCache
from k8s_rdma.extender.node_cache import ClusterState
from k8s_rdma.extender.node_source import facts_of
from k8s_rdma.extender.nominated_pods import NominatedPods
from k8s_rdma.extender.pod_requests import PendingPod
from k8s_rdma.extender.pod_store import PodStore
from k8s_rdma.extender.reservation import Reservation
from k8s_rdma.extender.scheduler_cache import AddressCheck
from k8s_rdma.extender.search_queue import SearchQueue
from k8s_rdma.wire.report import MacRange

if TYPE_CHECKING:
    from collections.abc import Sequence


pytestmark = pytest.mark.anyio

MAC, OTHER = "02:00:00:00:00:05", "02:00:00:00:01:05"
NOT_ENOUGH = "RDMA Scheduler Extension: Node did not have enough free RDMA resources. ("
TAKES = ("mac", "guid")


def asking(mac: str = MAC, **more: object) -> str:
    return json.dumps([{"mac": mac, **more}])


def has(w: World, node: str, *macs: tuple[str, int], generation: int = 1) -> None:
    """The node reports these MACs, by the first and how many, and can set any."""
    ranges = tuple(MacRange(first=first, number=number) for first, number in macs)
    made = report(node, pf(PF0, vfs=32, takes=TAKES), generation=generation)
    w.nodes[node].report = replace(made, macs=ranges)


async def test_mac_of_a_victims_vf_on_another_node_is_refused_at_filter_and_at_bind():
    """The attack: with it the fabric would give the tenant what is sent to the victim."""
    async with world("w1", "w2") as w:
        has(w, "w1", ("02:00:00:00:00:00", 8))
        has(w, "w2", ("02:00:00:00:01:00", 8))
        await w.create_pod("p", annotation=asking())
        why = f"{NOT_ENOUGH}interface 0 asks for mac {MAC}, which a PF or VF of node w1 has)"
        found = await w.filter("p")
        assert found["FailedAndUnresolvableNodes"] == {"w1": why, "w2": why}
        assert await w.bind("p", "w2") == why


async def test_pod_that_waits_for_an_address_waits_in_its_namespace():
    """What it takes to wake it is its namespace's: in nobody's, all such pods would have one share."""
    async with world("w1") as w:
        has(w, "w1", (MAC, 1))
        await w.create_pod("p", annotation=asking())
        assert not await w.fitting("p")
        waiting = w.extender.scheduling.requeuer._waiting.requests()
        assert [namespace for namespace, _ in waiting] == ["default"]


class Counted(MacRanges):
    """MACs of a node that count how often they are looked through."""

    times = 0

    def first_index_in(self, macs: Sequence[int]) -> int | None:
        Counted.times += 1
        return super().first_index_in(macs)


async def test_reports_are_searched_once_each_in_turns_of_the_requesting_namespace():
    ran_s, state, names = itertools.count(0, 0.001), ClusterState(), [NodeName(f"w{at}") for at in range(50)]
    facts = {name: facts_of(report(name), name) for name in names}
    for name in names:
        state.observe(name, replaced(facts[name], macs=Counted.merge([(at, at) for at in range(9)])), 0.0)
    nominations = NominatedPods(
        state, PodStore(), FitCache(), lambda: 0.0, nomination_s=60.0, on_release=lambda _: None
    )
    queue, check = SearchQueue(lambda: next(ran_s)), AddressCheck(state, nominations)
    wanted = tuple(InterfaceRequest(options=InterfaceOptions(mac=mac)) for mac in (MAC, OTHER))
    pod = PendingPod(uid="p", namespace="crowd", name="p", priority=0, request=Request(wanted))
    await check.search(pod, queue)
    assert Counted.times == 50
    assert queue.used("crowd") > queue.used("other") > 0.0
    state.observe(names[0], replaced(facts[names[0]], macs=Counted.merge([(1, 1)])), 1.0)
    assert check.conflict(pod) is None
    assert Counted.times == 51
    taken = address_number(OTHER)
    state.observe(names[1], replaced(facts[names[1]], macs=Counted.merge([(taken, taken)])), 1.0)
    assert check.conflict(pod).node == names[1]


def test_refusal_for_an_address_names_its_pod_to_people_of_the_same_namespace_alone():
    state, node = ClusterState(), NodeName("w2")
    state.observe(node, facts_of(report(node), node), 0.0)
    nominations = NominatedPods(
        state, PodStore(), FitCache(), lambda: 0.0, nomination_s=60.0, on_release=lambda _: None
    )
    placed = PlacedInterface(pf=PF0, options=InterfaceOptions(mac=MAC))
    state.reserve(node, PodUid("v"), Reservation(interfaces=(placed,), pod="victim/vmac", created_at=0))
    wanted = Request((InterfaceRequest(options=InterfaceOptions(mac=MAC)),))
    pod = PendingPod(uid="p", namespace="crowd", name="p", priority=0, request=wanted)
    conflict = AddressCheck(state, nominations).conflict(pod)
    clause = f"interface 0 asks for mac {MAC}, which"
    assert conflict.why_for("victim") == conflict.why == f"{clause} pod victim/vmac on node w2 has"
    assert conflict.why_for("crowd") == f"{clause} a pod of another namespace on node w2 has"


async def test_unused_mac_is_free_beside_those_that_nodes_report():
    async with world("w1", "w2") as w:
        has(w, "w1", ("02:00:00:00:00:00", 5), ("02:00:00:00:00:06", 2))
        has(w, "w2", ("02:00:00:00:01:00", 8))
        await w.create_pod("p", annotation=asking())
        assert await w.fitting("p") == ["w1", "w2"]
        assert await w.bind("p", "w2") == ""


async def test_mac_of_a_node_that_cannot_be_read_now_is_still_taken():
    async with world("w1", "w2") as w:
        has(w, "w1", (MAC, 1))
        has(w, "w2")
        await w.create_pod("p", annotation=asking())
        assert not await w.fitting("p")
        w.nodes["w1"].raw = b"HTTP/1.1 500 Oh\r\n\r\n"
        assert "asks for mac" in json.dumps(await w.filter("p", "w2"))


@pytest.mark.parametrize("key", ["mac", "guid"])
async def test_second_of_two_pods_that_ask_for_one_address_at_the_same_time_is_refused_at_bind(key: str):
    address = {"mac": MAC, "guid": "02:00:00:ff:fe:00:00:01"}[key]
    link = "ethernet" if key == "mac" else "infiniband"
    async with world("w1", "w2") as w:
        for node in ("w1", "w2"):
            w.nodes[node].report = report(node, pf(PF0, takes=TAKES, link_type=link))
        for name in ("p", "q"):
            await w.create_pod(name, annotation=json.dumps([{}, {key: address}]))
            assert await w.fitting(name) == ["w1", "w2"]
        assert await w.bind("p", "w1") == ""
        said = f"interface 1 asks for {key} {address}, which pod default/p on node w1 has"
        assert await w.bind("q", "w2") == f"{NOT_ENOUGH}{said})"
        assert said in json.dumps(await w.filter("q"))


async def test_pod_binds_again_with_the_mac_that_is_its_own():
    async with world("w1") as w:
        has(w, "w1")
        await w.create_pod("p", annotation=asking())
        assert await w.bind("p", "w1") == ""
        has(w, "w1", (MAC, 1), generation=2)
        assert await w.bind("p", "w1") == ""


async def test_extender_that_starts_counts_the_macs_of_pods_that_are_bound():
    async with cluster("w1", "w2") as c:
        for node in ("w1", "w2"):
            has(c, node)
        async with extending(c) as w:
            await w.create_pod("p", annotation=asking())
            assert await w.bind("p", "w1") == ""
        async with extending(c) as w:
            await w.create_pod("q", annotation=asking())
            assert "which pod default/p on node w1 has" in json.dumps(await w.filter("q"))


async def test_mac_is_free_again_when_its_pod_has_ended_and_waiting_pods_are_tried_again():
    async with world("w1", "w2") as w:
        for node in ("w1", "w2"):
            has(w, node)
        await w.create_pod("p", annotation=asking())
        assert await w.bind("p", "w1") == ""
        has(w, "w1", (MAC, 1), generation=2)
        await w.create_pod("q", annotation=asking())
        assert not await w.fitting("q")
        await w.delete_pod("p")
        assert not await w.fitting("q")
        has(w, "w1", generation=3)
        await until(lambda: w.api.touched == ["w1"])
        assert await w.fitting("q") == ["w1", "w2"]


async def test_preempt_evicts_no_pod_for_an_address_that_another_pod_has():
    async with world("w1", "w2") as w:
        for node in ("w1", "w2"):
            has(w, node)
        await place(w, "victim", "w1", 9_000)
        await create(w, "p", 9_000, priority=1)
        annotations = w.pods["p"]["metadata"]["annotations"]
        annotations["rdma_interfaces_required"] = asking(min_tx_rate=9000)
        assert await preempt(w, "p", w1=["victim"]) == {"w1": ["victim"]}
        has(w, "w2", (MAC, 1), generation=2)
        await w.filter("p")
        assert await preempt(w, "p", w1=["victim"]) == {}


async def test_mac_of_a_pod_that_room_is_held_for_is_taken():
    async with world("w1", "w2") as w:
        for node in ("w1", "w2"):
            has(w, node)
        await place(w, "victim", "w1", 9_000)
        await create(w, "p", 9_000, priority=1)
        w.pods["p"]["metadata"]["annotations"]["rdma_interfaces_required"] = asking(min_tx_rate=9000)
        assert await preempt(w, "p", w1=["victim"]) == {"w1": ["victim"]}
        await w.create_pod("q", annotation=asking())
        assert "which is held for pod default/p on node w1" in json.dumps(await w.filter("q"))


async def test_node_that_reports_more_macs_than_its_vfs_can_have_is_unreadable():
    async with world("w1", "w2") as w:
        has(w, "w1", ("02:00:00:00:00:00", 66))
        has(w, "w2")
        await w.create_pod("p", annotation=asking())
        found = await w.filter("p")
        assert found["NodeNames"] == ["w2"]
        assert "macs: 66 of them, and its PFs and VFs have 65 at most" in found["FailedNodes"]["w1"]
