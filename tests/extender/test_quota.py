"""Limits of namespaces: counting by changes equals a new count, and filter and bind keep to them."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.node_server import PF0, pf, report
from extender.world import until, world
from k8s_rdma.config.extender import ExtenderConfig, NamespaceLimit
from k8s_rdma.config.files import load_config
from k8s_rdma.core.placement import PlacedInterface, Share
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.core.types import NodeName, PciAddress, PodUid
from k8s_rdma.errors import MalformedError
from k8s_rdma.extender.node_cache import ClusterState
from k8s_rdma.extender.node_source import facts_of
from k8s_rdma.extender.quota import Limits
from k8s_rdma.extender.reservation import Reservation

anyio = pytest.mark.anyio
NOT_ENOUGH = "RDMA Scheduler Extension: Node did not have enough free RDMA resources. ("
SPACES = ("a", "b", "c")
PODS = [PodUid(f"p{number}") for number in range(6)]
NODES = [NodeName("w1"), NodeName("w2")]


def placed(*rates: int) -> tuple[PlacedInterface, ...]:
    return tuple(PlacedInterface(pf=PciAddress(PF0), min_tx_rate_mbps=rate) for rate in rates)


def space_of(uid: PodUid) -> str:
    return SPACES[PODS.index(uid) % len(SPACES)]


def facts(node: NodeName, held: dict[PodUid, list[int]]):
    """A report, with each pod in its namespace."""
    told = report(node, pf(PF0), held=held)
    allocations = tuple(
        msgspec.structs.replace(each, pod=msgspec.structs.replace(each.pod, namespace=space_of(each.pod.uid)))
        for each in told.allocations
    )
    return facts_of(msgspec.structs.replace(told, allocations=allocations), node)


def wants(*rates: int) -> Request:
    return Request(tuple(InterfaceRequest(min_tx_rate_mbps=rate) for rate in rates))


def limit(namespace: str, mbps: int | None = None, vfs: int | None = None) -> NamespaceLimit:
    return NamespaceLimit(namespace=namespace, reserved_mbps=mbps, vfs=vfs)


def recounted(state: ClusterState, space: str) -> Share:
    """Count every pod once, by its largest use on any node; by its promise, whatever the node says."""
    pods: dict[PodUid, list[Share]] = {}
    for node in NODES:
        known = state.facts(node)
        reported = known.reported if known else {}
        for uid in {*reported, *state.reservations(node)}:
            held = state.reservation(node, uid)
            taken = reported[uid] if held is None else held.interfaces
            pods.setdefault(uid, []).append(Share(sum(i.min_tx_rate_mbps for i in taken), len(taken)))
    mine = [shares for uid, shares in pods.items() if space_of(uid) == space]
    return Share(
        sum(max(s.mbps for s in each) for each in mine), sum(max(s.vfs for s in each) for each in mine)
    )


rates = st.lists(st.sampled_from([0, 1_000, 3_000]), min_size=1, max_size=3)
pods, nodes = st.sampled_from(PODS), st.sampled_from(NODES)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("observe"), nodes, st.dictionaries(pods, rates, max_size=4)),
        st.tuples(st.just("reserve"), nodes, pods, rates),
        st.tuples(st.sampled_from(["withdraw", "bound"]), nodes, pods),
        st.tuples(st.just("ended"), pods),
        st.tuples(st.sampled_from(["confirm", "forget"]), nodes),
    ),
    max_size=30,
)


@given(steps)
def test_accounts_equal_a_new_count_after_any_changes(steps):
    freed: list[str] = []
    limits = Limits([limit("a", 1), limit("*", 1)], on_freed=freed.append)
    state = ClusterState(on_use=limits.update)
    for now, (what, *which) in enumerate(steps, 1):
        before = {space: limits.used(space) for space in SPACES}
        freed.clear()
        if what == "observe":
            state.observe(which[0], facts(*which), now)
        elif what == "reserve":
            node, uid, asked = which
            pod = f"{space_of(uid)}/{uid}"
            state.reserve(node, uid, Reservation(interfaces=placed(*asked), pod=pod, created_at=now))
        elif what == "bound":
            node, uid = which
            state.bound(node, uid, None)
        elif what == "ended":
            state.on_delete(which[0], now)
        elif what == "confirm":
            state.confirm(which[0], now)
        else:
            getattr(state, what)(*which)
        after = {space: limits.used(space) for space in SPACES}
        assert after == {space: recounted(state, space) for space in SPACES}
        fell = {s for s in SPACES if after[s].mbps < before[s].mbps or after[s].vfs < before[s].vfs}
        assert fell <= set(freed)


def test_nodes_of_many_namespaces_take_no_longer_to_find_than_those_of_one():
    """They are looked for every second while pods of these namespaces wait for their limits."""
    limits = Limits([limit("*", 1)], on_freed=lambda _: None)
    for number in range(100):
        claims = [(PodUid(f"{number}-{pod}"), f"n{pod}", placed(5)) for pod in range(100)]
        limits.update(NodeName(f"w{number}"), claims)

    def took_s(*namespaces: str) -> float:
        began = time.process_time()
        for _ in range(10):
            assert len(limits.nodes(namespaces)) == 100
        return time.process_time() - began

    assert took_s(*(f"n{number}" for number in range(99, -1, -1))) < 10 * took_s("n99")
    assert limits.nodes(["elsewhere"]) == limits.nodes([]) == []


def test_namespace_without_a_limit_is_not_counted():
    limits = Limits([limit("a", 1)], on_freed=lambda _: None)
    limits.update(NODES[0], [(PODS[1], "b", placed(5))])
    assert limits.used("b") == Share()
    assert limits.refusal("b", PODS[1], wants(9)) is None


def test_node_that_cannot_be_read_keeps_counting():
    limits = Limits([limit("*", 1)], on_freed=lambda _: None)
    state = ClusterState(on_use=limits.update)
    state.observe(NODES[0], facts(NODES[0], {PODS[0]: [1_000]}), 1.0)
    state.lose(NODES[0], "no answer")
    assert limits.used("a") == Share(1_000, 1)
    state.forget(NODES[0])
    assert limits.used("a") == Share()


@pytest.mark.parametrize(
    ("own", "asked", "why"),
    [
        (limit("a", 10_000), (1_000,), None),
        (limit("a", 10_000), (1_001,), "namespace a holds 9000 of 10000 reserved Mb/s; needs 1001"),
        (limit("a", 5_000), (0, 0), None),
        (limit("a", vfs=3), (9_999,), None),
        (limit("a", vfs=3), (0, 0), "namespace a holds 2 of 3 VFs; needs 2"),
        (limit("a", 9_000, 2), (1,), "needs 1 and namespace a holds 2 of 2 VFs; needs 1"),
    ],
)
def test_refusal_has_used_and_limit(own, asked, why):
    limits = Limits([own, limit("*", 0, 0)], on_freed=lambda _: None)
    limits.update(NODES[0], [(PODS[0], "a", placed(4_000)), (PODS[3], "a", placed(5_000))])
    told = limits.refusal("a", PodUid("new"), wants(*asked))
    assert (told is None) if why is None else (told.endswith(why))


def test_pod_does_not_count_against_itself():
    limits = Limits([limit("a", 5_000)], on_freed=lambda _: None)
    limits.update(NODES[0], [(PODS[0], "a", placed(4_000))])
    assert limits.refusal("a", PODS[0], wants(5_000)) is None
    assert limits.refusal("a", PodUid("new"), wants(5_000)) is not None


def test_namespace_that_is_limited_twice_is_refused_by_its_field(tmp_path):
    file = tmp_path / "extender.yaml"
    file.write_text("limits: [{namespace: a, vfs: 1}, {namespace: '*'}, {namespace: a}]")
    with pytest.raises(MalformedError, match=r"limits\[2\].namespace: 'a' is limited twice"):
        load_config(ExtenderConfig, str(file), {})


LIMITED = {"limits": (limit("default", 10_000, 3),)}


@anyio
async def test_filter_refuses_all_nodes_with_used_and_limit_and_no_eviction_is_tried():
    async with world("w1", "w2", **LIMITED) as w:
        for name, rate in (("held", 9_000), ("beyond", 2_000), ("within", 1_000)):
            await w.create_pod(name, rate)
        assert await w.bind("held", "w1") == ""
        why = f"{NOT_ENOUGH}namespace default holds 9000 of 10000 reserved Mb/s; needs 2000)"
        result = await w.filter("beyond")
        assert result["FailedAndUnresolvableNodes"] == {"w1": why, "w2": why}
        assert (result["NodeNames"], result["FailedNodes"]) == ([], {})
        assert len(await w.fitting("within")) == 2


@anyio
async def test_metrics_have_the_usage_of_limited_namespaces():
    async with world("w1", **LIMITED) as w:
        await w.create_pod("p", 2_000, 0)
        await w.filter("p")
        assert w.metric("pods_assumed") == 1
        assert await w.bind("p", "w1") == ""
        assert w.metric("pods_assumed") == 0
        assert w.metric('namespace_reserved_mbps{namespace="default"}') == 2_000
        assert w.metric('namespace_vfs{namespace="default"}') == 2


@anyio
async def test_one_of_two_pods_that_passed_filter_together_is_refused_at_bind():
    async with world("w1", "w2", **LIMITED) as w:
        w.api.writing.clear()
        for name in ("p", "q"):
            await w.create_pod(name, 6_000)
            assert len(await w.fitting(name)) >= 1
        binds = [asyncio.create_task(w.bind(*each)) for each in (("p", "w1"), ("q", "w2"))]
        await w.api.begun.wait()
        await until(lambda: any(bind.done() for bind in binds))
        w.api.writing.set()
        errors = sorted(await asyncio.gather(*binds))
        assert errors == ["", f"{NOT_ENOUGH}namespace default holds 6000 of 10000 reserved Mb/s; needs 6000)"]


@anyio
async def test_pod_of_a_namespace_beyond_its_limit_is_refused_by_reports_of_nodes():
    async with world("w1", "w2", **LIMITED) as w:
        for name in ("a", "b", "c"):
            await w.create_pod(name, 0)
            await w.bind_by_hand(name, "w2")
        w.nodes["w2"].holds(**{w.pods[name]["metadata"]["uid"]: 100 for name in ("a", "b", "c")})
        await w.create_pod("other", 0)
        await w.create_pod("p", 0)
        async with asyncio.TaskGroup() as group:
            group.create_task(w.filter("other"))
        refused = await w.filter("p")
        assert "namespace default holds 3 of 3 VFs; needs 1" in str(refused["FailedAndUnresolvableNodes"])


@anyio
async def test_node_that_invents_pods_uses_up_nobodys_limit_and_its_own_vfs():
    async with world("w1", "w2", **LIMITED) as w:
        for name in ("elsewhere", "p"):
            await w.create_pod(name, 1_000)
        assert await w.bind("elsewhere", "w1") == ""
        w.nodes["w2"].holds(a=1, b=1, c=1, **{w.pods["elsewhere"]["metadata"]["uid"]: 4_000})
        refused = await w.filter("p")
        assert refused["NodeNames"] == ["w1"]
        assert "w2" in refused["FailedNodes"]
        assert w.metric('namespace_vfs{namespace="default"}') == 1
        assert w.metric('namespace_reserved_mbps{namespace="default"}') == 1_000


@anyio
async def test_node_that_reports_more_of_a_pod_than_promised_uses_up_no_limit():
    async with world("w1", **LIMITED) as w:
        await w.create_pod("mine", 1_000)
        assert await w.bind("mine", "w1") == ""
        w.nodes["w1"].holds(**{w.pods["mine"]["metadata"]["uid"]: [5_000] * 3})
        await w.create_pod("p", 0)
        await w.filter("p")
        assert w.metric('namespace_reserved_mbps{namespace="default"}') == 1_000


@anyio
@pytest.mark.parametrize("binder", ["extender", "scheduler"])
async def test_node_that_says_more_of_a_pod_than_it_asks_for_uses_up_nobodys_limit(binder: str):
    async with world("w1", binder=binder, **LIMITED) as w:
        await w.create_pod("asks", 1_000)
        await w.create_pod("devices", devices={"example.com/vf": 1})
        await w.create_pod("nothing")
        await w.create_pod("malformed", annotation="[")
        for name in ("asks", "devices", "nothing", "malformed"):
            await w.bind_by_hand(name, "w1")
        w.nodes["w1"].holds(**{pod["metadata"]["uid"]: [5_000] * 9 for pod in w.pods.values()})
        await w.create_pod("p", 0)
        await w.filter("p")
        assert w.metric('namespace_reserved_mbps{namespace="default"}') == 1_000
        assert w.metric('namespace_vfs{namespace="default"}') == 2


@anyio
async def test_reported_interfaces_of_a_pod_count_from_its_bind_to_its_end():
    async with world("w1", **LIMITED) as w:
        await w.create_pod("devices", devices={"example.com/vf": 3})
        await w.create_pod("p", 0)
        w.nodes["w1"].holds(**{w.pods["devices"]["metadata"]["uid"]: [0, 0, 0]})
        assert await w.fitting("p") == ["w1"]
        await w.bind_by_hand("devices", "w1")
        await until(lambda: 'namespace_vfs{namespace="default"} 3' in w.extender.metrics.render())
        assert await w.fitting("p") == []
        await w.delete_pod("devices")
        await until(lambda: "namespace_vfs{" not in w.extender.metrics.render())
        assert await w.fitting("p") == ["w1"]


@anyio
async def test_node_is_touched_when_the_limit_that_refused_a_pod_comes_free():
    async with world("w1", "w2", **LIMITED) as w:
        w.nodes["w1"].holds(full=10_000)
        await w.create_pod("held", 9_000)
        await w.create_pod("waits", 2_000)
        assert await w.bind("held", "w2") == ""
        assert await w.fitting("waits") == []
        assert w.metric("pods_waiting") == 1
        await w.delete_pod("held")
        await until(lambda: w.api.touched == ["w2"])
        assert await w.fitting("waits") == ["w2"]


@anyio
async def test_node_that_is_touched_is_one_that_the_scheduler_thought_of():
    async with world("w1", "w2", "w3", **LIMITED) as w:
        await w.create_pod("held", 9_000)
        await w.create_pod("waits", 2_000)
        assert len(await w.fitting("held")) == 3
        assert await w.bind("held", "w1") == ""
        assert await w.fitting("waits", "w3") == []
        await w.delete_pod("held")
        await until(lambda: w.api.touched == ["w3"])


@anyio
async def test_limit_comes_free_when_a_pod_ends_whose_node_was_deleted_before():
    async with world("w1", "w2", **LIMITED) as w:
        await w.create_pod("held", 9_000)
        await w.create_pod("waits", 2_000)
        assert await w.bind("held", "w1") == ""
        assert (await w.http.delete("/api/v1/nodes/w1")).status_code == 200
        await until(w.expect(nodes_readable=1))
        assert await w.fitting("waits", "w2") == []
        await w.delete_pod("held")
        await until(w.expect(pods_promised=0))
        assert await w.fitting("waits", "w2") == ["w2"]


@anyio
async def test_pod_admitted_by_its_limit_waits_for_a_node_if_no_node_fits():
    async with world("w1", "w2", limits=(limit("default", 20_000),)) as w:
        w.nodes["w1"].holds(other=9_000)
        await w.create_pod("held", 9_000)
        await w.create_pod("waits", 4_000)
        assert await w.bind("held", "w2") == ""
        assert await w.fitting("waits") == []
        w.nodes["w2"].holds(other=9_000)
        await w.delete_pod("held")
        await until(lambda: w.nodes["w1"].asked > 10)
        assert w.api.touched == []
        w.nodes["w1"].holds(other=6_000)
        await until(lambda: w.api.touched == ["w1"])


@anyio
async def test_no_pod_waits_for_more_than_the_limit_itself():
    async with world("w1", **LIMITED) as w:
        await w.create_pod("p", 0, 0, 0, 0)
        assert "needs 4" in str(await w.filter("p"))
        assert w.metric("pods_waiting") == 0
