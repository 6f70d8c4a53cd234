"""Nodes followed by long poll: changes come by themselves, and a state is never older than it seems."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from extender.node_server import PF0, node_servers, pf, report
from extender.real_nodes import RealNode, real_nodes
from extender.serving import FILTER, served
from extender.world import cluster, until
from k8s_rdma.core.placement import PlacedInterface
from k8s_rdma.core.types import NodeName, PciAddress, PodUid
from k8s_rdma.extender.http_poller import HttpNode, HttpPoller, NodePollConfig, NodePollContext
from k8s_rdma.extender.node_cache import ClusterState
from k8s_rdma.extender.reservation import Reservation, Stage
from k8s_rdma.http_server import listen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


pytestmark = pytest.mark.anyio

W1, W2 = NodeName("w1"), NodeName("w2")
UID = PodUid("p")
LONG_AGO = float("-inf")


class Following:
    """Node states that follow real servers; time is the event loop's plus the machine's sleep."""

    def __init__(self, port: int, nodes: dict[str, Any], **how: Any) -> None:
        awake = asyncio.get_running_loop().time
        self.slept_s = 0.0
        self.clock = lambda: awake() + self.slept_s
        self.state = ClusterState()
        self.nodes = nodes
        self.port = port
        how = {"watches": 8, "timeout_s": 5.0, "pause_s": 0.01, "retry_s": 0.05, "hold_s": 300.0, **how}
        self.states = HttpPoller(self.state, NodePollConfig(port=port, **how), self.clock)

    def watched(self, *names: NodeName) -> bool:
        return self.states.sources()["watched",] == len(names or self.nodes)

    def used_vfs(self, node: NodeName = W1) -> int | None:
        situation = self.state.snapshots.get(node)
        return None if situation is None else sum(used.vfs for used in situation.used.values())

    def asked(self) -> int:
        """Questions that had an answer."""
        return self.states.counts.changed + self.states.counts.unchanged - self.states.counts.reports

    async def refresh(self, *nodes: NodeName) -> None:
        await self.states.refresh(nodes or [W1], newer_than=self.clock())


@asynccontextmanager
async def following(*names: str, **how: Any) -> AsyncIterator[Following]:
    served_by = {key: how.pop(key) for key in ("tls", "tokens") if key in how}
    async with asyncio.timeout(120), real_nodes(*names, **served_by) as (port, nodes):
        f = Following(port, nodes, **how)
        async with f.states:
            for node in nodes.values():
                f.states.learn(NodeName(node.name), (node.address,))
            yield f


async def test_change_arrives_without_a_poll():
    async with following("w1") as f:
        await until(f.watched)
        f.nodes["w1"].holds(p=100, q=200)
        await until(lambda: f.used_vfs() == 2)
        assert f.states.counts.reports == 1


async def test_node_is_polled_after_the_machine_slept_for_longer_than_a_long_poll():
    async with following("w1", hold_s=20.0) as f:
        await until(f.watched)
        asked = f.asked()
        f.slept_s = 24.0
        await f.refresh()
        assert f.asked() == asked
        f.slept_s = 60.0
        await f.refresh()
        assert f.asked() == asked + 1


async def test_followed_node_is_not_polled_for_a_filter():
    async with following("w1") as f:
        await until(f.watched)
        asked = f.asked()
        for _ in range(10):
            await f.refresh()
        assert f.asked() == asked


async def test_followed_node_is_polled_if_the_latest_report_is_required():
    async with following("w1") as f:
        await until(f.watched)
        asked = f.asked()
        await f.states.request_report(W1)
        assert f.asked() == asked + 1
        assert f.watched()


async def test_change_after_an_unchanged_poll_is_known():
    async with following("w1") as f:
        await until(f.watched)
        await f.states.request_report(W1)
        f.nodes["w1"].holds(p=100)
        await until(lambda: f.used_vfs() == 1)


async def test_long_poll_that_begins_while_a_question_is_under_way_leaves_it_its_connection():
    async with asyncio.timeout(120), node_servers("w1") as (port, nodes):
        state, server = ClusterState(), nodes["w1"]
        server.holds_polls = True
        clock, slots = asyncio.get_running_loop().time, asyncio.Semaphore()
        asking = NodePollConfig(port=port, timeout_s=5.0, hold_s=0.2)
        node = HttpNode(W1, NodePollContext(state=state, config=asking, clock=clock, slots=slots))
        node.move((server.address,))
        await node.request_report()
        server.answering.clear()
        question = asyncio.create_task(node.request_report())
        await until(lambda: server.asked == 2)
        poll = asyncio.create_task(node.follow())
        await until(lambda: server.asked == 3)
        server.answering.set()
        await question
        assert node.readable()
        poll.cancel()
        await asyncio.wait([poll])
        node.close()


async def test_long_poll_that_is_over_without_a_change_begins_again():
    async with following("w1", hold_s=0.05) as f:
        await until(f.watched)
        unchanged = f.states.counts.unchanged
        await until(lambda: f.states.counts.unchanged > unchanged + 3)
        f.nodes["w1"].holds(p=100)
        await until(lambda: f.used_vfs() == 1)
        assert f.states.counts.reports == 1


async def test_interfaces_of_an_ended_pod_are_free_when_its_node_reports_so_although_polled_before():
    async with following("w1") as f:
        f.nodes["w1"].holds(p=100)
        await until(lambda: f.watched() and f.used_vfs() == 1)
        f.state.reserve(W1, UID, reservation(f.clock()))
        f.state.on_delete(UID, f.clock())
        f.nodes["w1"].holds()
        await until(lambda: f.used_vfs() == 0)
        assert not f.state.ending


@pytest.mark.parametrize("watches", [0, 8])
async def test_node_is_polled_when_a_pod_ended_that_it_no_longer_holds(watches):
    async with following("w1", watches=watches) as f:
        await f.refresh()
        f.state.reserve(W1, UID, reservation(f.clock()))
        f.state.on_delete(UID, f.clock())
        assert f.used_vfs() == 1
        await f.states.refresh([W1], newer_than=LONG_AGO)
        assert f.used_vfs() == 0


async def test_node_that_timed_out_is_left_alone_though_a_pod_ended_there():
    async with asyncio.timeout(120), node_servers("w1") as (port, nodes):
        f = Following(port, nodes, watches=0, timeout_s=0.05, retry_s=3600.0)
        async with f.states:
            f.states.learn(W1, (nodes["w1"].address,))
            await f.refresh()
            f.state.reserve(W1, UID, reservation(f.clock()))
            f.state.on_delete(UID, f.clock())
            nodes["w1"].answering.clear()
            for _ in range(3):
                await f.refresh()
            assert nodes["w1"].asked == 2


def reservation(at: float) -> Reservation:
    placed = PlacedInterface(pf=PciAddress(PF0), min_tx_rate_mbps=100, max_tx_rate_mbps=0)
    return Reservation(interfaces=(placed,), pod="default/p", created_at=at, stage=Stage.BOUND)


async def test_one_connection_does_for_a_node_that_is_followed():
    async with following("w1", "w2") as f:
        await until(f.watched)
        for node in f.nodes.values():
            node.holds(p=1)
        await until(lambda: f.watched() and f.used_vfs(W1) == f.used_vfs(W2) == 1)
        assert [node.connections() for node in f.nodes.values()] == [1, 1]


async def test_limited_number_of_nodes_is_followed_and_the_rest_is_polled():
    async with following("w1", "w2", watches=1, again_s=3600.0) as f:
        await until(lambda: f.states.sources() == {("watched",): 1, ("asked",): 1})
        for node in f.nodes.values():
            node.holds(p=1)
        await f.refresh(W1, W2)
        await until(lambda: f.used_vfs(W1) == f.used_vfs(W2) == 1)


async def test_server_without_long_polls_is_polled():
    async with asyncio.timeout(120), node_servers("w1") as (port, nodes):
        f = Following(port, nodes, again_s=3600.0)
        async with f.states:
            f.states.learn(W1, (nodes["w1"].address,))
            await until(lambda: nodes["w1"].asked == 3)  # a question, a long poll, the question after it
            assert f.states.sources() == {("asked",): 1}
            nodes["w1"].holds(p=1)
            await f.refresh()
            assert f.used_vfs() == 1


async def test_node_that_changes_all_the_time_is_let_alone_for_a_while_after_each_change():
    async with asyncio.timeout(120), node_servers("w1") as (port, nodes):
        nodes["w1"].restless = True
        f = Following(port, nodes, gap_s=3600.0)
        async with f.states:
            f.states.learn(W1, (nodes["w1"].address,))
            await until(lambda: nodes["w1"].asked == 5)  # a question, and twice a long poll with another one
            for _ in range(5):
                await f.refresh()
            assert (nodes["w1"].asked, f.states.counts.reports) == (10, 2)


async def test_server_that_ends_is_lost_and_followed_again_when_it_is_back():
    async with following("w1", again_s=0.01) as f:
        node: RealNode = f.nodes["w1"]
        await until(f.watched)
        await node.stop()
        await until(lambda: W1 in f.state.unreadable)
        assert "last report 0 s ago" in f.state.why_unreadable(W1)
        with listen(node.address, f.port) as listener:
            await node.start(listener)
            node.holds(p=1)
            await until(lambda: f.watched() and f.used_vfs() == 1)
            node.holds()
            await until(lambda: f.used_vfs() == 0)
            await node.stop()


async def test_node_whose_agent_is_away_is_unreadable_for_its_own_reason_until_it_is_back():
    async with following("w1") as f:
        await until(f.watched)
        f.nodes["w1"].lose_agent()
        await until(lambda: W1 in f.state.unreadable)
        why = f.state.why_unreadable(W1)
        assert (
            "HTTP 503: the agent has not answered since 2026-01-01T00:00:00+00:00: its socket is gone" in why
        )
        f.nodes["w1"].holds(p=1)
        await until(lambda: f.used_vfs() == 1)
        await until(f.watched)


async def test_node_that_falls_silent_is_lost_when_its_long_poll_should_have_been_answered():
    async with asyncio.timeout(120), node_servers("w1") as (port, nodes):
        nodes["w1"].holds_polls = True
        f = Following(port, nodes, hold_s=0.2, timeout_s=0.1)
        async with f.states:
            f.states.learn(W1, (nodes["w1"].address,))
            await until(f.watched)
            nodes["w1"].answering.clear()
            since = f.clock()
            await until(lambda: W1 in f.state.unreadable)
            assert f.clock() - since < 2.0
            assert "no answer in 0.1 s; last report 0 s ago" in f.state.why_unreadable(W1)


async def test_node_that_moved_is_followed_at_its_new_address():
    async with following("w1", "w2") as f:
        await until(f.watched)
        f.states.forget(W2)
        f.state.forget(W2)
        f.nodes["w2"].show(report("w1", pf(), held={"p": 1}))
        f.states.learn(W1, (f.nodes["w2"].address,))
        await until(lambda: f.watched(W1) and f.used_vfs() == 1)
        await until(lambda: f.nodes["w1"].connections() == 0)


async def test_addresses_of_requests_are_used_again_if_they_are_the_only_source():
    async with following("w1", "w2", requests_tell=True) as f:
        f.states.suggest(W1, lambda: (f.nodes["w1"].address,))
        f.states.forget(W2)
        await until(lambda: f.watched(W1))
        f.nodes["w2"].show(report("w1", pf(), held={"p": 1}))
        f.states.suggest(W1, lambda: (f.nodes["w2"].address,))
        await until(lambda: f.used_vfs() == 1)
        f.states.suggest(W1, lambda: ())  # names only: no new address
        await until(lambda: f.watched(W1))


async def test_wait_ends_once_every_node_was_polled():
    async with following() as f:
        assert not f.states.awaited()  # nodes are not listed yet, which is not the end
        f.states.learn(W1, ("127.0.9.8",))
        f.states.learn(W2, ("127.0.9.9",))
        assert f.states.awaited() == 2
        await until(lambda: not f.states.awaited())
        assert set(f.state.unreadable) == {W1, W2}
        f.states.learn(NodeName("w3"), ("127.0.9.9",))
        assert not f.states.awaited()


async def test_age_is_that_of_the_readable_node_silent_for_longest():
    async with following("w1") as f:
        assert f.states.oldest_s() == 0
        await until(f.watched)
        before = f.states.oldest_s()
        await asyncio.sleep(0.05)
        assert f.states.oldest_s() >= before + 0.04


@pytest.mark.parametrize("seed", range(5))
async def test_last_state_is_known_in_the_end_whatever_came_together(seed):
    chance = random.Random(seed)
    async with following("w1", hold_s=0.02) as f:
        for _ in range(60):
            held = {f"p{i}": 1 for i in range(chance.randrange(4))}
            match chance.randrange(4):
                case 0:
                    f.nodes["w1"].holds(**held)
                case 1:
                    asking = asyncio.create_task(f.states.request_report(W1))
                    f.nodes["w1"].holds(**held)
                    await asking
                case 2:
                    f.nodes["w1"].lose_agent()
                case 3:
                    await asyncio.sleep(chance.random() * 0.01)
        f.nodes["w1"].holds(last=1)
        await f.states.request_report(W1)
        assert f.used_vfs() == 1
        for _ in range(20):
            await asyncio.sleep(0.002)
            assert f.used_vfs() == 1


async def test_served_extender_filters_by_reports_that_nodes_sent():
    settings = {"max_age_s": 3600.0, "stale_s": 7200.0, "node_watches": 8}
    async with asyncio.timeout(120), cluster() as c, real_nodes("w1", "w2") as (port, nodes):
        for node in nodes.values():
            await c.create_node(node.name, node.address)
        async with served(c, node_port=port, **settings) as s:
            await s.ready()
            await c.create_pod("p", 5_000)
            args = c.args("p", "w1", "w2")
            while (await s.post(FILTER, args)).json()["NodeNames"] != ["w1", "w2"]:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            nodes["w1"].holds(other=9_000)
            while (await s.post(FILTER, args)).json()["NodeNames"] != ["w2"]:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            figures = (await s.http.get("/metrics")).text
        assert 'k8s_rdma_extender_nodes{source="watched"} 2.0\n' in figures
