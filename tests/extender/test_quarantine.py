"""If one node's data causes a failure, only that node is lost: no answer about others, never the process."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace as replaced
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from extender.node_server import PF0, pf, rates, report
from extender.preemption import create, place, preempt
from extender.world import World, interfaces, until, world
from k8s_rdma.core.inventory import Inventory
from k8s_rdma.core.placement import PlacedInterface
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.extender.fit_cache import FitCache
from k8s_rdma.extender.node_cache import ClusterState
from k8s_rdma.extender.node_source import facts_of
from k8s_rdma.extender.reservation import Reservation
from k8s_rdma.extender.verdicts import Feasible, Infeasible
from k8s_rdma.kube.informer import Changed, Listed, follow
from k8s_rdma.wire.annotation import parse_request

if TYPE_CHECKING:
    from k8s_rdma.wire.node_facts import NodeFacts

anyio = pytest.mark.anyio
W1, W2 = NodeName("w1"), NodeName("w2")


def facts(node: NodeName = W1, **changes) -> NodeFacts:
    return facts_of(replace(report(node), **changes), node)


def poison(node: NodeName = W1) -> NodeFacts:
    """Return facts that every decoder refuses: two PFs of one PCI address, the second with weights."""
    sound = facts(node)
    [one] = sound.inventory.pfs
    weighed = facts(node, pfs=(pf(rates=rates(weights=100)),)).inventory.pfs[0]
    held = {PodUid("of-poison"): (PlacedInterface(pf=one.pci, min_tx_rate_mbps=5),)}
    foreign = {one.pci: replaced_use(sound)}
    return replaced(sound, inventory=Inventory(node=node, pfs=(one, weighed)), reported=held, foreign=foreign)


def replaced_use(sound: NodeFacts):
    """Foreign use of the PF without weights: no minima one by one."""
    told = replace(report(W1), pfs=(pf(foreign=[7]),))
    return facts_of(told, W1).foreign[sound.inventory.pfs[0].pci]


def state_of(w: World) -> ClusterState:
    return w.extender.cache.state


@anyio
async def test_node_with_two_pfs_of_one_address_is_refused_alone() -> None:
    async with world("w1", "w2") as w:
        for name in ("held", "waits", "fits"):
            await w.create_pod(name, 20_000 if name == "waits" else 1_000)
        assert await w.bind("held", "w1") == ""
        assert await w.fitting("waits") == []
        weighed = pf(rates=rates(weights=100))
        w.nodes["w1"].report = report("w1", pf(foreign=[5]), weighed, generation=2, held={"x": 3})
        refused = await w.filter("fits")
        assert refused["NodeNames"] == ["w2"]
        assert f"pfs[].pci: {PF0} is there twice" in refused["FailedNodes"]["w1"]
        assert await w.fitting("waits") == []
        assert await w.bind("fits", "w2") == ""


@anyio
async def test_poisoned_node_is_quarantined_until_it_reports_something_else() -> None:
    async with world("w1", "w2") as w:
        await w.create_pod("p", 1_000)
        await create(w, "urgent", 1_000, priority=9)
        await place(w, "held", "w2", 1_000)
        await w.filter("p")
        state = state_of(w)
        # by the clock's end, so that no answer of the node replaces it
        state.observe(W1, poison(), float("inf"))
        refused = await w.filter("p")
        assert refused["NodeNames"] == ["w2"]
        assert "makes decisions fail: ValueError" in refused["FailedNodes"]["w1"]
        assert (await w.prioritize("p"))["w1"] == 0
        assert "w1" not in await preempt(w, "urgent", w1=["held"], w2=["held"])
        assert "makes decisions fail" in await w.bind("p", "w1")
        assert w.metric("nodes_quarantined") == 1
        assert w.metric("decisions_failed_total") >= 1
        assert await looked(w, "/v1/cluster", b"") == 200
        assert await looked(w, "/v1/explain", b"pod=default/p&all=1") == 200
        state.observe(W1, poison(), float("inf"))
        state.confirm(W1, float("inf"))
        assert W1 in state.unreadable
        state.observe(W1, facts(generation="epoch.9"), float("inf"))
        assert w.metric("nodes_quarantined") == 0
        assert await w.fitting("p") == ["w1", "w2"]


@anyio
async def test_process_goes_on_when_a_poisoned_node_is_thought_of_for_a_pod_that_waits() -> None:
    async with world("w1", "w2") as w:
        for node in w.nodes.values():
            node.holds(other=9_000)
        await w.create_pod("waits", 2_000)
        assert await w.fitting("waits") == []
        state_of(w).observe(W1, poison(), float("inf"))
        w.nodes["w2"].holds()
        await until(lambda: "w2" in w.api.touched)
        assert await w.fitting("waits") == ["w2"]


async def looked(w: World, path: str, query: bytes) -> int:
    answer = await w.extender.views.routes()[path]({"type": "http", "path": path, "query_string": query})
    return answer.status


def undecidable_with_selectors() -> ClusterState:
    """A node on which a request that asks for settings cannot be decided, and all others can."""
    state = ClusterState()
    sound = facts()
    [one] = sound.inventory.pfs
    broken = replaced(one, supported_settings=None)
    state.observe(W1, replaced(sound, inventory=Inventory(node=W1, pfs=(broken,))), 1.0)
    return state


def test_pod_that_cannot_be_decided_on_a_node_leaves_the_node_to_others() -> None:
    state = undecidable_with_selectors()
    fit_cache = FitCache()
    fit_cache.quarantine.watch(state)
    choosy = parse_request(json.dumps([{"vlan": 5}]))
    verdict = fit_cache.verdict(choosy, state.snapshots[W1])
    assert isinstance(verdict, Infeasible)
    assert verdict.may_pass
    assert "TypeError" in verdict.text
    assert isinstance(fit_cache.verdict(parse_request(interfaces(5)), state.snapshots[W1]), Feasible)
    assert fit_cache.quarantine.failures == 1


def test_node_whose_use_cannot_be_added_up_is_quarantined_when_it_is_observed() -> None:
    failures: list[str] = []

    def failed(error: Exception, node: NodeName) -> str:
        failures.append(node)
        return f"no sum: {error}"

    state = ClusterState(on_failure=failed)
    sound = facts()
    [one] = sound.inventory.pfs
    state.observe(W2, facts(W2), 1.0)
    state.observe(W1, replaced(sound, foreign={one.pci: None}, reported={PodUid("u"): (None,)}), 1.0)
    assert (failures, state.quarantined(), set(state.snapshots)) == ([W1], 1, {W2})
    assert state.why_unreadable(W1).startswith("no sum")
    held = Reservation(interfaces=(PlacedInterface(pf=one.pci),), pod="d/p", created_at=1.0)
    state.reserve(W1, PodUid("p"), held)
    assert state.snapshot_if(W1, excluded=[PodUid("p")]) is None


@anyio
async def test_watch_goes_on_after_an_object_that_cannot_be_taken() -> None:
    taken: list[int] = []

    async def stream():
        yield Listed(())
        for each in (1, 0, 2):
            yield Changed(each)
        await asyncio.Event().wait()

    def take(event) -> None:
        if isinstance(event, Changed):
            taken.append(1 // event.item)

    following = asyncio.create_task(follow("numbers", stream, take))
    await until(lambda: taken == [1, 0])
    following.cancel()
