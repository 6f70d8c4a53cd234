"""Texts of refusals: each node's figures while they are few, one text for a cause beyond."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.node_server import PF0, PF1, pf, report
from extender.world import world
from k8s_rdma.core.inventory import Inventory, Pf
from k8s_rdma.core.pf_use import Used
from k8s_rdma.core.refusal import Detail
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.core.types import NodeName, PciAddress
from k8s_rdma.extender.fit_cache import FitCache
from k8s_rdma.extender.node_cache import NodeSnapshot
from k8s_rdma.extender.refusal_texts import MOST_TEXTS
from k8s_rdma.extender.verdicts import Infeasible, Shortage

if TYPE_CHECKING:
    from k8s_rdma.wire.report import PfReport

SENTENCE = "RDMA Scheduler Extension: Node did not have enough free RDMA resources."
UNREADABLE = "RDMA Scheduler Extension: Unable to collect information on available RDMA resources for node."
NODES = [f"w{number}" for number in range(1, MOST_TEXTS + 2)]

USES = st.lists(st.builds(Used, st.integers(0, 4), st.integers(0, 100)), min_size=2, max_size=2)
LINKS = st.lists(st.sampled_from([None, 50, 100]), min_size=2, max_size=2)


def situation(links: list[int | None], uses: list[Used]) -> NodeSnapshot:
    pfs = [
        Pf(name=f"p{at}", pci=PciAddress(f"0000:0{at}:00.0"), capacity_vfs=4, link_mbps=link)
        for at, link in enumerate(links)
    ]
    used = {each.pci: use for each, use in zip(pfs, uses, strict=True)}
    return NodeSnapshot(Inventory(node=NodeName("w"), pfs=tuple(pfs)), used)


@given(
    st.lists(st.sampled_from([0, 20, 60, 100]), min_size=1, max_size=5),
    LINKS,
    st.lists(USES, min_size=2, max_size=6),
    st.sampled_from(Detail),
)
def test_nodes_of_one_shortage_have_equal_sentences_when_their_figures_are_equal(
    rates: list[int], links: list[int | None], uses: list[list[Used]], detail: Detail
):
    wanted = Request(tuple(InterfaceRequest(min_tx_rate_mbps=rate) for rate in rates))
    fit_cache = FitCache(detail=detail)
    first = situation(links, uses[0])
    nodes = [first, *(NodeSnapshot(first.inventory, situation(links, use).used) for use in uses[1:])]
    fit_cache.count(wanted, nodes)
    texts: dict[tuple[Shortage, tuple[int, ...]], str] = {}
    for node in nodes:
        shortage = fit_cache.verdicts(wanted).get(node)
        if isinstance(shortage, Shortage):
            text = shortage.on(node).text
            assert texts.setdefault((shortage, shortage.figures(node)), text) == text
            assert fit_cache.cached_verdict(wanted, node) == Infeasible(
                shortage.reason, text, cause=shortage.on(node).cause
            )


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("pfs", "wanted", "held", "few", "many"),
    [
        (
            (pf(PF0),),
            [9_999],
            0,
            "best PF has 9940 Mb/s and 3 VFs free",
            "no PF has 9999 Mb/s free, at most 9990 Mb/s on a PF",
        ),
        (
            (pf(PF0), pf(PF1)),
            [9_000, 8_000],
            4_000,
            "2 PFs have 15940 of 20000 Mb/s unreserved and 7 of 8 VFs free",
            "too little bandwidth free, at most 15990 Mb/s on a node",
        ),
        (
            (pf(PF0), pf(PF1)),
            [6_000, 6_000],
            5_000,
            "14940 of 20000 Mb/s unreserved and 7 of 8 VFs free, room for 1 such interface",
            "no arrangement of the interfaces on its PFs fits, at most 1 interface on a node",
        ),
    ],
    ids=["largest", "bandwidth", "places"],
)
async def test_refusals_have_the_figures_of_each_node_while_an_event_has_room_for_them(
    pfs: tuple[PfReport, ...], wanted: list[int], held: int, few: str, many: str
):
    async with world(*NODES) as w:
        for number, name in enumerate(NODES, 1):
            w.nodes[name].report = report(name, *pfs, held={"other": held + 10 * number})
        await w.create_pod("p", *wanted)
        last = NODES[-1]
        all_nodes = (await w.filter("p", *NODES))["FailedNodes"]
        some_nodes = (await w.filter("p", *NODES[1:]))["FailedNodes"]
    assert list(all_nodes) == NODES
    assert len(set(some_nodes.values())) == MOST_TEXTS
    assert few in some_nodes[last]
    [text] = set(all_nodes.values())
    assert text.startswith(f"{SENTENCE} (needs ")
    assert text.endswith(f"; {many})")


@pytest.mark.anyio
async def test_refusals_that_a_search_words_lose_their_figures_beyond_what_an_event_has_room_for():
    """A request with a policy is not counted."""
    async with world(*NODES) as w:
        for number, name in enumerate(NODES, 1):
            w.nodes[name].report = report(name, pf(PF0), pf(PF1), held={"other": 10 * number})
        await w.create_pod("p", 9_999, 9_999, policy="same_pf")
        failed = await w.filter("p")
    assert {*failed["FailedNodes"], *failed["FailedAndUnresolvableNodes"]} == {*NODES}
    texts = {*failed["FailedNodes"].values(), *failed["FailedAndUnresolvableNodes"].values()}
    assert len(texts) == 1


@pytest.mark.anyio
async def test_unreadable_nodes_have_their_reasons_while_these_are_few():
    async with world(*NODES) as w:
        for node in w.nodes.values():
            node.raw = b"SSH-2.0-OpenSSH_9.6\r\n"
        await w.create_pod("p", 1)
        some_nodes = (await w.filter("p", *NODES[1:]))["FailedNodes"]
        all_nodes = (await w.filter("p", *NODES))["FailedNodes"]
    assert all("not HTTP" in text for text in some_nodes.values())
    assert set(all_nodes.values()) == {
        f"{UNREADABLE} (for different reasons, which k8s-rdma explain pod shows)"
    }
