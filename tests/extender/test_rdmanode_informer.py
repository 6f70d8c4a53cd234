"""Conclusions from watches: a node is known as long as it confirms that its published status holds."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from extender.node_server import PF0, pf, report
from extender.published import NAMESPACE, RDMA_NODES, LateWatches, PublishedNode
from extender.world import until
from k8s_rdma.core.placement import PlacedInterface
from k8s_rdma.core.types import NodeName, PciAddress, PodUid
from k8s_rdma.extender.node_cache import ClusterState
from k8s_rdma.extender.rdmanode_informer import REPORTS_AT_ONCE, REPORTS_PER_S, RdmaNodeInformer
from k8s_rdma.extender.reservation import Reservation, Stage
from k8s_rdma.kube.client import Client
from k8s_rdma.kube.informer import Changed, Deleted, Listed, ListPage
from k8s_rdma.kube.published_api import LeaseView
from k8s_rdma_demo.cluster.api import ApiConfig, RunningApi, serving_api
from k8s_rdma_demo.cluster.objects import LEASES
from lightkube_client import lightkube_client

pytestmark = pytest.mark.anyio

W1, W2 = NodeName("w1"), NodeName("w2")
P = PodUid("p")
STALE_S = 60.0


class Clock:
    """Time that passes only by the test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class World:
    api: RunningApi
    watches: LateWatches
    states: RdmaNodeInformer
    state: ClusterState
    clock: Clock
    w1: PublishedNode

    async def marked(self) -> None:
        """Until the API server was asked for its version at the time of now, and has answered."""
        asked = self.watches.asked
        await until(lambda: self.watches.asked >= asked + 3)

    async def readable(self, *nodes: NodeName) -> None:
        await until(lambda: set(self.state.snapshots) == set(nodes))

    async def passes(self, seconds: float) -> None:
        self.clock.now += seconds
        await self.marked()

    def promise(self) -> None:
        """A pod that is bound to the node."""
        placed = PlacedInterface(pf=PciAddress(PF0), min_tx_rate_mbps=1000, max_tx_rate_mbps=0)
        held = Reservation(
            interfaces=(placed,), pod="default/p", created_at=self.clock.now, stage=Stage.BOUND
        )
        self.state.reserve(W1, P, held)

    def promised(self) -> bool:
        return self.state.reservation(W1, P) is not None


@asynccontextmanager
async def cluster():
    async with (
        asyncio.timeout(120),
        serving_api(ApiConfig(custom_resources=(RDMA_NODES,))) as server,
        lightkube_client(server.url) as client,
    ):
        yield server, Client(client, silence_s=30)


@asynccontextmanager
async def watching(*, first=None):
    """The states of a cluster with one Node object, w1; first: its agent's report from before."""
    async with cluster() as (server, client):
        state, clock, watches, w1 = ClusterState(), Clock(), LateWatches(client), PublishedNode(client, W1)
        if first is not None:
            await w1.say(first)
        states = RdmaNodeInformer(state, watches, clock, stale_s=STALE_S, namespace=NAMESPACE, look_s=0.005)
        async with states:
            states.learn(W1, ("10.0.0.1", *map(str, range(9))))
            assert states.addresses(W1) == ("10.0.0.1", "0", "1", "2")
            await until(lambda: not states.awaited())
            yield World(server, watches, states, state, clock, w1)


async def test_states_are_awaited_until_both_lists_have_come():
    async with cluster() as (_, client):
        watches = LateWatches(client)
        watches.leases.clear()
        await PublishedNode(client, W1).say(report("w1"))
        state = ClusterState()
        async with RdmaNodeInformer(state, watches, Clock(), stale_s=60, namespace=NAMESPACE) as states:
            await until(lambda: "no Lease" in state.why_unreadable(W1))
            assert states.awaited() == 1
            watches.leases.set()
            await until(lambda: not states.awaited())
            assert W1 in state.snapshots


async def test_node_is_known_as_its_agent_published_it():
    async with watching(first=report("w1", pf(foreign=[5]), held={"u": 100})) as w:
        facts = w.state.facts(W1)
        assert facts.generation == "epoch.1"
        assert facts.reported.keys() == {"u"}
        await w.w1.say(report("w1", generation=2))
        await until(lambda: w.state.facts(W1).generation == "epoch.2")
        assert w.states.counts.changed == 2


async def test_lease_of_a_block_of_addresses_is_of_no_node():
    async with watching(first=report("w1")) as w:
        renewals = w.states.counts.renewals
        block = LeaseView(
            namespace=NAMESPACE, name="addresses.10-56-0-0.16.24.7", holder="w1", duration_s=600
        )
        await w.watches.real.write_lease(block)
        await w.w1.renew()
        await until(lambda: w.states.counts.renewals > renewals)
        assert w.states.counts.renewals == renewals + 1


def test_lease_that_outlived_its_node_is_forgotten():
    """Clusters that grow and shrink name each node again; agents may renew while their node is deleted."""
    states = RdmaNodeInformer(ClusterState(), None, Clock(), stale_s=60, namespace=NAMESPACE)

    def lease(version: str) -> LeaseView:
        return LeaseView(namespace=NAMESPACE, name="w1", holder="epoch.1", duration_s=180, version=version)

    states.take_lease(Listed((lease("5"),)))
    states.take_lease(Changed(lease("6")))
    states.take_lease(Deleted(lease("7")))
    assert not states._nodes
    states.learn(W1, ())
    states.take_lease(Changed(lease("8")))
    states.take_lease(Deleted(lease("9")))
    assert list(states._nodes) == [W1]


async def test_node_that_publishes_too_often_is_taken_at_its_pace_and_others_are_not_kept_waiting():
    last = 2 * REPORTS_AT_ONCE
    async with watching(first=report("w1")) as w:
        for generation in range(2, last + 1):
            await w.w1.publish(report("w1", generation=generation))
        other = PublishedNode(w.watches.real, W2)
        await other.say(report("w2"))
        await w.readable(W1, W2)
        assert w.states.counts.changed == REPORTS_AT_ONCE + 1
        known = w.state.facts(W1).generation
        await w.w1.renew()
        w.clock.now += 1 / REPORTS_PER_S
        await until(lambda: w.state.facts(W1).generation != known)
        assert w.state.facts(W1).generation == f"epoch.{last}"


async def test_node_without_a_published_report_is_unreadable_for_that_reason():
    async with watching() as w:
        assert "publishes no RdmaNode" in w.state.why_unreadable(W1)
        await w.w1.say(report("w1"))
        await w.readable(W1)


async def test_status_counts_once_a_lease_says_that_it_holds():
    async with watching() as w:
        await w.w1.publish(report("w1"))
        await until(lambda: "no Lease says" in w.state.why_unreadable(W1))
        await w.w1.renew()
        await w.readable(W1)


async def test_node_that_is_not_heard_from_is_refused_with_the_age_and_comes_back():
    async with watching(first=report("w1")) as w:
        await w.passes(STALE_S)
        assert set(w.state.snapshots) == {W1}
        await w.passes(1)
        assert w.state.why_unreadable(W1) == "its agent has not reported for 60 s"
        assert (w.states.stale(), w.states.sources()) == (1, {("unreadable",): 1})
        await w.passes(35)
        assert w.state.why_unreadable(W1) == "its agent has not reported for 90 s"
        await w.w1.renew()
        await w.readable(W1)
        assert w.states.stale() == 0


@pytest.mark.parametrize(("duration_s", "until_s"), [(30, STALE_S), (180, 180), (10**9, 3 * 3600)])
async def test_node_is_not_refused_before_its_lease_has_ended(duration_s, until_s):
    """Agents say how long a renewal holds, but at most the longest time that can be configured counts."""
    async with watching() as w:
        w.w1.lease = LeaseView(namespace=NAMESPACE, name=W1, holder="", duration_s=duration_s)
        await w.w1.say(report("w1"))
        await w.readable(W1)
        await w.passes(until_s)
        assert set(w.state.snapshots) == {W1}
        await w.passes(1)
        assert "has not reported" in w.state.why_unreadable(W1)


async def test_change_alone_is_no_sign_that_it_holds():
    async with watching(first=report("w1")) as w:
        await w.passes(40)
        await w.w1.publish(report("w1", generation=2))
        await until(lambda: w.state.facts(W1).generation == "epoch.2")
        await w.passes(21)
        assert "has not reported" in w.state.why_unreadable(W1)


async def test_renewal_of_a_report_that_has_not_come_does_not_confirm_the_former_one():
    async with watching(first=report("w1")) as w:
        w.watches.statuses.clear()
        await w.w1.say(report("w1", generation=2, held={"u": 100}))
        await w.passes(STALE_S + 1)
        assert "has not reported" in w.state.why_unreadable(W1)
        w.watches.statuses.set()
        await until(lambda: w.states.counts.changed == 2)


async def test_node_whose_hardware_is_not_all_seen_is_unreadable_whatever_is_renewed():
    async with watching(first=report("w1")) as w:
        await w.w1.say(replace(report("w1", generation=2), unreadable=("PF x",)))
        await until(lambda: "PF x" in w.state.why_unreadable(W1))
        await w.w1.renew()
        await w.marked()
        assert not w.state.snapshots
        await w.w1.say(report("w1", generation=3))
        await w.readable(W1)


async def test_malformed_status_is_unreadable_with_the_field():
    async with watching(first=report("w1")) as w:
        await w.w1.client.write_status(
            type(w.w1.object)(node=W1, version=w.w1.object.version, status=b'{"generation":7}')
        )
        await until(lambda: "generation" in w.state.why_unreadable(W1))


async def test_node_is_forgotten_when_it_and_its_published_objects_are_gone():
    async with watching(first=report("w1")) as w:
        w.states.forget(W1)
        w.state.forget(W1)
        w.api.store.remove(RDMA_NODES, ("", "w1"))
        await until(lambda: not w.states.sources())
        assert not w.state.snapshots
        assert not w.state.unreadable


async def test_object_that_is_deleted_makes_its_node_unreadable():
    async with watching(first=report("w1")) as w:
        w.api.store.remove(RDMA_NODES, ("", "w1"))
        await until(lambda: "publishes no RdmaNode" in w.state.why_unreadable(W1))


async def test_node_made_anew_is_known_by_its_published_report():
    async with watching(first=report("w1")) as w:
        w.states.forget(W1)
        w.state.forget(W1)
        w.states.learn(W1, ())
        assert set(w.state.snapshots) == {W1}


async def test_lease_without_a_node_is_ignored():
    async with watching(first=report("w1")) as w:
        await PublishedNode(w.w1.client, NodeName("other"), generation="x.1").renew()
        await until(lambda: w.states.counts.renewals == 2)
        assert w.state.unreadable == {}
        assert w.states.sources() == {("watched",): 1}
        assert w.states.oldest_s() == 0


async def test_object_listed_again_unchanged_is_not_read_again():
    async with watching(first=report("w1")) as w:
        changed = w.states.counts.changed
        events = w.watches.real.follow_rdma_nodes()
        listed = await anext(events)
        w.states.on_event(ListPage(listed.items))
        w.states.on_event(Listed(()))
        await events.aclose()
        assert w.states.counts.changed == changed
        assert set(w.state.snapshots) == {W1}


async def test_node_that_is_not_listed_again_counts_as_without_a_report():
    async with watching(first=report("w1")) as w:
        w.states.stream()
        w.states.on_event(Listed(()))
        assert "publishes no RdmaNode" in w.state.why_unreadable(W1)


async def test_node_counts_as_without_a_report_when_a_restarted_list_does_not_hold_it():
    async with watching(first=report("w1")) as w:
        events = w.watches.real.follow_rdma_nodes()
        listed = await anext(events)
        w.states.stream()
        w.states.on_event(ListPage(listed.items))
        w.states.on_event(Listed((), is_anew=True))
        await events.aclose()
        assert "publishes no RdmaNode" in w.state.why_unreadable(W1)


async def test_interfaces_of_an_ended_pod_are_free_after_a_renewal_begun_after_its_end():
    async with watching(first=report("w1")) as w:
        w.promise()
        await w.passes(1)
        w.state.on_delete(P, w.clock.now)
        await w.passes(1)
        await w.w1.renew()
        await until(lambda: w.states.counts.renewals == 2)
        assert w.promised(), "what it says may have been looked up before the pod's end"
        await w.w1.renew()
        await until(lambda: not w.promised())


async def test_interfaces_of_an_ended_pod_are_not_free_by_late_renewals():
    async with watching(first=report("w1")) as w:
        w.promise()
        await w.passes(1)
        w.watches.leases.clear()
        for _ in range(3):
            await w.w1.renew()
        await w.passes(1)
        w.state.on_delete(P, w.clock.now)
        await w.passes(1)
        w.watches.leases.set()
        await until(lambda: w.states.counts.renewals >= 4)
        assert w.promised()
        await w.w1.renew()
        await w.w1.renew()
        await until(lambda: not w.promised())


async def test_interfaces_of_an_ended_pod_are_not_free_by_a_renewal_of_a_report_that_has_not_come():
    async with watching(first=report("w1")) as w:
        w.promise()
        await w.passes(1)
        w.state.on_delete(P, w.clock.now)
        await w.passes(1)
        w.watches.statuses.clear()
        await w.w1.say(report("w1", generation=2, held={P: 1000}))
        await w.w1.renew()
        await w.w1.renew()
        await w.marked()
        assert w.promised()
        w.watches.statuses.set()
        await until(lambda: not w.promised())
        assert w.state.facts(W1).reported.keys() == {P}


async def test_watches_are_begun_again_when_they_are_lost():
    async with watching(first=report("w1")) as w:
        for number in range(10_001):
            w.api.store.put(LEASES, {"metadata": {"namespace": "x", "name": "x"}, "spec": {"n": number}})
        await w.w1.say(report("w1", generation=2))
        await until(lambda: w.state.facts(W1).generation == "epoch.2")
