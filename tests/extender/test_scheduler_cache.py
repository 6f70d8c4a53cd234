"""Addresses and places that the scheduler cache holds for pods: who has one keeps it, on each node."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections import Counter
from dataclasses import replace as replaced
from itertools import count
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from extender.caches import scheduler_cache
from extender.node_server import PF0, PF1, pf, report
from extender.preemption import create, place, preempt
from extender.serving import served
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
from k8s_rdma_demo.cluster.extender_client import ExtenderConfig
from k8s_rdma_demo.cluster.scheduler import SchedulerConfig, scheduling

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
    """The attack: with it the fabric would give the tenant the packets to the victim."""
    async with world("w1", "w2") as w:
        has(w, "w1", ("02:00:00:00:00:00", 8))
        has(w, "w2", ("02:00:00:00:01:00", 8))
        await w.create_pod("p", annotation=asking())
        why = f"{NOT_ENOUGH}interface 0 asks for mac {MAC}, which a PF or VF of node w1 has)"
        found = await w.filter("p")
        assert found["FailedAndUnresolvableNodes"] == {"w1": why, "w2": why}
        assert await w.bind("p", "w2") == why


async def test_pod_that_waits_for_an_address_waits_in_its_namespace():
    """The work to wake it is its namespace's: without a namespace, all such pods would have one share."""
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


HELD = "held for a moment for pods on their way: default/"


def room_for(w, vfs: int, *pcis: str) -> None:
    for node in w.nodes.values():
        node.report = report(node.name, *(pf(pci, vfs=vfs) for pci in pcis or (PF0,)))


def decided(text: str, verb: str) -> dict[str, int]:
    """How many decisions of a verb there were, by reason."""
    found = re.findall(rf'decisions_total{{reason="(\w+)",verb="{verb}"}} (\d+)', text)
    return {reason: int(count) for reason, count in found}


def scheduler(port: int, *, bind: bool, seed: int | None) -> SchedulerConfig:
    extender = ExtenderConfig(
        url_prefix=f"http://127.0.0.1:{port}/scheduler",
        filter_verb="rdma_scheduling",
        prioritize_verb="prioritize",
        bind_verb="bind" if bind else "",
        node_cache_capable=True,
    )
    return SchedulerConfig(extenders=(extender,), initial_backoff_s=0.01, max_backoff_s=0.05, seed=seed)


@pytest.mark.parametrize(("nodes", "vfs", "seed"), [(100, 1, 7), (20, 5, None), (4, 25, 7)])
async def test_gang_that_just_fits_is_bound_without_a_bind_that_is_refused(nodes, vfs, seed):
    """Each bind has to wait for its node while others are filtered; with a seed, any of equals is chosen.

    It does not matter how fast this machine is: pods are waited for, and nodes answer, as long as it takes.
    """
    pods, patient = nodes * vfs, {"max_age_s": 3600.0, "assume_s": 3600.0, "node_timeout_s": 900.0}
    async with cluster(*(f"w{i:03}" for i in range(nodes))) as c, served(c, **patient) as s:
        room_for(c, vfs)
        for node in c.nodes.values():
            node.late_s = 0.3
        await s.ready()
        for index in range(pods):
            await c.create_pod(f"p{index}", 100)
        async with scheduling(c.server.url, scheduler(s.port, bind=True, seed=seed)):
            bound = {}
            while bound.get("bound", 0) < pods:
                bound = decided((await s.http.get("/metrics")).text, "bind")
                await asyncio.sleep(0.02)
        assert bound == {"bound": pods}


async def test_gang_is_not_sent_to_a_node_beyond_its_room_if_the_scheduler_binds():
    """There is no bind that would refuse it: a filtered pod is counted until it is seen bound."""
    async with cluster(*(f"w{i}" for i in range(10))) as c, served(c, binder="scheduler") as s:
        room_for(c, 5)
        await s.ready()
        for index in range(50):
            await c.create_pod(f"p{index}", 100)
        async with scheduling(c.server.url, scheduler(s.port, bind=False, seed=7)):
            nodes = [None]
            while None in nodes:
                pods = (await c.http.get("/api/v1/pods")).json()["items"]
                nodes = [pod["spec"].get("nodeName") for pod in pods]
                await asyncio.sleep(0.02)
        assert Counter(nodes) == dict.fromkeys(c.nodes, 5)


async def test_node_that_a_pod_is_going_to_is_left_to_it_while_there_is_another():
    async with world("w1", "w2") as w:
        room_for(w, 1)
        await w.create_pod("first", 0)
        await w.create_pod("second", 0)
        assert await w.fitting("first", "w1") == ["w1"]
        result = await w.filter("second")
        assert result["NodeNames"] == ["w2"]
        assert result["FailedNodes"]["w1"].endswith(f"({HELD}first)")
        assert await w.prioritize("second") == {"w1": 0, "w2": 10}


async def test_place_is_held_however_little_of_the_time_was_the_processes_own():
    """Each look at the clock finds it further than holding places may take, as on a machine with others."""
    async with cluster("w1", "w2") as c:
        room_for(c, 1)
        seconds = count(step=1.0)
        async with extending(c, clock=lambda: next(seconds), assume_s=1e6):
            await c.create_pod("first", 0)
            await c.create_pod("second", 0)
            assert await c.fitting("first", "w1") == ["w1"]
            assert await c.fitting("second") == ["w2"]


async def test_refusals_name_no_pods_if_they_have_only_the_cause():
    async with world("w1", "w2", refusal_detail="cause") as w:
        room_for(w, 1)
        await w.create_pod("first", 0)
        await w.create_pod("second", 0)
        assert await w.fitting("first", "w1") == ["w1"]
        refused = (await w.filter("second"))["FailedNodes"]["w1"]
        assert refused.endswith("(held for a moment for pods on their way)")


async def test_pod_is_not_kept_from_the_only_node_that_fits():
    async with world("w1") as w:
        room_for(w, 1)
        await w.create_pod("first", 0)
        await w.create_pod("second", 0)
        assert await w.fitting("first") == ["w1"]
        assert await w.fitting("second") == ["w1"]
        assert (await w.prioritize("second"))["w1"] > 0
        assert await w.bind("second", "w1") == ""


async def test_refusal_is_the_nodes_own_if_the_pod_does_not_fit_anyway():
    async with world("w1", "w2") as w:
        room_for(w, 1)
        w.nodes["w1"].holds(other=0)
        await w.create_pod("first", 0)
        await w.create_pod("second", 0)
        assert await w.fitting("first", "w2") == ["w2"]
        refused = (await w.filter("second", "w1"))["FailedNodes"]["w1"]
        assert HELD not in refused
        assert "0 of 1 VF free" in refused


async def test_pod_is_expected_on_the_node_with_the_best_score():
    async with world("w1", "w2", "w3") as w:
        room_for(w, 2)
        w.nodes["w2"].holds(other=0)
        await w.create_pod("first", 0)
        await w.create_pod("second", 0)
        assert len(await w.fitting("first")) == 3
        scores = await w.prioritize("first")
        assert scores["w2"] > scores["w1"] == scores["w3"]
        assert await w.fitting("second") == ["w1", "w3"]


async def test_one_of_equals_is_preferred_only_while_others_are_on_their_way():
    async with world("w1", "w2", "w3", "w4", "w5") as w:
        room_for(w, 2)
        await w.create_pod("first", 0)
        await w.create_pod("second", 0)
        await w.filter("first")
        assert len(set((await w.prioritize("first")).values())) == 1
        await w.filter("second")
        scores = await w.prioritize("second")
        assert sorted(scores.values())[-2:] == [scores["w1"], scores["w1"] + 1]


async def test_pod_counts_on_the_node_that_bind_names_and_on_no_other():
    async with world("w1", "w2") as w:
        room_for(w, 1)
        await w.create_pod("first", 0)
        await w.create_pod("second", 0)
        await w.filter("first")
        await w.prioritize("first")
        w.nodes["w2"].answering.clear()
        bind = asyncio.create_task(w.bind("first", "w2"))
        await asyncio.sleep(0)
        w.extender.scheduling.max_age_s = 60.0
        assert await w.fitting("second") == ["w1"]
        w.nodes["w2"].answering.set()
        assert await bind == ""
        assert await w.fitting("second") == ["w1"]


async def test_pod_counts_no_more_when_its_bind_was_refused():
    async with world("w1", "w2") as w:
        room_for(w, 1)
        await w.create_pod("first", 0)
        await w.create_pod("second", 0)
        assert await w.fitting("first", "w1") == ["w1"]
        w.nodes["w1"].holds(other=0)
        assert await w.bind("first", "w1") != ""
        w.nodes["w1"].holds()
        assert await w.fitting("second") == ["w1", "w2"]


async def test_pod_counts_no_more_when_its_bind_did_not_come_in_time():
    async with world("w1", "w2", assume_s=1e-9) as w:
        room_for(w, 1)
        await w.create_pod("first", 0)
        await w.create_pod("second", 0)
        assert await w.fitting("first", "w1") == ["w1"]
        assert await w.fitting("second") == ["w1", "w2"]


async def test_pod_does_not_count_against_itself_and_is_expected_anew_when_it_is_filtered_again():
    async with world("w1", "w2") as w:
        room_for(w, 1)
        await w.create_pod("first", 0)
        await w.create_pod("second", 0)
        assert await w.fitting("first", "w1") == ["w1"]
        assert await w.fitting("first", "w2") == ["w2"]
        assert await w.fitting("second") == ["w1"]


async def test_pods_that_go_to_one_node_are_counted_together_pf_by_pf():
    async with world("w1", "w2") as w:
        room_for(w, 4, PF0, PF1)
        for name, rate in (("first", 6_000), ("second", 6_000), ("third", 6_000), ("fourth", 4_000)):
            await w.create_pod(name, rate)
        assert await w.fitting("first", "w1") == ["w1"]
        assert await w.fitting("second", "w1") == ["w1"]
        assert await w.fitting("third") == ["w2"]
        assert await w.fitting("fourth") == ["w1", "w2"]


def test_very_many_pods_of_a_namespace_do_not_have_those_of_others_forgotten_on_their_way():
    assumed = scheduler_cache(lambda: 0.0).assumed_pods

    def pod(namespace: str, number: int) -> PendingPod:
        uid = PodUid(f"{namespace}-{number}")
        return PendingPod(uid=uid, namespace=namespace, name=uid, priority=0, request=Request(()))

    assumed.assume(pod("default", 0), [NodeName("w1")])
    for number in range(1_500):
        assumed.assume(pod("other", number), [NodeName("w1")])
    assert PodUid("default-0") in assumed._assumed.by_uid
    assert len(assumed._assumed.by_uid) <= 1_000
