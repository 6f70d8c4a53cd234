"""`place` on PFs with drivers that program different rates, against every assignment there is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.core.inventory import Inventory, Pf
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.pf_use import NOTHING_USED, Used
from k8s_rdma.core.placement import PlacedInterface, Placement, Rejection, fits, place
from k8s_rdma.core.rate_ability import EVERY_RATE, NO_RATE, RateAbility, RateRange
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.core.round_robin import effective_mins
from k8s_rdma.core.types import Enforce, Setting, VfDriver
from k8s_rdma.errors import Reason
from packing_oracle import NODE, pci
from placement_oracle import CAPS_ONLY, MLX5, REQUESTS, nodes, possible, takes, used_of

if TYPE_CHECKING:
    from k8s_rdma.core.types import PciAddress
    from placement_oracle import Situation


def plain(node: Inventory) -> Inventory:
    able = frozenset(Setting)
    return Inventory(
        node=NODE, pfs=tuple(replace(pf, rates=EVERY_RATE, supported_settings=able) for pf in node.pfs)
    )


@given(REQUESTS, nodes())
def test_place_agrees_with_trying_every_assignment(request: Request, situation: Situation) -> None:
    node, used = situation
    found = place(request, node, used)
    if isinstance(found, Placement):
        assert found.request() == request
        assert possible(request, node, used)
        for pf in node.pfs:
            on_it = [placed.as_request() for placed in found.interfaces if placed.pf == pf.pci]
            assert takes(pf, used.get(pf.pci, NOTHING_USED), on_it)
        assert fits(found.interfaces, node, used)
        return
    assert not possible(request, node, used)
    expected = Reason.INSUFFICIENT
    if not possible(request, node, {}):
        ever = possible(request, plain(node), {})
        expected = Reason.DRIVER_REFUSES if ever else Reason.EXCEEDS_CAPACITY
    assert found.reason is expected
    assert found.message.startswith("needs ")
    assert "\n" not in found.message


@given(REQUESTS, nodes(), st.integers(0, 60))
def test_place_is_never_wrong_when_its_budget_ends_early(
    request: Request, situation: Situation, budget: int
) -> None:
    node, used = situation
    whole, cut_short = place(request, node, used), place(request, node, used, budget=budget)
    if isinstance(cut_short, Placement):
        assert fits(cut_short.interfaces, node, used)
    elif cut_short.reason is not Reason.UNDECIDED:
        assert isinstance(whole, Rejection)


@given(REQUESTS, nodes(), st.data())
def test_fits_agrees_with_the_abilities_of_pfs(
    request: Request, situation: Situation, data: st.DataObject
) -> None:
    node, used = situation
    homes = data.draw(st.lists(st.sampled_from(node.pfs), min_size=5, max_size=5))[: len(request.interfaces)]
    placed = [
        PlacedInterface(
            pf=home.pci,
            min_tx_rate_mbps=wanted.min_tx_rate_mbps,
            max_tx_rate_mbps=wanted.max_tx_rate_mbps,
            enforce=wanted.enforce,
        )
        for home, wanted in zip(homes, request.interfaces, strict=True)
    ]
    taken = all(
        takes(pf, used[pf.pci], [each.as_request() for each in placed if each.pf == pf.pci])
        for pf in node.pfs
    )
    assert fits(placed, node, used) == taken


@given(
    st.lists(st.lists(st.integers(0, 60_000), min_size=1, max_size=6), min_size=1, max_size=12),
    st.integers(1, 3),
)
def test_every_vf_gets_its_reservation_whatever_was_placed_in_turn(rates: list[list[int]], pfs: int) -> None:
    """Pod after pod on cards of 100 Gb/s, best-effort ones included."""
    node = Inventory(
        node=NODE,
        pfs=tuple(
            Pf(
                name=f"enp{at}s0",
                pci=pci(at),
                capacity_vfs=20,
                link_mbps=100_000,
                rates=MLX5,
                driver="mlx5_core",
            )
            for at in range(pfs)
        ),
    )
    used: dict[PciAddress, Used] = {}
    nominal: dict[PciAddress, list[int]] = {pf.pci: [] for pf in node.pfs}
    for pod in rates:
        found = place(Request(tuple(InterfaceRequest(min_tx_rate_mbps=rate) for rate in pod)), node, used)
        if isinstance(found, Rejection):
            continue
        for address, more in found.usage(node).items():
            used[address] = used.get(address, NOTHING_USED) + more
        for placed in found.interfaces:
            nominal[placed.pf].append(placed.min_tx_rate_mbps)
        for mins in nominal.values():
            got = effective_mins(mins, 100_000, 100)
            assert all(gets >= rate for gets, rate in zip(got, mins, strict=True))


def node_of(*pfs: tuple[str, RateAbility, Enforce], link: int | None = 100_000, vfs: int = 8) -> Inventory:
    return Inventory(
        node=NODE,
        pfs=tuple(
            Pf(
                name=f"enp{at}s0",
                pci=pci(at),
                capacity_vfs=vfs,
                link_mbps=link,
                rates=rates,
                enforce=enforce,
                driver=driver,
            )
            for at, (driver, rates, enforce) in enumerate(pfs)
        ),
    )


def asks(*rates: int, cap: int = 0, enforce: Enforce = Enforce.AUTO) -> Request:
    return Request(
        tuple(
            InterfaceRequest(min_tx_rate_mbps=rate, max_tx_rate_mbps=cap, enforce=enforce) for rate in rates
        )
    )


IGB = ("igb", CAPS_ONLY, Enforce.HARDWARE)
IGB_AUTO = ("igb", CAPS_ONLY, Enforce.AUTO)
CX5 = ("mlx5_core", MLX5, Enforce.AUTO)
QED = ("qede", RateAbility(min=RateRange(step=1000, smallest=1000, largest=100_000)), Enforce.AUTO)


@pytest.mark.parametrize(
    ("request_", "node", "used", "reason", "message"),
    [
        pytest.param(
            asks(500),
            node_of(IGB, IGB),
            {},
            Reason.DRIVER_REFUSES,
            "needs 1 interface of 500 Mb/s; enp0s0, enp1s0: igb takes no minimum rates (500 Mb/s wanted), "
            "and enforcement by hardware is demanded there",
            id="demanded by configuration",
        ),
        pytest.param(
            asks(500, enforce=Enforce.HARDWARE),
            node_of(IGB_AUTO),
            {},
            Reason.DRIVER_REFUSES,
            "needs 1 interface of 500 Mb/s; enp0s0: igb takes no minimum rates (500 Mb/s wanted), "
            "and enforcement by hardware is demanded by the pod",
            id="demanded by the pod",
        ),
        pytest.param(
            asks(0, cap=500, enforce=Enforce.HARDWARE),
            node_of(IGB_AUTO, link=None),
            {},
            Reason.DRIVER_REFUSES,
            "needs 1 interface; enp0s0: igb takes maximum rates only while the link is up (500 Mb/s wanted), "
            "and enforcement by hardware is demanded by the pod",
            id="cap while the link is down",
        ),
        pytest.param(
            asks(200_000),
            node_of(IGB),
            {},
            Reason.EXCEEDS_CAPACITY,
            "needs 1 interface of 200000 Mb/s; best PF has 100000 Mb/s and 8 VFs when empty; enp0s0: igb "
            "takes no minimum rates (200000 Mb/s wanted), and enforcement by hardware is demanded there",
            id="too large for any driver",
        ),
        pytest.param(
            asks(500),
            node_of(IGB, ("mlx5_core", EVERY_RATE, Enforce.AUTO)),
            {pci(1): Used(2, 99_900)},
            Reason.INSUFFICIENT,
            "needs 1 interface of 500 Mb/s; best PF has 100 Mb/s and 6 VFs free; enp0s0: igb takes no "
            "minimum rates (500 Mb/s wanted), and enforcement by hardware is demanded there",
            id="another PF would",
        ),
        pytest.param(
            asks(99_500, 500),
            node_of(CX5),
            {},
            Reason.DRIVER_REFUSES,
            "needs 2 interfaces of 500 to 99500 Mb/s; enp0s0: minimum rates of mlx5_core are weights of 1 to "
            "100, by which one VF would get 99009 of its 99500 Mb/s",
            id="weights on the empty node",
        ),
        pytest.param(
            asks(50_000),
            node_of(CX5),
            {pci(0): Used(2, 50_000, (50_000,))},
            Reason.INSUFFICIENT,
            "needs 1 interface of 50000 Mb/s (50000 Mb/s together); 1 PF has 50000 of 100000 Mb/s unreserved "
            "and 6 of 8 VFs free, but no arrangement of the interfaces fits; enp0s0: minimum rates of "
            "mlx5_core are weights of 1 to 100, by which one VF would get 49751 of its 50000 Mb/s",
            id="weights beside a best-effort VF",
        ),
        pytest.param(
            asks(60_500, 39_500),
            node_of(QED),
            {},
            Reason.DRIVER_REFUSES,
            "needs 2 interfaces of 39500 to 60500 Mb/s; enp0s0: qede rounds a reservation of 60500 up to "
            "61000 Mb/s; enp0s0: qede rounds a reservation of 39500 up to 40000 Mb/s",
            id="rounded",
        ),
        pytest.param(
            asks(0, cap=5, enforce=Enforce.HARDWARE),
            node_of(
                ("i40e", RateAbility(max=RateRange(step=50, smallest=50, largest=100_000)), Enforce.AUTO)
            ),
            {pci(0): Used(8, 0)},
            Reason.DRIVER_REFUSES,
            "needs 1 interface; enp0s0: i40e takes maximum rates of 50 to 100000 Mb/s in steps of 50 "
            "(5 wanted), and enforcement by hardware is demanded by the pod",
            id="cap below the smallest",
        ),
    ],
)
def test_rejection_names_driver_and_value(
    request_: Request, node: Inventory, used: dict[PciAddress, Used], reason: Reason, message: str
) -> None:
    found = place(request_, node, used)
    assert isinstance(found, Rejection)
    assert (found.reason, found.message) == (reason, message)


def test_rejection_does_not_list_limits_without_end() -> None:
    rates = [20_001 + at for at in range(4)]
    found = place(asks(*rates, enforce=Enforce.HARDWARE), node_of(IGB_AUTO), {})
    assert isinstance(found, Rejection)
    assert found.message.count("igb takes no minimum rates") == 3
    assert found.message.endswith("; 1 more such limits")


def test_place_takes_an_accounted_reservation_unless_more_is_demanded() -> None:
    assert isinstance(place(asks(500, cap=700), node_of(IGB_AUTO), {}), Placement)
    assert isinstance(place(asks(0, cap=700), node_of(IGB), {}), Placement)


def test_software_that_must_cap_is_refused_by_an_agent_that_cannot() -> None:
    for rates in (EVERY_RATE, CAPS_ONLY):
        found = place(asks(0, cap=500, enforce=Enforce.SOFTWARE), node_of(("ice", rates, Enforce.AUTO)), {})
        assert isinstance(found, Rejection)
        assert found.reason is Reason.DRIVER_REFUSES
        assert found.message == (
            "needs 1 interface; enp0s0: its node caps nothing by software: "
            "the kernel lacks sch_tbf, or the agent is too old"
        )


@pytest.mark.parametrize("rates", [EVERY_RATE, CAPS_ONLY])
def test_software_that_must_cap_refuses_an_interface_of_a_program(rates: RateAbility) -> None:
    node = able(node_of(("ice", rates, Enforce.SOFTWARE)))
    programs = InterfaceOptions(driver=VfDriver.VFIO_PCI)
    capped = InterfaceRequest(max_tx_rate_mbps=500, options=programs)
    found = place(Request((capped,)), node, {})
    assert isinstance(found, Rejection)
    assert found.reason is Reason.DRIVER_REFUSES
    why = "software cannot cap a VF that is given to vfio-pci"
    there = "and enforcement by software is demanded there"
    assert found.message.endswith(f"enp0s0: {why} (500 Mb/s wanted), {there}")
    assert found.cause.endswith(f"{why}, {there}")
    assert not fits([PlacedInterface(pf=pci(0), max_tx_rate_mbps=500, options=programs)], node, {})
    assert isinstance(place(Request((InterfaceRequest(options=programs),)), node, {}), Placement)


@pytest.mark.parametrize("enforce", [Enforce.SOFTWARE, Enforce.AUTO])
def test_software_that_must_cap_takes_every_netdev(enforce: Enforce) -> None:
    there = Enforce.AUTO if enforce is Enforce.SOFTWARE else Enforce.SOFTWARE
    for rates in (EVERY_RATE, CAPS_ONLY, NO_RATE):
        node = able(node_of(("ice", rates, there)))
        assert isinstance(place(asks(0, 10, cap=500, enforce=enforce), node, {}), Placement)


def able(node: Inventory) -> Inventory:
    return Inventory(
        node=NODE, pfs=tuple(replace(pf, supported_settings=frozenset(Setting)) for pf in node.pfs)
    )


def test_place_puts_an_enforced_rate_on_a_pf_that_can_enforce_it() -> None:
    node = node_of(IGB_AUTO, ("ice", EVERY_RATE, Enforce.AUTO), vfs=2)
    request = Request((*asks(10, 10).interfaces, *asks(5, 5, enforce=Enforce.HARDWARE).interfaces))
    found = place(request, node, {})
    assert isinstance(found, Placement)
    assert [placed.pf for placed in found.interfaces] == [pci(0), pci(0), pci(1), pci(1)]


def test_place_gives_equal_reservations_the_whole_link_if_minima_are_weights() -> None:
    assert isinstance(place(asks(*[12_500] * 8), node_of(CX5), {}), Placement)
    beside = {pci(0): Used(1, 0)}
    assert isinstance(place(asks(*[12_500] * 8), node_of(CX5, vfs=9), beside), Rejection)


def test_place_distinguishes_pfs_that_have_as_much_free_but_round_differently() -> None:
    """60 and 40 must go to the PF on which 51 and 49 would cost 60 and 50."""
    coarse = RateAbility(min=RateRange(step=10, smallest=10, largest=100))
    node = node_of(("one", EVERY_RATE, Enforce.AUTO), ("two", coarse, Enforce.AUTO), link=100, vfs=3)
    found = place(asks(60, 51, 49, 40), node, {})
    assert isinstance(found, Placement)
    assert [placed.pf for placed in found.interfaces] == [pci(1), pci(0), pci(0), pci(1)]


@pytest.mark.parametrize("rates", [EVERY_RATE, MLX5, CAPS_ONLY])
def test_place_puts_interfaces_without_reservation_on_the_pf_with_the_least_bandwidth_for_any_driver(
    rates: RateAbility,
) -> None:
    node = node_of(("one", rates, Enforce.AUTO), ("two", rates, Enforce.AUTO))
    used = {pci(1): used_of(node.pfs[1], [60_000], 0)}
    found = place(asks(0), node, used)
    assert isinstance(found, Placement)
    assert [placed.pf for placed in found.interfaces] == [pci(1)]


def test_place_counts_the_weighing_of_vfs_in_use_as_work() -> None:
    card = Pf(name="enp1s0f0", pci=pci(0), capacity_vfs=128, link_mbps=100_000, rates=MLX5)
    used = {card.pci: used_of(card, list(range(1, 101)), 0)}
    request = Request((InterfaceRequest(min_tx_rate_mbps=1000),))
    node = Inventory(node=NODE, pfs=(card,))
    assert isinstance(place(request, node, used), Placement)
    found = place(request, node, used, budget=10)
    assert isinstance(found, Rejection)
    assert found.reason is Reason.UNDECIDED
