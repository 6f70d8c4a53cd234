"""Room made by preemption is kept for its pod, except from higher priorities, and not for ever."""

from __future__ import annotations

import asyncio

import pytest

from extender.node_server import PF0, PF1, pf, report
from extender.preemption import create, nominate, place, preempt, uid
from extender.world import extending, until, world
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.extender import nominated_pods
from k8s_rdma.extender.fit_cache import FitCache
from k8s_rdma.extender.node_cache import ClusterState, NodeSnapshot
from k8s_rdma.extender.node_source import facts_of
from k8s_rdma.extender.nominated_pods import NominatedPods
from k8s_rdma.extender.pod_requests import PendingPod
from k8s_rdma.extender.pod_store import PodStore
from k8s_rdma.wire.views import Explanation, decode_explanation

pytestmark = pytest.mark.anyio


async def made_room(w, node: str = "w1", *, named: bool = True) -> None:
    """`high` waits for the room of `low`, which is gone, and given back by the node."""
    await place(w, "low", node, 8_000)
    await create(w, "high", 8_000, priority=5)
    assert await preempt(w, "high", **{node: ["low"]}) == {node: ["low"]}
    if named:
        await nominate(w, "high", node)
        nominations = w.extender.cache.nominations
        await until(lambda: uid(w, "high") in nominations._named)
    await w.delete_pod("low")
    await until(lambda: bool(w.extender.cache.pods.terminating(node)))


def held(w, name: str = "high") -> list[str]:
    return sorted(w.extender.cache.nominations.nodes_of(uid(w, name)))


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(("priority", "takes_it"), [(4, False), (5, False), (6, True)])
async def test_room_is_held_against_pods_of_no_higher_priority(named, priority, takes_it):
    async with world("w1") as w:
        await made_room(w, named=named)
        await create(w, "other", 8_000, priority=priority)
        assert await w.fitting("other") == (["w1"] if takes_it else [])
        assert ((await w.prioritize("other"))["w1"] > 0) is takes_it
        assert (await w.bind("other", "w1") == "") is takes_it


async def test_room_is_free_for_the_pod_that_it_was_made_for():
    async with world("w1") as w:
        await made_room(w)
        assert await w.fitting("high") == ["w1"]
        assert w.metric("pods_nominated") == 1
        assert await w.bind("high", "w1") == ""
        await until(lambda: held(w) == [])
        assert w.metric("pods_nominated") == 0
        await create(w, "other", 2_000)
        assert await w.bind("other", "w1") == ""


async def test_room_beside_a_nomination_is_given_to_other_pods():
    async with world("w1") as w:
        w.nodes["w1"].report = report("w1", pf(PF0), pf(PF1))
        await place(w, "busy", "w1", 8_000, priority=9)
        await made_room(w)
        await create(w, "small", 2_000)
        assert await w.bind("small", "w1") == ""
        await create(w, "large", 3_000)
        assert "free" in await w.bind("large", "w1")


async def test_all_answered_nodes_are_held_until_one_is_named():
    async with world("w1", "w2") as w:
        for node in ("w1", "w2"):
            await place(w, f"low-{node}", node, 8_000)
        await create(w, "high", 8_000, priority=5)
        await preempt(w, "high", w1=["low-w1"], w2=["low-w2"])
        assert held(w) == ["w1", "w2"]
        await nominate(w, "high", "w2")
        await until(lambda: held(w) == ["w2"])


async def test_filter_shows_the_named_node_before_the_watch_does():
    async with world("w1", "w2") as w:
        for node in ("w1", "w2"):
            await place(w, f"low-{node}", node, 8_000)
        await create(w, "high", 8_000, priority=5)
        await preempt(w, "high", w1=["low-w1"], w2=["low-w2"])
        w.pods["high"]["status"]["nominatedNodeName"] = "w1"
        await w.filter("high")
        assert held(w) == ["w1"]


async def test_room_is_free_for_all_when_the_pod_is_gone():
    async with world("w1") as w:
        await made_room(w)
        await w.delete_pod("high")
        await until(lambda: held(w) == [])
        await create(w, "other", 8_000)
        assert await w.bind("other", "w1") == ""


async def test_room_of_a_nomination_expires_and_wakes_waiting_pods():
    async with world("w1", nomination_s=0.3) as w:
        await made_room(w)
        await create(w, "other", 8_000)
        assert await w.fitting("other") == []
        touches = w.metric("requeues_total")
        await until(lambda: held(w) == [] and w.metric("requeues_total") > touches)
        assert await w.fitting("other") == ["w1"]
        await w.filter("high")  # its status names the node still: the time is over all the same
        assert held(w) == []
        assert await w.bind("other", "w1") == ""


async def test_cleared_nomination_leaves_the_room_held():
    async with world("w1") as w:
        await made_room(w)
        await nominate(w, "high", None)
        await create(w, "other", 8_000)
        assert await w.fitting("other") == []
        assert await w.fitting("high") == ["w1"]


async def test_room_is_not_held_for_a_pod_that_lost_it_to_one_of_higher_priority():
    async with world("w1") as w:
        await made_room(w)
        await place(w, "lesser", "w1", 500)
        await create(w, "top", 6_000, priority=9)
        assert await preempt(w, "top", w1=["lesser"]) == {"w1": ["lesser"]}
        await nominate(w, "high", None)
        await until(lambda: held(w) == [])
        await nominate(w, "top", "w1")
        assert held(w, "top") == ["w1"]
        await create(w, "other", 2_000)
        assert await w.fitting("other") == ["w1"]


async def test_new_extender_reserves_room_for_nominations_in_statuses_of_pods():
    async with world("w1") as w:
        await place(w, "low", "w1", 8_000, terminationGracePeriodSeconds=60)
        await create(w, "high", 8_000, priority=5)
        assert (await w.http.delete("/api/v1/namespaces/default/pods/low")).status_code == 200
        await nominate(w, "high", "w1")
        async with extending(w):
            await create(w, "other", 8_000)
            assert await w.fitting("other") == []
            assert held(w) == ["w1"]
            await w.delete_pod("low")
            await until(lambda: w.metric("requeues_total") > 0)
            assert await w.fitting("other") == []
            assert await w.fitting("high") == ["w1"]


async def test_pod_that_fits_beside_the_held_room_is_woken_when_the_victim_has_gone():
    async with world("w1") as w:
        await place(w, "low", "w1", 8_000, terminationGracePeriodSeconds=60)
        await create(w, "high", 8_000, priority=5)
        await preempt(w, "high", w1=["low"])
        await nominate(w, "high", "w1")
        await create(w, "small", 2_000)
        assert await w.fitting("small") == []
        touches = w.metric("requeues_total")
        await w.delete_pod("low")
        await until(lambda: w.metric("requeues_total") > touches)
        assert await w.fitting("small") == ["w1"]


async def test_second_preemption_counts_the_room_of_an_equal_nominated_pod():
    async with world("w1") as w:
        for name in ("a", "b"):
            await place(w, name, "w1", 5_000)
        await create(w, "first", 5_000, priority=5)
        await create(w, "second", 5_000, priority=5)
        await create(w, "third", 5_000, priority=5)
        assert await preempt(w, "first", w1=["a"]) == {"w1": ["a"]}
        victims = await preempt(w, "second", w1=["a"])
        assert sorted(victims["w1"]) == ["a", "b"]
        assert await preempt(w, "third", w1=["a"]) == {}


async def test_answers_that_no_choice_follows_are_held_for_a_short_time_only():
    assert nominated_pods.UNNAMED_S < 60
    async with world("w1", nomination_s=0.2) as w:
        await made_room(w, named=False)
        await asyncio.wait_for(until(lambda: held(w) == []), 10)


async def test_room_on_the_node_that_was_named_before_is_held_for_its_whole_time():
    """kube-scheduler does not write if it names the same node again."""
    async with world("w1", nomination_s=1000.0) as w:
        await place(w, "low", "w1", 8_000)
        await create(w, "high", 8_000, priority=5)
        nominations = w.extender.cache.nominations
        for _ in range(2):
            await preempt(w, "high", w1=["low"])
            left_s = nominations._holds.next_end() - w.extender.preempting.clock()
            assert left_s < nominated_pods.UNNAMED_S + 1
            await nominate(w, "high", "w1")
            await until(lambda: uid(w, "high") in nominations._named)
            await preempt(w, "high", w1=["low"])
            left_s = nominations._holds.next_end() - w.extender.preempting.clock()
            assert left_s > 900
            await nominate(w, "high", None)
            nominations.on_delete(uid(w, "high"))


class Counting(FitCache):
    """Counts how often it is asked."""

    asked = 0

    def fits(self, request: Request, situation: NodeSnapshot, namespace: str = "") -> bool:
        self.asked += 1
        return super().fits(request, situation, namespace)


async def test_nominated_pods_without_room_are_tried_again_when_their_node_changes():
    now, names, fit_cache = 1.0, [NodeName(f"w{number}") for number in range(30)], Counting()
    state = ClusterState(on_change=lambda node, _before, _after: nominations.changed(node))
    nominations = NominatedPods(
        state, PodStore(), fit_cache, lambda: now, nomination_s=60.0, on_release=lambda _: None
    )
    request = Request((InterfaceRequest(min_tx_rate_mbps=6_000),))
    for name in names:
        state.observe(name, facts_of(report(name, held={"other": 9_000}), name), 0.0)
        pod = PendingPod(uid=PodUid(name), namespace="n", name=name, priority=5, request=request)
        nominations.nominated(pod, name)
    for name in names:
        nominations.against(name, PodUid("asking"), 0)
    assert fit_cache.asked == len(names)
    state.observe(names[3], facts_of(report(names[3]), names[3]), 1.0)
    assert nominations.nodes() == {names[3]}
    assert fit_cache.asked == len(names) + 1
    now += 2.0
    nominations.nodes()
    assert fit_cache.asked == 2 * len(names)


async def test_explain_gives_advice_about_a_nomination_without_reserved_room():
    """The scheduler counts it for as long as the pod's status has it."""

    async def explained() -> Explanation:
        answer = await w.extender.views.routes()["/v1/explain"]({"query_string": b"pod=default/high"})
        return decode_explanation(answer.body)

    async with world("w1", nomination_s=0.3) as w:
        await made_room(w)
        await until(lambda: held(w) == [])
        told = await explained()
        assert (told.state, told.nominated) == ("waiting", "")
        assert "nominatedNodeName is w1 still" in told.notes[0]
        await nominate(w, "high", None)
        assert (await explained()).notes == ()
