from __future__ import annotations

import asyncio
import itertools
import json

import pytest

from extender.node_server import PF0, PF1, pf, report
from extender.preemption import asked, counted, create, nominate, place, preempt, uid
from extender.world import DEADLINE_S, cluster, extending, until, world
from k8s_rdma.config.extender import NamespaceLimit
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION

pytestmark = pytest.mark.anyio


async def budget(w, name: str, allowed: int, **labels: str) -> None:
    url = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    document = {
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": labels}},
        "status": {"disruptionsAllowed": allowed},
    }
    assert (await w.http.post(url, json=document)).status_code == 201
    patch = {"status": document["status"]}
    headers = {"Content-Type": "application/merge-patch+json"}
    assert (await w.http.patch(f"{url}/{name}/status", json=patch, headers=headers)).status_code == 200


@pytest.mark.parametrize("whole", [True, False], ids=["pods", "uids"])
async def test_victims_go_back_as_they_came_when_they_are_enough(whole):
    async with world("w1", "w2") as w:
        for node in ("w1", "w2"):
            await place(w, f"low-{node}", node, 8_000)
        await create(w, "high", 8_000, priority=9)
        found = await counted(w, "high", whole=whole, violations=1, w1=["low-w1"], w2=["low-w2"])
        assert found == {"w1": (["low-w1"], 1), "w2": (["low-w2"], 1)}


@pytest.mark.parametrize("whole", [True, False], ids=["pods", "uids"])
async def test_least_important_holder_of_bandwidth_is_added(whole):
    async with world("w1") as w:
        await place(w, "worker", "w1", vfs=1)
        await place(w, "b", "w1", 4_000, priority=2, vfs=0)
        await place(w, "c", "w1", 4_000, priority=1, vfs=0)
        await create(w, "high", 5_000, priority=9)
        assert await preempt(w, "high", whole=whole, w1=["worker"]) == {"w1": ["c", "worker"]}


async def test_pod_whose_vf_was_chosen_by_number_stays_when_its_bandwidth_does_not_help():
    async with world("w1") as w:
        w.nodes["w1"].report = report("w1", pf(vfs=2))
        await place(w, "wide", "w1", 8_000, priority=1)
        await place(w, "narrow", "w1", 1_000)
        await create(w, "high", 5_000, priority=9)
        assert await preempt(w, "high", w1=["narrow"]) == {"w1": ["wide"]}


async def test_chosen_pod_goes_too_when_the_waiting_one_minds_its_neighbours():
    async with world("w1") as w:
        w.nodes["w1"].report = report("w1", pf(vfs=2))
        await place(w, "wide", "w1", 8_000, priority=1)
        await place(w, "narrow", "w1", 1_000)
        spread = [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]
        await create(w, "high", 5_000, priority=9, topologySpreadConstraints=spread)
        assert await preempt(w, "high", w1=["narrow"]) == {"w1": ["wide", "narrow"]}


async def test_node_is_dropped_when_only_pods_of_no_lower_priority_could_make_room():
    async with world("w1", "w2") as w:
        await place(w, "equal", "w1", 8_000, priority=9)
        await place(w, "greater", "w2", 8_000, priority=10)
        for node in ("w1", "w2"):
            await place(w, f"idle-{node}", node, 0)
        await create(w, "high", 5_000, priority=9)
        assert await preempt(w, "high", w1=["idle-w1"], w2=["idle-w2"]) == {}


async def test_victims_that_come_whole_and_by_uid_are_those_by_uid():
    async with world("w1") as w:
        await place(w, "low", "w1", 6_000)
        await create(w, "high", 5_000, priority=9)
        meta = {"w1": {"Pods": [{"UID": w.pods["low"]["metadata"]["uid"]}]}}
        args = {"Pod": w.pods["high"], "NodeNameToVictims": {"w2": {}}, "NodeNameToMetaVictims": meta}
        found = json.loads(await w.extender.preempt(json.dumps(args).encode()))
        assert found["NodeNameToMetaVictims"]["w1"]["Pods"] == meta["w1"]["Pods"]


async def test_nodes_that_cannot_be_read_or_are_not_known_are_dropped():
    async with world("w1", "w2") as w:
        for node in ("w1", "w2"):
            await place(w, f"low-{node}", node, 8_000)
        w.nodes["w1"].raw = b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"
        await create(w, "high", 8_000, priority=9)
        asked = {"w1": ["low-w1"], "w2": ["low-w2"], "w3": ["low-w1"]}
        assert await preempt(w, "high", **asked) == {"w2": ["low-w2"]}


async def two_urgent_pods(w) -> dict[str, list[str]]:
    """Two pods on each node, one of each answered for the first urgent pod; the same is proposed for both."""
    for node, name in itertools.product(("w1", "w2"), "ab"):
        await place(w, f"{name}-{node}", node, 5_000)
    for name in ("first", "second"):
        await create(w, name, 5_000, priority=9)
    proposed = {"w1": ["a-w1"], "w2": ["a-w2"]}
    assert await preempt(w, "first", **proposed) == proposed
    return proposed


async def test_no_node_loses_pods_for_room_that_is_made_on_another():
    """An API server that was killed does not know the node on which the first pod's room is made."""
    async with world("w1", "w2") as w:
        w.extender.preempting.choice_s = 0.0
        proposed = await two_urgent_pods(w)
        assert await preempt(w, "second", **proposed) == {}
        await nominate(w, "first", "w1")
        await until(lambda: w.extender.cache.nominations.nodes_of(uid(w, "first")) == {"w1"})
        found = await preempt(w, "second", **proposed)
        assert {node: sorted(names) for node, names in found.items()} == {
            "w1": ["a-w1", "b-w1"],
            "w2": ["a-w2"],
        }


async def test_preempt_waits_for_the_choice_that_another_pods_answer_left_open():
    async with world("w1", "w2") as w:
        w.extender.preempting.choice_s = DEADLINE_S
        proposed = await two_urgent_pods(w)
        asking = asyncio.create_task(preempt(w, "second", **proposed))
        await nominate(w, "first", "w1")
        assert (await asking)["w2"] == ["a-w2"]


async def test_node_that_helps_is_found_behind_many_that_cannot_be_read():
    async with world("w1") as w:
        w.extender.preempting.search_s = 1e-9  # after the first search, if it found no node
        await place(w, "low", "w1", 8_000)
        await create(w, "high", 8_000, priority=9)
        unknown = {f"n{number}": ["low"] for number in range(100)}
        assert await preempt(w, "high", **unknown, w1=["low"]) == {"w1": ["low"]}


async def test_victims_of_a_pod_without_requests_are_returned_unchanged():
    async with world("w1") as w:
        await place(w, "low", "w1", 8_000)
        await create(w, "plain", priority=9)
        assert await counted(w, "plain", violations=2, w1=["low"], w9=["low"]) == {
            "w1": (["low"], 2),
            "w9": (["low"], 2),
        }


async def test_malformed_annotation_evicts_no_pod():
    async with world("w1") as w:
        await place(w, "low", "w1", 8_000)
        await w.create_pod("high", annotation="[{]")
        assert await preempt(w, "high", w1=["low"]) == {}


async def test_no_pod_is_evicted_before_all_pods_are_known():
    async with world("w1") as w:
        await place(w, "low", "w1", 8_000)
        await create(w, "high", 8_000, priority=9)
        w.extender.preempting.ready = lambda: False
        assert await preempt(w, "high", w1=["low"]) == {}


async def test_terminating_pod_makes_room_without_being_evicted():
    async with world("w1") as w:
        await place(w, "going", "w1", 6_000, terminationGracePeriodSeconds=60)
        await place(w, "low", "w1", 3_000)
        url = "/api/v1/namespaces/default/pods/going"
        assert (await w.http.delete(url)).status_code == 200
        state = w.extender.cache.pods
        await until(lambda: bool(state.terminating("w1")))
        await create(w, "high", 8_000, priority=9)
        assert await preempt(w, "high", w1=["low"]) == {"w1": ["low"]}
        await create(w, "higher", 7_000, priority=10)
        assert await preempt(w, "higher", w1=["low", "going"]) == {"w1": ["low"]}


async def guarded_and_free(w) -> None:
    """Besides `idle` either must go for `high`; that of lower priority is guarded by a budget."""
    await place(w, "idle", "w1", vfs=3)
    await place(w, "guarded", "w1", 4_000, labels={"app": "guarded"})
    await place(w, "free", "w1", 4_000, priority=5)
    await create(w, "high", 5_000, priority=9)


async def test_pods_that_no_budget_allows_to_evict_stay_when_others_help():
    async with world("w1") as w:
        await budget(w, "b", 0, app="guarded")
        await guarded_and_free(w)
        budgets = w.extender.preempting.budgets
        await until(lambda: bool(budgets._namespaces))
        assert await counted(w, "high", w1=["idle"]) == {"w1": (["free", "idle"], 0)}
        await create(w, "higher", 9_000, priority=10)
        assert await counted(w, "higher", w1=["idle"]) == {"w1": (["free", "guarded", "idle"], 1)}


async def test_no_pod_is_evicted_until_budgets_are_read_and_then_waiting_pods_are_tried_again():
    async with cluster("w1") as c:
        await budget(c, "b", 0, app="guarded")
        await c.create_pod("first", 1)
        c.api.budgets_refused = True  # as of an API server that has not read its roles yet
        async with extending(c) as w:
            await until(lambda: w.api.touched == ["w1"])  # for who waited before the extender was ready
            await guarded_and_free(w)
            assert await asked(w, "high", w1=["idle"]) == {}
            assert w.metric('decisions_total{reason="budgets_unknown",verb="preempt"}') == 1
            assert w.api.touched == ["w1"]
            c.api.budgets_refused = False
            await until(lambda: w.api.touched == ["w1"] * 2)
            assert await asked(w, "high", w1=["idle"]) == {"w1": (["free", "idle"], 0)}


async def test_budgets_of_before_are_heeded_while_they_cannot_be_read():
    async with world("w1") as w:
        await budget(w, "b", 0, app="guarded")
        budgets = w.extender.preempting.budgets
        await until(lambda: bool(budgets._namespaces))
        w.api.budgets_refused = True
        await budget(w, "other", 0, app="other")  # upon which the watch is refused
        await guarded_and_free(w)
        await until(lambda: 'call="follow_budgets",kind="refused"' in w.extender.metrics.render())
        assert await asked(w, "high", w1=["idle"]) == {"w1": (["free", "idle"], 0)}


async def test_no_budget_is_read_if_the_configuration_says_so():
    async with cluster("w1") as c:
        c.api.budgets_refused = True
        async with extending(c, disruption_budgets="ignore") as w:
            await budget(w, "b", 0, app="guarded")
            await place(w, "guarded", "w1", 4_000, labels={"app": "guarded"})
            await create(w, "high", 8_000, priority=9)
            assert await counted(w, "high", w1=["guarded"]) == {"w1": (["guarded"], 0)}
            assert await counted(w, "high", violations=1, w1=["guarded"]) == {"w1": (["guarded"], 1)}


async def test_namespaces_limit_counts_without_the_victims():
    limit = NamespaceLimit(namespace="default", reserved_mbps=10_000)
    async with world("w1", limits=(limit,)) as w:
        w.nodes["w1"].report = report("w1", pf(PF0), pf(PF1))
        await place(w, "a", "w1", 6_000)
        await place(w, "b", "w1", 4_000)
        await create(w, "high", 6_000, priority=9)
        assert await preempt(w, "high", w1=["b"]) == {"w1": ["a"]}
        await create(w, "huge", 11_000, priority=9)
        assert await preempt(w, "huge", w1=["a", "b"]) == {}


async def test_pod_gets_the_interfaces_of_its_victim_once_the_node_has_them_back():
    async with world("w1") as w:
        await place(w, "low", "w1", 8_000)
        w.nodes["w1"].holds(**{uid(w, "low"): 8_000})
        await create(w, "high", 8_000, priority=9)
        assert await w.fitting("high") == []
        assert await preempt(w, "high", w1=["low"]) == {"w1": ["low"]}
        await w.delete_pod("low")
        await nominate(w, "high", "w1")
        assert await w.fitting("high") == []
        assert "free" in await w.bind("high", "w1")
        w.nodes["w1"].holds()
        assert await w.fitting("high") == ["w1"]
        assert await w.bind("high", "w1") == ""
        text = (await w.read_pod("high"))["metadata"]["annotations"][PLACEMENT_ANNOTATION]
        assert json.loads(text)["interfaces"][0]["min_tx_rate"] == 8_000


async def refuse_since_victim_lingers(w) -> None:
    """`low-w1` went for `high`, and w1 has not its interfaces back; `low-w2` could go on w2."""
    for node in ("w1", "w2"):
        await place(w, f"low-{node}", node, 8_000)
    w.nodes["w1"].holds(**{uid(w, "low-w1"): 8_000})
    await create(w, "high", 8_000, priority=9)
    assert await preempt(w, "high", w1=["low-w1"]) == {"w1": ["low-w1"]}
    await nominate(w, "high", "w1")
    await w.delete_pod("low-w1")
    await until(lambda: bool(w.extender.cache.pods.terminating("w1")))
    assert await w.fitting("high") == []


async def test_no_other_pod_is_evicted_until_the_interfaces_of_a_victim_are_back():
    async with world("w1", "w2") as w:
        await refuse_since_victim_lingers(w)
        assert await preempt(w, "high", w2=["low-w2"]) == {}
        w.nodes["w1"].holds(**{"somebody-else": 8_000})
        assert await preempt(w, "high", w2=["low-w2"]) == {"w2": ["low-w2"]}


async def test_no_other_pod_is_evicted_if_the_interfaces_came_back_since_filter():
    async with world("w1", "w2") as w:
        await refuse_since_victim_lingers(w)
        w.nodes["w1"].holds()
        assert await preempt(w, "high", w2=["low-w2"]) == {}
        async with asyncio.timeout(20):
            while await w.fitting("high") != ["w1"]:  # noqa: ASYNC110  nodes that answer late are asked again
                await asyncio.sleep(0.01)


async def test_no_other_pod_is_evicted_before_the_end_of_the_victim_is_known():
    """The scheduler's watch may be ahead of the extender's: by seconds, after an outage of the API server."""
    async with world("w1", "w2") as w:
        for node in ("w1", "w2"):
            await place(w, f"low-{node}", node, 8_000)
        await create(w, "high", 8_000, priority=9)
        assert await preempt(w, "high", w1=["low-w1"]) == {"w1": ["low-w1"]}
        assert await w.fitting("high") == []
        assert await preempt(w, "high", w2=["low-w2"]) == {}
        await nominate(w, "high", "w1")
        assert await w.fitting("high") == []
        assert await preempt(w, "high", w2=["low-w2"]) == {}


async def test_others_are_evicted_when_the_held_node_was_not_refused_for_lack_of_room():
    async with world("w1", "w2") as w:
        for node in ("w1", "w2"):
            await place(w, f"low-{node}", node, 8_000)
        await create(w, "high", 8_000, priority=9)
        assert await preempt(w, "high", w1=["low-w1"]) == {"w1": ["low-w1"]}
        await nominate(w, "high", "w1")
        await w.delete_pod("low-w1")
        assert await w.fitting("high", "w2") == []  # w1 lacks something else by now
        assert await preempt(w, "high", w2=["low-w2"]) == {"w2": ["low-w2"]}


async def test_pod_without_evictable_victims_gets_none_while_its_api_is_silent():
    async with world("w1", api=False, binder="scheduler") as w:
        w.extender.preempting.states.learn("w1", (w.nodes["w1"].address,))
        await create(w, "low", 8_000)
        w.nodes["w1"].holds(**{uid(w, "low"): 8_000})
        await create(w, "high", 8_000, priority=9)
        assert await preempt(w, "high", whole=True, w1=["low"]) == {"w1": ["low"]}
        await create(w, "other", 8_000)
        assert await preempt(w, "high", whole=True, w1=["other"]) == {}


async def test_others_have_their_turns_while_a_node_with_many_victims_is_searched():
    async with world("w1") as w:
        w.nodes["w1"].report = report("w1", pf(vfs=16))
        for number in range(14):
            await place(w, f"low-{number}", "w1", 600, vfs=0)
        await place(w, "worker", "w1", vfs=1)
        await create(w, "high", 9_000, priority=9)
        queue, turns = w.extender.preempting.queue, 0
        looks = itertools.count()
        queue.clock = lambda: float(next(looks))  # every look takes longer than a slice
        preempting = asyncio.create_task(preempt(w, "high", w1=["worker"]))
        while not preempting.done():
            async with queue.turn("other"):
                turns += 1
            await asyncio.sleep(0)
        assert len((await preempting)["w1"]) == 14
        assert turns > 12


async def test_others_have_their_turns_while_many_pods_of_a_node_are_compared_with_budgets():
    async with world("w1") as w:
        low = [f"low-{number}" for number in range(4)]
        for name in low:
            await place(w, name, "w1", 2_000)
        await create(w, "high", 9_000, priority=9)
        queue, turns = w.extender.preempting.queue, 0
        looks = itertools.count()
        queue.clock = lambda: float(next(looks))  # every look takes longer than a slice
        preempting = asyncio.create_task(preempt(w, "high", w1=low))
        while not preempting.done():
            async with queue.turn("other"):
                turns += 1
            await asyncio.sleep(0)
        assert sorted((await preempting)["w1"]) == low
        assert turns > 2 * len(low)
