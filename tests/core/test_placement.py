from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.core.inventory import Inventory
from k8s_rdma.core.packing import Room
from k8s_rdma.core.pf_use import Used
from k8s_rdma.core.placement import Placement, Rejection, place
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.errors import Reason
from packing_oracle import INSTANCES, NODE, cut, fits, inventory, pci, request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.core.types import PciAddress

_Node = tuple[Inventory, dict["PciAddress", Used]]


@st.composite
def _nodes(draw: st.DrawFn, free: list[Room]) -> _Node:
    """A node with these free rooms and something used beside; a room without bandwidth may have no link."""
    pfs: list[tuple[int | None, int]] = []
    used: dict[PciAddress, Used] = {}
    for at, room in enumerate(free):
        taken = draw(st.builds(Used, st.integers(0, 4), st.sampled_from((0, 0, 1, 7, 40))))
        link = None if not room.mbps and draw(st.booleans()) else room.mbps + taken.mbps
        over = draw(st.sampled_from((0, 0, 3)))  # more used than there is
        pfs.append((link, room.vfs + taken.vfs))
        used[pci(at)] = Used(
            taken.vfs if room.vfs else taken.vfs + over, taken.mbps if room.mbps else taken.mbps + over
        )
    return inventory(*pfs), used


@st.composite
def _situations(draw: st.DrawFn) -> tuple[list[int], list[Room], Inventory, dict[PciAddress, Used]]:
    rates, free = draw(INSTANCES)
    return rates, free, *draw(_nodes(free))


def _empty(node: Inventory) -> list[Room]:
    return [Room(pf.link_mbps or 0, pf.capacity_vfs) for pf in node.pfs]


def _assert_keeps_to(
    found: Placement, wanted: Request, node: Inventory, used: Mapping[PciAddress, Used]
) -> None:
    """The placement is of this request, in its order, and no PF is promised more than is free of it."""
    assert found.node == node.node
    assert [(it.min_tx_rate_mbps, it.max_tx_rate_mbps) for it in found.interfaces] == [
        (it.min_tx_rate_mbps, it.max_tx_rate_mbps) for it in wanted.interfaces
    ]
    pfs = {pf.pci: pf for pf in node.pfs}
    for address, takes in found.usage(node).items():
        there = used.get(address, Used())
        assert takes.vfs <= pfs[address].capacity_vfs - there.vfs
        assert takes.mbps <= max(0, (pfs[address].link_mbps or 0) - there.mbps)


@given(_situations())
def test_place_agrees_with_brute_force_for_up_to_ten_interfaces(
    situation: tuple[list[int], list[Room], Inventory, dict[PciAddress, Used]],
) -> None:
    rates, free, node, used = situation
    found = place(request(*rates), node, used)
    if fits(rates, free):
        assert isinstance(found, Placement)
        _assert_keeps_to(found, request(*rates), node, used)
    else:
        assert isinstance(found, Rejection)
        assert found.node == NODE
        expected = Reason.INSUFFICIENT if fits(rates, _empty(node)) else Reason.EXCEEDS_CAPACITY
        assert found.reason is expected


@given(_situations(), st.integers(0, 400))
def test_place_is_never_wrong_when_its_budget_ends_early(
    situation: tuple[list[int], list[Room], Inventory, dict[PciAddress, Used]], budget: int
) -> None:
    rates, _, node, used = situation
    whole = place(request(*rates), node, used)
    cut_short = place(request(*rates), node, used, budget=budget)
    if isinstance(cut_short, Placement):
        assert isinstance(whole, Placement)
        _assert_keeps_to(cut_short, request(*rates), node, used)
    elif cut_short.reason is not Reason.UNDECIDED:
        assert isinstance(whole, Rejection)
        assert cut_short.reason in {whole.reason, Reason.INSUFFICIENT}


@given(_situations(), st.randoms(use_true_random=False))
def test_place_answers_alike_when_interfaces_or_pfs_come_in_another_order(
    situation: tuple[list[int], list[Room], Inventory, dict[PciAddress, Used]], rng: random.Random
) -> None:
    rates, _, node, used = situation
    wanted = Request(
        tuple(
            InterfaceRequest(min_tx_rate_mbps=rate, max_tx_rate_mbps=rate + at % 2 if rate else 0)
            for at, rate in enumerate(rates)
        )
    )
    order = list(range(len(rates)))
    rng.shuffle(order)
    shuffled = Request(tuple(wanted.interfaces[at] for at in order))
    turned = Inventory(node=node.node, pfs=node.pfs[::-1])
    first = place(wanted, node, used)
    second = place(shuffled, turned, dict(reversed(used.items())))
    if isinstance(first, Placement):
        assert isinstance(second, Placement)
        assert Counter(first.interfaces) == Counter(second.interfaces)
    else:
        assert first == second


@given(st.integers(0, 2**32), st.integers(2, 12), st.integers(2, 6), st.integers(0, 2))
def test_place_never_refuses_rates_that_are_pieces_of_the_pfs(
    seed: int, pfs: int, most: int, spare_vfs: int
) -> None:
    """Larger than brute force can follow; but rates that are pieces of the PFs always have a placement."""
    rng = random.Random(seed)
    rooms, rates = [], []
    for _ in range(pfs):
        pieces = cut(rng, rng.randrange(1000, 100_000), rng.randint(1, most))
        rooms.append((sum(pieces), len(pieces) + spare_vfs))
        rates += pieces
    rng.shuffle(rates)
    node = inventory(*rooms)
    found = place(request(*rates), node, {})
    if isinstance(found, Placement):
        _assert_keeps_to(found, request(*rates), node, {})
    else:
        assert found.reason is Reason.UNDECIDED


def test_place_gives_no_interface_to_an_empty_request() -> None:
    assert place(Request(), inventory(), {}) == Placement(node=NODE, interfaces=())


def test_place_fills_the_tighter_pf_and_breaks_ties_by_pci_address() -> None:
    used = {pci(1): Used(2, 60_000)}
    found = place(request(10_000), inventory((100_000, 8), (100_000, 8), (100_000, 8)), used)
    assert isinstance(found, Placement)
    assert [it.pf for it in found.interfaces] == [pci(1)]
    found = place(request(50_000), inventory((100_000, 8), (100_000, 8), (100_000, 8)), used)
    assert isinstance(found, Placement)
    assert [it.pf for it in found.interfaces] == [pci(0)]


def test_place_prefers_a_pf_without_bandwidth_for_an_interface_without_reservation() -> None:
    found = place(request(0, 5000), inventory((100_000, 8), (None, 8)), {})
    assert isinstance(found, Placement)
    assert [it.pf for it in found.interfaces] == [pci(1), pci(0)]


def test_place_prefers_the_pf_with_fewer_vfs_when_bandwidth_is_equal() -> None:
    found = place(request(5), inventory((10, 3), (10, 2)), {})
    assert isinstance(found, Placement)
    assert [it.pf for it in found.interfaces] == [pci(1)]


def test_place_gives_interfaces_without_reservation_the_vfs_that_a_tight_packing_leaves() -> None:
    wanted = request(0, 4, 3, 3, 0, 4, 3, 3)
    node = inventory((10, 3), (10, 4), (None, 1))
    found = place(wanted, node, {})
    assert isinstance(found, Placement)
    _assert_keeps_to(found, wanted, node, {})


def test_place_takes_a_vf_of_an_oversold_pf_for_an_interface_without_reservation() -> None:
    assert isinstance(place(request(0), inventory((10, 2)), {pci(0): Used(1, 15)}), Placement)


def test_place_ignores_usage_of_pfs_that_do_not_exist() -> None:
    assert isinstance(place(request(5), inventory((5, 1)), {pci(9): Used(1, 5)}), Placement)
