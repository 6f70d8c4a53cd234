"""Selectors, scarce VFs and few rates: decisions by numbers alone, and the work that they take."""

from __future__ import annotations

import random
from itertools import product
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.core.inventory import Inventory, Pf
from k8s_rdma.core.matching import Lot, share_out
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.packing import Room, Work
from k8s_rdma.core.placement import Placement, Rejection, fits, place
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.core.types import PfSelector
from k8s_rdma.errors import Reason
from packing_oracle import NODE, pci
from placement_oracle import needy

if TYPE_CHECKING:
    from collections.abc import Collection

    from placement_oracle import Situation

PLENTY = 1_000_000


def asks(*wanted: tuple[int, Collection[int]]) -> Request:
    """Return a request for interfaces given as Mb/s and the PFs that they may be on; empty: any."""
    return Request(
        tuple(
            InterfaceRequest(
                min_tx_rate_mbps=rate,
                options=InterfaceOptions(pf=PfSelector(names=frozenset(f"p{at}" for at in pfs)))
                if pfs
                else InterfaceOptions(),
            )
            for rate, pfs in wanted
        )
    )


def node(*rooms: tuple[int, int]) -> Inventory:
    """PFs given as Mb/s and VFs."""
    pfs = [
        Pf(name=f"p{at}", pci=pci(at), capacity_vfs=vfs, link_mbps=mbps)
        for at, (mbps, vfs) in enumerate(rooms)
    ]
    return Inventory(node=NODE, pfs=tuple(pfs))


def test_zero_rates_fit_by_selectors_when_every_vf_is_taken():
    """A thousand interfaces, each of three PFs of eight, and not a VF to spare: a flow, not a search."""
    rng = random.Random(7)
    wanted = [(0, rng.sample(range(8), 3)) for _ in range(1024)]
    found = place(asks(*wanted), node(*[(100_000, 128)] * 8), {})
    assert isinstance(found, Placement)


def test_zero_rates_are_refused_when_selectors_leave_too_few_vfs():
    wanted = [*[(0, (0, 1))] * 9, *[(0, ())] * 20]
    found = place(asks(*wanted), node(*[(100_000, 4)] * 8), {})
    assert isinstance(found, Rejection)
    assert found.reason is Reason.NO_SUCH_PF


def test_one_rate_and_zeros_are_decided_when_vfs_and_bandwidth_are_scarce():
    rng = random.Random(3)
    for _ in range(40):
        rooms = [(rng.randrange(1, 9) * 5_000, rng.randrange(2, 12)) for _ in range(8)]
        number = sum(vfs for _, vfs in rooms) - rng.randrange(3)
        wanted = [(rng.choice((0, 5_000)), rng.sample(range(8), rng.randrange(1, 5))) for _ in range(number)]
        found = place(asks(*wanted), node(*rooms), {})
        assert isinstance(found, Placement) or found.reason is not Reason.UNDECIDED


def test_interfaces_change_places_when_numbers_alone_overload_a_pf():
    """Best fit puts small ones on the PFs that have the only VFs for large ones."""
    rng = random.Random(11)
    for _ in range(20):
        wanted, rooms = [], []
        for at in range(8):
            rates = [rng.randrange(1_000, 20_000) for _ in range(6)]
            rooms.append((sum(rates) * 10 // 7, len(rates) + 1))
            wanted += [(rate, {at, rng.randrange(8), rng.randrange(8)}) for rate in rates]
        request, inventory = asks(*wanted), node(*rooms)
        found = place(request, inventory, {})
        assert isinstance(found, Placement)
        assert fits(found.interfaces, inventory, {})


@given(needy())
def test_answers_hold_whatever_the_budget_is(case: tuple[Request, Situation]) -> None:
    request, (inventory, used) = case
    truth = place(request, inventory, used, budget=PLENTY)
    for budget in (0, 10, 100, 1_000):
        found = place(request, inventory, used, budget=budget)
        if isinstance(found, Placement):
            assert fits(found.interfaces, inventory, used)
        elif found.reason is not Reason.UNDECIDED:
            assert isinstance(truth, Rejection)


LOTS = st.lists(
    st.builds(
        Lot,
        st.sets(st.integers(0, 2), min_size=1).map(lambda some: tuple(sorted(some))),
        st.booleans(),
        st.integers(1, 2),
    ),
    max_size=3,
    unique_by=lambda lot: (lot.takers, lot.reserving),
)


@given(LOTS, st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=3, max_size=3))
def test_flow_shares_out_exactly_when_some_choice_does(lots: list[Lot], pfs: list[tuple[int, int]]) -> None:
    rooms = [Room(0, vfs) for vfs, _ in pfs]
    shared = share_out(lots, rooms, [most for _, most in pfs], Work(PLENTY))
    every = [(lot, pf) for lot in lots for pf in [lot] * lot.number]
    possible = any(
        all(chosen.count(at) <= vfs for at, (vfs, _) in enumerate(pfs))
        and all(
            sum(lot.reserving for (lot, _), pf in zip(every, chosen, strict=True) if pf == at) <= most
            for at, (_, most) in enumerate(pfs)
        )
        for chosen in product(*(lot.takers for lot, _ in every))
    )
    assert (shared is not None) == possible
    if shared is not None:
        assert [sum(share.values()) for share in shared] == [lot.number for lot in lots]
        assert all(set(share) <= set(lot.takers) for share, lot in zip(shared, lots, strict=True))


@pytest.mark.parametrize("budget", [500, 2_000, 11_000])
def test_thousand_selectors_take_no_more_work_than_the_budget(budget: int) -> None:
    """Before, only the search counted, but not the work to find out which interfaces fit each of many PFs."""
    rng = random.Random(5)
    wanted = [(rng.randrange(1, 100), rng.sample(range(128), 20)) for _ in range(1024)]
    found = place(asks(*wanted), node(*[(100_000, 128)] * 128), {}, budget=budget)
    assert isinstance(found, Rejection)
    assert found.reason is Reason.UNDECIDED


def test_drivers_are_not_blamed_when_the_proof_is_out_of_budget():
    rng = random.Random(2)
    wanted = [(rng.randrange(0, 3) * 1_000, rng.sample(range(4), 2)) for _ in range(40)]
    request, inventory = asks(*wanted, *[(0, (0,))] * 30), node(*[(40_000, 25)] * 4)
    reasons = [place(request, inventory, {}, budget=budget) for budget in range(0, 4_000, 20)]
    found = {each.reason for each in reasons if isinstance(each, Rejection)}
    assert found == {Reason.UNDECIDED, Reason.INSUFFICIENT, Reason.NO_SUCH_PF}
