"""Counting decides a request on a node as `place` does, under every policy and strategy."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from k8s_rdma.core.inventory import Inventory, Pf
from k8s_rdma.core.offers import Bounds, Headroom
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.pf_use import Used
from k8s_rdma.core.placement import Placement, Rejection, place
from k8s_rdma.core.rate_ability import EVERY_RATE
from k8s_rdma.core.request import InterfaceRequest, PfPolicy, Request
from k8s_rdma.core.round_robin import RoundRobin
from k8s_rdma.core.types import PfSelector, Strategy
from k8s_rdma.errors import Reason
from packing_oracle import NODE, inventory, pci, request
from placement_oracle import MLX5, REQUESTS, needy, nodes

if TYPE_CHECKING:
    from placement_oracle import Situation


def counted(wanted: Request, situation: Situation) -> bool | None:
    node, used = situation
    bounds, headroom = Bounds.for_pfs(wanted, node), Headroom.of_node(node, used)
    return bounds.fits(headroom) if bounds and headroom else None


def takes_any_vfs(wanted: Request, situation: Situation) -> bool:
    """Report whether as many VFs are free as are wanted, and each has room for the dearest interface."""
    node, used = situation
    bounds, headroom = Bounds.for_pfs(wanted, node), Headroom.of_node(node, used)
    if bounds is None or bounds.each_mbps is None or headroom is None:
        return False
    return (
        bounds.number <= sum(room.vfs for room in headroom.rooms) and bounds.each_mbps <= headroom.each_mbps
    )


def check(wanted: Request, situation: Situation, strategy: Strategy = Strategy.BINPACK) -> None:
    node, used = situation
    found = place(wanted, node, used, strategy=strategy)
    if takes_any_vfs(wanted, situation):
        assert counted(wanted, situation) is True
    match counted(wanted, situation):
        case True:
            assert isinstance(found, Placement), found
        case False:
            assert isinstance(found, Rejection)
            assert found.reason is not Reason.UNDECIDED


@given(REQUESTS, nodes(), st.sampled_from(PfPolicy), st.sampled_from(Strategy))
def test_counting_agrees_with_place_if_pfs_differ_in_rates(
    wanted: Request, situation: Situation, policy: PfPolicy, strategy: Strategy
) -> None:
    check(replace(wanted, policy=policy), situation, strategy)


@given(needy(), st.sampled_from(PfPolicy))
def test_counting_agrees_with_place_if_interfaces_have_needs(
    asked: tuple[Request, Situation], policy: PfPolicy
) -> None:
    wanted, situation = asked
    check(replace(wanted, policy=policy), situation)


def test_counted_best_fit_is_the_placement() -> None:
    scored = 0
    for seed in range(2_000):
        wanted, (node, used) = loaded(seed)
        found = place(wanted, node, used)
        bounds, headroom = Bounds.for_pfs(wanted, node), Headroom.of_node(node, used)
        counts = bounds.best_fit(headroom) if bounds and headroom else None
        if counts is None:
            continue
        assert isinstance(found, Placement)
        placed: dict[int, list[int]] = {}
        index = {pf.pci: position for position, pf in enumerate(node.pfs)}
        for interface in sorted(found.interfaces, key=lambda each: -each.min_tx_rate_mbps):
            placed.setdefault(index[interface.pf], []).append(interface.min_tx_rate_mbps)
        assert counts == placed
        scored += 1
    assert scored > 200


def loaded(seed: int) -> tuple[Request, Situation]:
    """A request of equal interfaces, or of a few rates, on PFs in use; sizes as on hardware."""
    rng = random.Random(seed)
    ability = rng.choice([EVERY_RATE, MLX5])
    pfs, used = [], {}
    for at in range(rng.choice([1, 2, 4, 8])):
        mins = tuple(
            sorted((rng.choice([500, 1_000, 2_900, 7_000]) for _ in range(rng.randrange(25))), reverse=True)
        )
        vfs = len(mins) + rng.randrange(3)
        pf = Pf(
            name=f"p{at}", pci=pci(at), capacity_vfs=vfs + rng.randrange(20), link_mbps=100_000, rates=ability
        )
        pfs.append(pf)
        used[pf.pci] = Used(vfs, sum(mins), mins if ability is MLX5 else ())
    rates = rng.choice([[rng.randrange(0, 30_000)], [0, 1_000, 5_000]])
    number = rng.choice([1, 2, 8, 16, 60])
    wanted = request(*(rng.choice(rates) for _ in range(number)))
    return replace(wanted, policy=rng.choice([PfPolicy.ANY, *PfPolicy])), (
        Inventory(node=NODE, pfs=tuple(pfs)),
        used,
    )


def test_counting_agrees_with_place_on_loaded_nodes_and_decides_most() -> None:
    verdicts: list[bool | None] = []
    without_a_look = 0
    for seed in range(2_000):
        wanted, situation = loaded(seed)
        verdicts.append(counted(wanted, situation))
        without_a_look += takes_any_vfs(wanted, situation)
        check(wanted, situation, random.Random(seed).choice([*Strategy]))
    assert verdicts.count(True) > 500
    assert verdicts.count(False) > 50
    assert without_a_look > 50


@given(
    st.lists(st.tuples(st.sampled_from([None, 1, 99, 100, 400]), st.integers(0, 5)), min_size=1, max_size=4),
    st.lists(st.builds(Used, st.integers(0, 3), st.integers(0, 110)), min_size=4, max_size=4),
)
def test_all_free_vfs_can_have_the_headroom_at_once_and_no_more(
    pfs: list[tuple[int | None, int]], usages: list[Used]
) -> None:
    node = inventory(*pfs)
    used = {pf.pci: usage for pf, usage in zip(node.pfs, usages, strict=False)}
    headroom = Headroom.of_node(node, used)
    assert headroom is not None
    vfs = sum(room.vfs for room in headroom.rooms)
    assume(vfs)
    for rate, placement in ((headroom.each_mbps, Placement), (headroom.each_mbps + 1, Rejection)):
        assert isinstance(place(request(*[rate] * vfs), node, used), placement)
    assert isinstance(place(request(*[0] * (vfs + 1)), node, used), Rejection)


@given(
    st.lists(st.sampled_from([1, 99, 100, 149, 150, 199, 200, 2_950, 5_000]), max_size=12),
    st.integers(0, 9),
    st.sampled_from([0, 1, 101, 199, 200, 299, 5_000, 9_999]),
    st.sampled_from([4, 100]),
)
@example([199], 0, 200, 100)
def test_every_vf_keeps_its_minimum_when_as_many_join_as_were_counted(
    mins: list[int], others: int, rate: int, most: int
) -> None:
    pf = Pf(name="p", pci=pci(0), capacity_vfs=250, link_mbps=100_000, rates=replace(MLX5, weights=most))
    there = tuple(sorted(mins, reverse=True))
    used = Used(len(there) + others, sum(there), there)
    headroom = Headroom.of_node(Inventory(node=NODE, pfs=(pf,)), {pf.pci: used})
    round_robin = RoundRobin.for_pf(pf, used)
    assert headroom is not None
    assert headroom.weighings[0] is not None
    assert round_robin is not None
    load = round_robin.load()
    for _ in range(min(250, headroom.weighings[0].count(rate))):
        load = round_robin.join(load, rate)
        assert load.is_within_limit


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        pytest.param(request(*[10_000] * 20), True, id="as many as fit"),
        pytest.param(request(*[10_000] * 21), False, id="one more"),
        pytest.param(request(*[33_334] * 5), False, id="the sum would fit"),
        pytest.param(request(10_000, *[5_000] * 19), True, id="all as dear as the dearest"),
        pytest.param(request(50_000, *[5_000] * 19), None, id="not if all were that dear"),
        pytest.param(replace(request(*[10_000] * 10), policy=PfPolicy.SAME_PF), True, id="on one PF"),
        pytest.param(replace(request(*[10_000] * 11), policy=PfPolicy.SAME_PF), None, id="too many for one"),
        pytest.param(replace(request(1, 1), policy=PfPolicy.SPREAD_PFS), True, id="each on its own"),
        pytest.param(replace(request(1, 1, 1), policy=PfPolicy.SPREAD_PFS), None, id="more than PFs"),
    ],
)
def test_counting_decides_or_leaves_it_to_a_search(wanted: Request, expected: bool | None) -> None:
    assert counted(wanted, (inventory((100_000, 20), (100_000, 20)), {})) is expected


def test_interfaces_that_select_a_pf_are_counted_there() -> None:
    node = inventory((100_000, 20), (200_000, 20))
    for pf, expected in zip(node.pfs, (None, True), strict=True):
        options = InterfaceOptions(pf=PfSelector(names=frozenset({pf.name})))
        chosen = Request((InterfaceRequest(min_tx_rate_mbps=60_000, options=options),) * 2)
        assert counted(chosen, (node, {})) is expected


def test_no_interface_is_counted_if_the_minimums_of_a_pf_with_weights_are_unknown() -> None:
    pf = Pf(name="p", pci=pci(0), capacity_vfs=9, link_mbps=100, rates=MLX5)
    assert Headroom.of_node(Inventory(node=NODE, pfs=(pf,)), {pf.pci: Used(1, 50)}) is None
