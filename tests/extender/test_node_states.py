"""The behaviour of every source of nodes' states: the same questions to `http` and to `crd`."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pytest
from msgspec.structs import replace

from extender.node_server import PF0, NodeServer, node_servers, pf, report
from extender.published import NAMESPACE, RDMA_NODES, LateWatches, PublishedNode
from extender.world import until
from k8s_rdma.core.placement import PlacedInterface
from k8s_rdma.core.types import NodeName, PciAddress, PodUid
from k8s_rdma.extender.http_poller import HttpPoller, NodePollConfig
from k8s_rdma.extender.node_cache import ClusterState
from k8s_rdma.extender.rdmanode_informer import RdmaNodeInformer
from k8s_rdma.extender.reservation import Reservation, Stage
from k8s_rdma.kube.client import Client
from k8s_rdma_demo.cluster.api import ApiConfig, serving_api
from lightkube_client import lightkube_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from k8s_rdma.extender.node_source import NodeSource
    from k8s_rdma.wire.report import NodeReport

pytestmark = pytest.mark.anyio

W1, W2 = NodeName("w1"), NodeName("w2")
P = PodUid("p")
DEADLINE_S = 120
SILENT_S = 61.0


class Clock:
    """Time that passes only by the test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Source(Protocol):
    """Two nodes, w1 and w2, with known states, and the source of these."""

    state: ClusterState
    states: NodeSource
    clock: Clock

    async def say(self, node: NodeName, report: NodeReport) -> None:
        """From now on the node's report is this."""

    async def settle(self) -> None:
        """Wait until the nodes' reports have come; time passes a little before, and in between."""

    async def silence(self, node: NodeName) -> None:
        """The node is not heard from any more, and it is the longest time that is tolerated later."""

    async def speak(self, node: NodeName) -> None:
        """It is heard from again."""


@dataclass
class Http:
    state: ClusterState
    states: HttpPoller
    clock: Clock
    nodes: dict[str, NodeServer]

    async def say(self, node: NodeName, report: NodeReport) -> None:
        self.nodes[node].report = report

    async def settle(self) -> None:
        self.clock.now += 1
        await self.states.refresh([W1, W2], newer_than=self.clock.now)

    async def silence(self, node: NodeName) -> None:
        self.nodes[node].raw = b""
        self.clock.now += SILENT_S

    async def speak(self, node: NodeName) -> None:
        self.nodes[node].raw = None


@dataclass
class Crd:
    state: ClusterState
    states: RdmaNodeInformer
    clock: Clock
    watches: LateWatches
    nodes: dict[NodeName, PublishedNode]
    silent: set[NodeName]

    async def say(self, node: NodeName, report: NodeReport) -> None:
        await self.nodes[node].publish(report)

    async def settle(self) -> None:
        self.clock.now += 1
        asked = self.watches.asked
        await until(lambda: self.watches.asked >= asked + 3)
        for name in self.nodes.keys() - self.silent:
            node = self.nodes[name]
            for _ in range(2):
                renewed = self.states.counts.renewals
                await node.renew()
                await until(lambda before=renewed: self.states.counts.renewals > before)
        await self.states.refresh([W1, W2], newer_than=self.clock.now)

    async def silence(self, node: NodeName) -> None:
        self.silent.add(node)
        self.clock.now += SILENT_S

    async def speak(self, node: NodeName) -> None:
        self.silent.discard(node)


@asynccontextmanager
async def http() -> AsyncIterator[Source]:
    clock, state = Clock(), ClusterState()
    async with (
        node_servers("w1", "w2") as (port, nodes),
        HttpPoller(state, NodePollConfig(port=port, timeout_s=5.0), clock) as states,
    ):
        for node in nodes.values():
            states.learn(NodeName(node.name), (node.address,))
        yield Http(state, states, clock, nodes)


@asynccontextmanager
async def crd() -> AsyncIterator[Source]:
    clock, state = Clock(), ClusterState()
    async with (
        serving_api(ApiConfig(custom_resources=(RDMA_NODES,))) as server,
        lightkube_client(server.url) as lightkube,
    ):
        client = Client(lightkube, silence_s=DEADLINE_S)
        nodes = {name: PublishedNode(client, name) for name in (W1, W2)}
        for node in nodes.values():
            await node.say(report(node.name))
        watches = LateWatches(client)
        async with RdmaNodeInformer(
            state, watches, clock, stale_s=60, namespace=NAMESPACE, look_s=0.005
        ) as states:
            for name in nodes:
                states.learn(name, ())
            yield Crd(state, states, clock, watches, nodes, set())


@pytest.fixture(params=[http, crd])
def source(request):
    """`async with source() as s`: all is known, by a deadline."""

    @asynccontextmanager
    async def start() -> AsyncIterator[Source]:
        made: Callable[[], AbstractAsyncContextManager[Source]] = request.param
        async with asyncio.timeout(DEADLINE_S), made() as found:
            await found.settle()
            await until(lambda: not found.states.awaited())
            assert set(found.state.snapshots) == {W1, W2}
            yield found

    return start


async def test_state_is_that_of_the_report(source):
    async with source() as s:
        await s.say(W1, report("w1", pf(vfs=8, foreign=[5]), generation=2, held={"u": 100}))
        await s.settle()
        facts = s.state.facts(W1)
        assert (facts.generation, facts.inventory.pfs[0].capacity_vfs) == ("epoch.2", 8)
        assert facts.reported.keys() == {"u"}
        assert facts.foreign[PciAddress(PF0)].mbps == 5
        assert s.state.facts(W2).reported == {}


async def test_node_that_does_not_see_all_of_its_hardware_is_unreadable_until_it_does(source):
    async with source() as s:
        await s.say(W1, replace(report("w1", generation=2), unreadable=("PF x: gone",)))
        await s.settle()
        assert set(s.state.snapshots) == {W2}
        assert "not all of its hardware could be looked at: PF x: gone" in s.state.why_unreadable(W1)
        await s.say(W1, report("w1", generation=3))
        await s.settle()
        assert set(s.state.snapshots) == {W1, W2}


async def test_node_whose_agent_is_down_is_unreadable(source):
    async with source() as s:
        await s.say(W1, replace(report("w1", generation=2), ledger="unavailable"))
        await s.settle()
        assert "its agent is down" in s.state.why_unreadable(W1)


async def test_node_with_a_meaningless_report_is_unreadable_with_the_reason(source):
    async with source() as s:
        await s.say(W1, report("w1", pf(link_type="token-ring"), generation=2))
        await s.settle()
        assert "token-ring" in s.state.why_unreadable(W1)


async def test_node_that_is_not_heard_from_is_unreadable_with_the_time_and_comes_back(source):
    async with source() as s:
        await s.silence(W1)
        await s.settle()
        assert set(s.state.snapshots) == {W2}
        assert " s" in s.state.why_unreadable(W1)
        await s.speak(W1)
        s.clock.now += 20
        await s.settle()
        assert set(s.state.snapshots) == {W1, W2}


async def test_node_that_is_deleted_is_neither_readable_nor_unreadable(source):
    async with source() as s:
        s.states.forget(W1)
        s.state.forget(W1)
        assert set(s.state.snapshots) == {W2}
        assert not s.state.unreadable


async def test_polling_ends_for_unknown_nodes(source):
    async with source() as s:
        await s.states.request_report(NodeName("w9"))
        await s.states.refresh([NodeName("w9")], newer_than=s.clock.now)
        assert NodeName("w9") not in s.state.snapshots


async def test_interfaces_of_an_ended_pod_are_free_once_the_node_was_read_after_its_end(source):
    async with source() as s:
        promise(s)
        await s.settle()
        assert s.state.reservation(W1, P)
        s.state.on_delete(P, s.clock.now)
        assert s.state.reservation(W1, P)
        await s.settle()
        await until(lambda: s.state.reservation(W1, P) is None)
        assert used(s) == 0


async def test_interfaces_of_an_ended_pod_count_while_the_node_reports_them(source):
    async with source() as s:
        promise(s)
        await s.say(W1, report("w1", generation=2, held={P: 1000}))
        await s.settle()
        s.state.on_delete(P, s.clock.now)
        await s.settle()
        assert used(s) == 1
        await s.say(W1, report("w1", generation=3))
        await s.settle()
        assert used(s) == 0


def promise(s: Source) -> None:
    placed = PlacedInterface(pf=PciAddress(PF0), min_tx_rate_mbps=1000, max_tx_rate_mbps=0)
    s.state.reserve(
        W1, P, Reservation(interfaces=(placed,), pod="default/p", created_at=s.clock.now, stage=Stage.BOUND)
    )


def used(s: Source) -> int:
    return sum(used.vfs for used in s.state.snapshots[W1].used.values())
