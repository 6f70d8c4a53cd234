"""Interfaces that each need a PF of their own, and the proof that some cannot have one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from core.cards import card, homes
from k8s_rdma.core.bipartite_matching import TooFew, match
from k8s_rdma.core.offers import Offer
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.packing import Room, Work
from k8s_rdma.core.pf_use import Used
from k8s_rdma.core.request import InterfaceRequest, PfPolicy, Request
from k8s_rdma.core.types import PfSelector, Strategy
from packing_oracle import inventory


def test_spread_finds_the_matching_that_moves_interfaces_from_their_preferred_pfs() -> None:
    """The second, which only one PF takes, comes after the first had that one."""
    node = card((100, 8, 0), (100, 8, 0))
    only = InterfaceOptions(pf=PfSelector(names=frozenset({"enp0s0"})))
    wanted = (InterfaceRequest(min_tx_rate_mbps=20), InterfaceRequest(min_tx_rate_mbps=10, options=only))
    assert homes(Request(wanted, PfPolicy.SPREAD_PFS), node, {0: Used(1, 50)}, Strategy.BINPACK) == [1, 0]


@given(
    st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=4),
    st.data(),
    st.sampled_from(Strategy),
)
def test_refusal_is_a_proof_that_interfaces_have_too_few_offers(
    takes: list[list[bool]], data: st.DataObject, strategy: Strategy
) -> None:
    """takes: for each offer, the kinds of interfaces that it takes."""
    kinds = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=5))
    pfs = inventory(*[(100, 1)] * len(takes)).pfs
    offers = [
        Offer(pf=pf, room=Room(100, 1), costs=tuple(0 if taken else None for taken in row))
        for pf, row in zip(pfs, takes, strict=True)
    ]
    found = match(kinds, offers, strategy, Work(10_000))
    if isinstance(found, TooFew):
        takers = {at for at, row in enumerate(takes) for index in found.interfaces if row[kinds[index]]}
        assert takers <= set(found.offers)
        assert len(found.interfaces) > len(found.offers)
        return
    assert len(set(found)) == len(kinds)
    assert all(takes[at][kind] for at, kind in zip(found, kinds, strict=True))
