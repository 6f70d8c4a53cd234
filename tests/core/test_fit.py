"""States are shared by nodes that are alike, and counting finds the placement that a search finds."""

from __future__ import annotations

import gc
from collections import Counter

import pytest

from k8s_rdma.core.fit import FitEngine, NodeState, NodeStates, bounds_of
from k8s_rdma.core.inventory import Inventory, Pf
from k8s_rdma.core.pf_use import Used, total
from k8s_rdma.core.placement import Placement, score
from k8s_rdma.core.rate_ability import EVERY_RATE
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.core.types import NodeName, Strategy, pci_address

PFS = tuple(
    Pf(
        name=f"p{number}",
        pci=pci_address(f"0000:{number + 1:02x}:00.0"),
        capacity_vfs=8,
        link_mbps=100_000,
        rates=EVERY_RATE,
    )
    for number in range(3)
)
FIRST, SECOND = PFS[0].pci, PFS[1].pci


def node(name: str) -> Inventory:
    return Inventory(node=NodeName(name), pfs=PFS)


def test_nodes_of_equal_hardware_and_use_share_one_state():
    states = NodeStates(NodeState)
    state = states.find(node("w1"), {FIRST: Used(1, 1_000)})
    assert states.find(node("w2"), {FIRST: Used(1, 1_000)}) is state
    assert states.find(node("w2"), {FIRST: Used(1, 1_000), SECOND: Used()}) is state
    assert states.find(node("w2"), {FIRST: Used(2, 1_000)}) is not state


@pytest.mark.parametrize(("latest", "remembered"), [(0, False), (1, True)])
def test_state_that_no_node_is_in_is_remembered_while_it_is_one_of_the_latest(latest: int, remembered: bool):
    made: list[int] = []

    def make(inventory: Inventory, used: dict[object, Used]) -> NodeState:
        made.append(len(made))
        return NodeState(inventory, used)

    states = NodeStates(make, latest)
    states.find(node("w1"), {FIRST: Used(1, 1_000)})
    gc.collect()
    states.find(node("w1"), {FIRST: Used(1, 1_000)})
    assert (len(made) == 1) is remembered


@pytest.mark.parametrize("mbps", [[1_000], [20_000] * 4, [30_000, 1_000, 500]])
@pytest.mark.parametrize("used", [{}, {FIRST: Used(7, 10_000)}, {FIRST: Used(2, 90_000), SECOND: Used(8, 0)}])
def test_counted_placement_is_that_of_the_search(mbps: list[int], used: dict[str, Used]):
    engine, state = FitEngine(Strategy.BINPACK), NodeState(node("w1"), used)
    request = Request(tuple(InterfaceRequest(min_tx_rate_mbps=each) for each in mbps))
    found = engine.place(request, state)
    assert isinstance(found, Placement)
    counted = engine.count(bounds_of(request, state.inventory), state)
    assert counted is not None
    assert counted.interfaces == Counter(interface.pf for interface in found.interfaces)
    assert counted.used == total(used, found.usage(state.inventory))
    expected = score(found, state.inventory, used, Strategy.BINPACK)
    assert engine.score(request, state, counted) == engine.score(request, state, found) == expected


def test_strategies_other_than_binpack_are_not_counted():
    state, request = NodeState(node("w1"), {}), Request((InterfaceRequest(min_tx_rate_mbps=1_000),))
    bounds = bounds_of(request, state.inventory)
    for strategy in set(Strategy) - {Strategy.BINPACK}:
        assert FitEngine(strategy).count(bounds, state) is None
