"""Traffic of now, read from nodes for open pages: shared, bounded, and each node for itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.config.web import NodesEndpoint
from k8s_rdma.core.traffic import MeanRates, ProgrammedRates
from k8s_rdma.web.node_traffic import MAX_BYTES, MAX_NODES, InterfaceTraffic, PodOnPf
from k8s_rdma.web.open_pages import WATCH_S
from web.node_servers import PCI, PF, Node, Turns, Vf, metrics, node_server, raw_server, reading

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

HONEST, HOSTILE = "127.0.0.1", "127.0.0.2"
POD = PodOnPf(PCI, "research", "a")
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n"


def sent(count: int, received: int = 0) -> str:
    return metrics("w1", Vf(1, "research/a", "rdma0", count, received))


def interface(rates: MeanRates | None) -> tuple[InterfaceTraffic, ...]:
    return (InterfaceTraffic("rdma0", ProgrammedRates(20_000, 40_000), rates),)


async def test_rates_are_known_from_the_second_sample_on_and_names_from_the_first():
    turns, node = Turns(), Node(sent(1_000_000))
    async with node_server(HONEST, node) as port, reading(NodesEndpoint(port=port), turns) as traffic:
        assert not traffic.watch({"w1": (HONEST,)}, party="a")["w1"].has_rates
        waiting = await turns.read()
        first = traffic.watch({"w1": (HONEST,)}, party="a")["w1"]
        node.text = sent(16_000_000, 30_000_000)
        await turns.again(waiting)
        second = traffic.watch({"w1": (HONEST,)}, party="a")["w1"]
    assert (first.has_rates, first.interfaces, first.sent_mbps) == (False, {POD: interface(None)}, {PF: None})
    assert second.interfaces == {POD: interface(MeanRates(8.0, 16.0))}
    assert second.sent_mbps == {PF: 8.0}
    assert second.has_rates


async def test_counter_that_began_anew_has_no_rate_until_its_next_sample():
    turns, node = Turns(), Node(sent(9_000_000))
    async with node_server(HONEST, node) as port, reading(NodesEndpoint(port=port), turns) as traffic:
        traffic.watch({"w1": (HONEST,)}, party="a")
        waiting = await turns.read()
        node.text = sent(1_000_000)
        waiting = await turns.again(waiting)
        reset = traffic.watch({"w1": (HONEST,)}, party="a")["w1"]
        node.text = sent(2_875_000)
        await turns.again(waiting)
        later = traffic.watch({"w1": (HONEST,)}, party="a")["w1"]
    assert (reset.interfaces[POD], reset.sent_mbps) == (interface(None), {PF: None}), "unknown, and no zero"
    assert later.interfaces[POD] == interface(MeanRates(1.0, 0.0))


async def test_node_is_read_once_for_all_viewers_and_no_more_without_viewers():
    turns, node = Turns(), Node(sent(0))
    async with node_server(HONEST, node) as port, reading(NodesEndpoint(port=port), turns) as traffic:
        for _ in range(100):
            traffic.watch({"w1": (HONEST,)}, party="a")
        waiting = await turns.read()
        assert len(node.tokens) == 1
        waiting = await turns.again(waiting, after_s=WATCH_S - 1)
        assert len(node.tokens) == 2
        traffic.watch({"w1": (HONEST,)}, party="a")
        waiting = await turns.again(waiting)
        assert len(node.tokens) == 3
        turns.now += WATCH_S
        waiting[0].set_result(None)
        await asyncio.sleep(0)
        assert not traffic.watch({"w1": (HONEST,)}, party="a")["w1"].interfaces, (
            "what is old is not shown as if it were new"
        )
        await turns.read()
        assert len(node.tokens) == 4


async def test_more_nodes_than_the_limit_are_not_read_and_not_taken_for_read():
    turns = Turns()
    async with reading(NodesEndpoint(), turns) as traffic:
        found = traffic.watch({f"w{index}": () for index in range(MAX_NODES + 1)}, party="a")
        assert found[f"w{MAX_NODES}"].failure == (
            f"pages that are open have {MAX_NODES} nodes read, which is the limit; it is read when some close"
        )
        assert not any(found[f"w{index}"].failure for index in range(MAX_NODES))
        await turns.read(MAX_NODES)
        assert (
            traffic.watch({"w0": ()}, party="a")["w0"].failure
            == "the extender knows no address of its server"
        )


async def test_viewer_with_all_places_leaves_others_theirs():
    turns = Turns()
    async with reading(NodesEndpoint(), turns) as traffic:
        all_places = {f"w{index}": () for index in range(MAX_NODES + 30)}
        traffic.watch(all_places, party="greedy")
        waiting = await turns.read(MAX_NODES)
        page = {f"x{index}": () for index in range(24)} | {"w63": ()}
        no_address = "the extender knows no address of its server"
        assert {found.failure for found in traffic.watch(page, party="a").values()} == {"", no_address}
        await turns.read(24)
        assert sum(turn.cancelled() for turn in waiting) == 24, "nodes that make room are read no more"
        again = traffic.watch(all_places, party="greedy")
        assert sum(found.failure == no_address for found in again.values()) == MAX_NODES - 24
        stayed = traffic.watch(page, party="a")
        assert {found.failure for found in stayed.values()} == {no_address}, "within its share, a page stays"
        third = {f"y{index}": () for index in range(40)}
        traffic.watch(third, party="b")
        shares = [
            sum("limit" not in found.failure for found in traffic.watch(wanted, party=party).values())
            for wanted, party in ((all_places, "greedy"), (page, "a"), (third, "b"))
        ]
    assert sum(shares) - 1 <= MAX_NODES, "w63 is of two"
    assert min(shares) >= MAX_NODES // 3 - 1


async def test_node_that_a_viewer_with_few_wants_too_makes_no_room():
    turns = Turns()
    async with reading(NodesEndpoint(), turns) as traffic:
        traffic.watch({"shared": ()}, party="modest")
        traffic.watch({"shared": ()} | {f"w{index}": () for index in range(MAX_NODES)}, party="greedy")
        await turns.read(MAX_NODES)
        traffic.watch({f"x{index}": () for index in range(MAX_NODES)}, party="second")
        assert traffic.watch({"shared": ()}, party="modest")["shared"].failure.startswith("the extender")


async def test_nodes_of_closed_pages_make_room_at_once():
    turns = Turns()
    async with reading(NodesEndpoint(), turns) as traffic:
        traffic.watch({f"w{index}": () for index in range(MAX_NODES)}, party="a")
        await turns.read(MAX_NODES)
        turns.now += WATCH_S
        found = traffic.watch({f"x{index}": () for index in range(MAX_NODES)}, party="a")
        assert {each.failure for each in found.values()} == {""}
        await turns.read(MAX_NODES)


async def test_node_is_read_at_its_next_address_after_a_failure_with_the_token(tmp_path: Path):
    (tmp_path / "tokens").write_text("secret\n")
    turns, node = Turns(), Node(sent(0))
    async with node_server(HONEST, node) as port:
        endpoint = NodesEndpoint(port=port, token_file=str(tmp_path / "tokens"))
        async with reading(endpoint, turns) as traffic:
            addresses = {"w1": ("127.0.0.9", HONEST)}
            traffic.watch(addresses, party="a")
            waiting = await turns.read()
            assert traffic.watch(addresses, party="a")["w1"].failure.startswith("127.0.0.9: ")
            await turns.again(waiting)
            assert traffic.watch(addresses, party="a")["w1"].interfaces
    assert node.tokens == [b"Bearer secret"]


LIES = {
    "refusal": (metrics("w2"), 401),
    "name of another node": (metrics("w1", Vf(1, "research/a", "rdma0")), 200),
    "negative counter": (metrics("w2", Vf(1, "research/a", "rdma0", -5)), 200),
    "no number": (metrics("w2", Vf(1, "research/a", "rdma0", "NaN")), 200),
    "infinite counter": (metrics("w2", Vf(1, "research/a", "rdma0", "+Inf")), 200),
    "counter beyond 64 bits": (metrics("w2", Vf(1, "research/a", "rdma0", 10**30)), 200),
    "sample of the future": (metrics("w2", Vf(1, "research/a", "rdma0"), age_s=-1e9), 200),
    "no sample": ("", 200),
    "no metrics": ("\x00{{{" * 1000, 200),
    "too many VFs": (metrics("w2", *(Vf(index, "research/a", "rdma0") for index in range(2_000))), 200),
}


@pytest.mark.parametrize("lie", list(LIES))
async def test_node_that_lies_has_no_figures_and_others_have_theirs(lie: str):
    turns, honest, liar = Turns(), Node(sent(0)), Node(*LIES[lie])
    both = {"w1": (HONEST,), "w2": (HOSTILE,)}
    async with (
        node_server(HONEST, honest) as port,
        node_server(HOSTILE, liar, port=port),
        reading(NodesEndpoint(port=port), turns) as traffic,
    ):
        traffic.watch(both, party="a")
        waiting = await turns.read(2)
        honest.text = sent(15_000_000)
        await turns.again(waiting)
        found = traffic.watch(both, party="a")
    assert (found["w2"].interfaces, found["w2"].has_rates) == ({}, False)
    assert found["w2"].failure
    assert len(found["w2"].failure) < 300
    assert found["w1"].sent_mbps == {PF: 8.0}


HOSTILE_SERVERS: dict[str, tuple[bytes, bytes, float, tuple[str, ...]]] = {
    "drip": (HEAD, b"k", 0.01, ("TimeoutError",)),
    "endless": (HEAD, b"k8s_rdma_problems 0.0\n" * 3000, 0, (f"longer than {MAX_BYTES} bytes",)),
    "endless line": (HEAD, b"x" * 65_536, 0, ("a line of more than",)),
    "endless head": (b"HTTP/1.1 200 OK\r\n", b"x-field: y\r\n" * 5000, 0, ("",)),
    "redirect": (
        f"HTTP/1.1 302 Found\r\nlocation: http://{HONEST}/metrics\r\ncontent-length: 0\r\n\r\n".encode(),
        b"",
        0,
        ("HTTP 302",),
    ),
    "no HTTP": (b"hello\r\n\r\n", b"", 0, ("",)),
    "silence": (b"", b"", 0, ("TimeoutError", "timed out", "ReadTimeout")),
}


@pytest.mark.parametrize("kind", list(HOSTILE_SERVERS))
async def test_node_that_is_slow_or_endless_holds_no_other_back(kind: str):
    head, repeated, pause_s, failures = HOSTILE_SERVERS[kind]
    turns, honest = Turns(), Node(sent(0))
    both = {"w2": (HOSTILE,), "w1": (HONEST,)}
    async with (
        node_server(HONEST, honest) as port,
        raw_server(HOSTILE, port, head, repeated, pause_s),
        reading(NodesEndpoint(port=port), turns, timeout_s=2) as traffic,
    ):
        traffic.watch(both, party="a")
        waiting = await turns.read(2)
        assert traffic.watch(both, party="a")["w1"].interfaces
        found = traffic.watch(both, party="a")["w2"]
        assert not found.interfaces
        assert found.failure
        assert any(text in found.failure for text in failures), found.failure
        honest.text = sent(15_000_000)
        await turns.again(waiting)
        assert traffic.watch(both, party="a")["w1"].sent_mbps == {PF: 8.0}


async def test_node_is_read_while_another_one_has_not_answered():
    turns, honest = Turns(), Node(sent(0))
    both = {"w2": (HOSTILE,), "w1": (HONEST,)}
    async with (
        node_server(HONEST, honest) as port,
        raw_server(HOSTILE, port, b"", b""),
        reading(NodesEndpoint(port=port), turns) as traffic,
    ):
        traffic.watch(both, party="a")
        waiting = await turns.read()
        honest.text = sent(15_000_000)
        await turns.again(waiting)
        found = traffic.watch(both, party="a")
    assert found["w1"].sent_mbps == {PF: 8.0}
    assert (found["w2"].failure, found["w2"].has_rates) == ("", False), "it is still being asked"
