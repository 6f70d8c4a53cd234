"""`place` under a policy, against every assignment there is, and the sentences of its refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.cards import FOUR, asks, card, homes
from k8s_rdma.core.inventory import Inventory
from k8s_rdma.core.pf_use import NOTHING_USED, Used
from k8s_rdma.core.placement import PlacedInterface, Placement, Rejection, fits, place
from k8s_rdma.core.rate_ability import EVERY_RATE
from k8s_rdma.core.request import InterfaceRequest, PfPolicy, Request
from k8s_rdma.core.types import Enforce, Strategy
from k8s_rdma.errors import Reason
from packing_oracle import NODE
from placement_oracle import ABILITIES, REQUESTS, anywhere, as_wanted, needy, nodes, possible, takes

if TYPE_CHECKING:
    from placement_oracle import Situation

POLICIES = st.sampled_from([PfPolicy.SAME_PF, PfPolicy.SPREAD_PFS, PfPolicy.SAME_NUMA])

STRATEGIES = st.sampled_from(Strategy)

TASKS = needy() | st.tuples(REQUESTS, st.sampled_from([ABILITIES, st.just(EVERY_RATE)]).flatmap(nodes))


def under(policy: PfPolicy, request: Request) -> Request:
    return replace(request, policy=policy)


def plain(request: Request, node: Inventory) -> tuple[Request, Inventory]:
    """Return both as if drivers could do everything, and only rates were asked for."""
    wanted = tuple(InterfaceRequest(min_tx_rate_mbps=each.min_tx_rate_mbps) for each in request.interfaces)
    pfs = tuple(replace(pf, rates=EVERY_RATE, enforce=Enforce.AUTO) for pf in node.pfs)
    return replace(request, interfaces=wanted), Inventory(node=NODE, pfs=pfs)


@given(TASKS, POLICIES, STRATEGIES)
def test_place_agrees_with_trying_every_assignment(
    task: tuple[Request, Situation], policy: PfPolicy, strategy: Strategy
) -> None:
    request, (node, used) = under(policy, task[0]), task[1]
    found = place(request, node, used, strategy=strategy)
    if isinstance(found, Placement):
        assert found.request() == request
        chosen = [node.pf(placed.pf) for placed in found.interfaces]
        assert as_wanted(policy, [pf for pf in chosen if pf])
        for pf in node.pfs:
            on_it = [placed.as_request() for placed in found.interfaces if placed.pf == pf.pci]
            assert takes(pf, used.get(pf.pci, NOTHING_USED), on_it)
        assert fits(found.interfaces, node, used, policy)
        return
    assert not possible(request, node, used)
    expected = Reason.INSUFFICIENT
    if not possible(request, node, {}):
        ever = possible(*plain(request, node), {})
        by_choice = possible(anywhere(request), node, {})
        expected = Reason.NO_SUCH_PF if by_choice else Reason.DRIVER_REFUSES
        expected = expected if ever else Reason.EXCEEDS_CAPACITY
    assert found.reason is expected
    there = used if expected is Reason.INSUFFICIENT else {}
    by_policy = possible(under(PfPolicy.ANY, request), node, there)
    assert found.message.startswith(f"policy {policy}: " if by_policy else "needs ")
    assert "\n" not in found.message + found.numbers + found.cause


@given(TASKS, STRATEGIES)
def test_place_finds_a_placement_whatever_the_strategy_if_there_is_one(
    task: tuple[Request, Situation], strategy: Strategy
) -> None:
    request, (node, used) = task
    found = place(request, node, used, strategy=strategy)
    assert isinstance(found, Placement) == possible(request, node, used)
    if isinstance(found, Placement):
        assert found.request() == request
        assert fits(found.interfaces, node, used)


@given(TASKS, POLICIES, STRATEGIES, st.integers(0, 60))
def test_place_is_never_wrong_when_its_budget_ends_early(
    task: tuple[Request, Situation], policy: PfPolicy, strategy: Strategy, budget: int
) -> None:
    request, (node, used) = under(policy, task[0]), task[1]
    whole = place(request, node, used, strategy=strategy)
    cut_short = place(request, node, used, strategy=strategy, budget=budget)
    if isinstance(cut_short, Placement):
        assert fits(cut_short.interfaces, node, used, policy)
    elif cut_short.reason is not Reason.UNDECIDED:
        assert isinstance(whole, Rejection)


@given(TASKS, POLICIES, st.data())
def test_place_of_a_part_heeds_the_pfs_of_the_rest(
    task: tuple[Request, Situation], policy: PfPolicy, data: st.DataObject
) -> None:
    request, (node, used) = under(policy, task[0]), task[1]
    others = data.draw(st.lists(st.sampled_from(node.pfs), max_size=2, unique=True))
    beside = [pf.pci for pf in others]
    found = place(request, node, used, sibling_pfs=beside)
    assert isinstance(found, Placement) == possible(request, node, used, others)
    if isinstance(found, Placement):
        chosen = [node.pf(placed.pf) for placed in found.interfaces]
        assert as_wanted(policy, [pf for pf in chosen if pf], others)
        assert fits(found.interfaces, node, used, policy, beside)


@given(nodes(st.just(EVERY_RATE)), st.sampled_from(PfPolicy), st.data())
def test_fits_agrees_with_the_policy(situation: Situation, policy: PfPolicy, data: st.DataObject) -> None:
    node = situation[0]
    homes = data.draw(st.lists(st.sampled_from(node.pfs), min_size=1, max_size=3))
    others = data.draw(st.lists(st.sampled_from(node.pfs), max_size=2))
    roomy = Inventory(node=NODE, pfs=tuple(replace(pf, capacity_vfs=9) for pf in node.pfs))
    placed = [PlacedInterface(pf=home.pci) for home in homes]
    found = fits(placed, roomy, {}, policy, [pf.pci for pf in others])
    assert found == as_wanted(policy, homes, others)


@pytest.mark.parametrize(
    ("policy", "rates", "used", "strategy", "expected"),
    [
        (PfPolicy.SAME_PF, [30, 30], {1: Used(1, 40), 2: Used(1, 50)}, Strategy.BINPACK, [1, 1]),
        (PfPolicy.SAME_PF, [30, 30], {0: Used(1, 10), 1: Used(1, 5)}, Strategy.SPREAD, [2, 2]),
        (PfPolicy.SAME_PF, [0, 0], {1: Used(0, 50)}, Strategy.BALANCED, [1, 1]),
        (PfPolicy.SPREAD_PFS, [50, 60], {1: Used(1, 40), 2: Used(1, 50)}, Strategy.BINPACK, [2, 1]),
        (PfPolicy.SPREAD_PFS, [50, 60], {1: Used(1, 30), 2: Used(1, 40)}, Strategy.SPREAD, [3, 0]),
        (PfPolicy.SPREAD_PFS, [5] * 4, {}, Strategy.BALANCED, [0, 1, 2, 3]),
        (PfPolicy.SAME_NUMA, [80, 80], {3: Used(1, 90)}, Strategy.BINPACK, [0, 1]),
        (PfPolicy.SAME_NUMA, [20, 20], {2: Used(1, 50)}, Strategy.BINPACK, [2, 2]),
        (PfPolicy.SAME_NUMA, [20, 20], {2: Used(1, 50), 3: Used(1, 10)}, Strategy.SPREAD, [0, 1]),
    ],
)
def test_place_takes_the_pf_that_the_strategy_prefers_among_those_that_the_policy_allows(
    policy: PfPolicy, rates: list[int], used: dict[int, Used], strategy: Strategy, expected: list[int]
) -> None:
    assert homes(asks(policy, *rates), FOUR, used, strategy) == expected


HARD = (40, 30, 30, 20, 20, 20)
"""Fit on PFs of 80 Mb/s and 81 by an arrangement that takes a search."""


@pytest.mark.parametrize("also", [(), ((10, 8, 1),)], ids=["one NUMA node", "a hopeless one besides"])
def test_place_is_undecided_when_the_search_of_one_group_ended_and_no_other_has_room(
    also: tuple[tuple[int | None, int, int | None], ...],
) -> None:
    node = card((80, 8, 0), (81, 8, 0), *also)
    found = place(asks(PfPolicy.SAME_NUMA, *HARD), node, {}, budget=5)
    assert isinstance(found, Rejection)
    assert found.reason is Reason.UNDECIDED
    assert isinstance(place(asks(PfPolicy.SAME_NUMA, *HARD), node, {}), Placement)


def test_place_finds_a_group_with_room_beside_one_that_takes_too_long_to_search() -> None:
    node = card((80, 8, 0), (81, 8, 0), (500, 8, 1))
    assert isinstance(place(asks(PfPolicy.SAME_NUMA, *HARD), node, {}, budget=5), Placement)


@pytest.mark.parametrize("strategy", Strategy)
def test_place_has_work_left_to_be_exact_if_the_strategy_alone_takes_too_long(
    strategy: Strategy,
) -> None:
    """For so many interfaces it is not tried at all."""
    node = card(*[(100_000, 80, 0)] * 16)
    rates = [900 + at for at in range(1024)]
    for policy in (PfPolicy.ANY, PfPolicy.SAME_NUMA):
        assert isinstance(place(asks(policy, *rates), node, {}, strategy=strategy), Placement)
