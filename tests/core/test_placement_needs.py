"""`place` with interfaces' needs that only some PFs meet, against every assignment there is."""

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
from k8s_rdma.core.rate_ability import EVERY_RATE, NO_RATE, RateAbility
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.core.types import NO_NEEDS, Enforce, LinkType, PfSelector, Setting, VfDriver, VlanProto
from k8s_rdma.errors import Reason
from packing_oracle import NODE, pci
from placement_oracle import COARSE, anywhere, needy, possible, takes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from k8s_rdma.core.types import PciAddress
    from placement_oracle import Situation

ETHERNET, INFINIBAND = LinkType.ETHERNET, LinkType.INFINIBAND


def willing(node: Inventory, request: Request) -> tuple[Request, Inventory]:
    """The same without needs, on PFs that program every rate."""
    plain = Request(tuple(replace(each, options=InterfaceOptions()) for each in request.interfaces))
    pfs = tuple(
        replace(pf, rates=EVERY_RATE, supported_settings=pf.supported_settings | {Setting.SOFTWARE_CAPS})
        for pf in node.pfs
    )
    return plain, Inventory(node=NODE, pfs=pfs)


@given(needy())
def test_place_agrees_with_trying_every_assignment(drawn: tuple[Request, Situation]) -> None:
    request, (node, used) = drawn
    found = place(request, node, used)
    if isinstance(found, Placement):
        assert found.request() == request
        for pf in node.pfs:
            on_it = [placed.as_request() for placed in found.interfaces if placed.pf == pf.pci]
            assert takes(pf, used.get(pf.pci, NOTHING_USED), on_it)
        assert fits(found.interfaces, node, used)
        return
    assert not possible(request, node, used)
    expected = Reason.INSUFFICIENT
    if not possible(request, node, {}):
        ever = possible(*willing(node, request), {})
        by_choice = possible(anywhere(request), node, {})
        expected = Reason.NO_SUCH_PF if by_choice else Reason.DRIVER_REFUSES
        expected = expected if ever else Reason.EXCEEDS_CAPACITY
    assert found.reason is expected
    assert found.message.startswith("needs ")
    assert "\n" not in found.message


@given(needy(), st.data())
def test_fits_agrees_with_the_abilities_of_pfs(drawn: tuple[Request, Situation], data: st.DataObject) -> None:
    request, (node, used) = drawn
    homes = data.draw(st.lists(st.sampled_from(node.pfs), min_size=5, max_size=5))[: len(request.interfaces)]
    placed = [
        PlacedInterface(
            pf=home.pci,
            min_tx_rate_mbps=wanted.min_tx_rate_mbps,
            max_tx_rate_mbps=wanted.max_tx_rate_mbps,
            enforce=wanted.enforce,
            options=wanted.options,
        )
        for home, wanted in zip(homes, request.interfaces, strict=True)
    ]
    taken = all(
        takes(pf, used[pf.pci], [each.as_request() for each in placed if each.pf == pf.pci])
        for pf in node.pfs
    )
    assert fits(placed, node, used) == taken


@given(needy(), st.integers(0, 60))
def test_place_is_never_wrong_when_its_budget_ends_early(
    drawn: tuple[Request, Situation], budget: int
) -> None:
    request, (node, used) = drawn
    found = place(request, node, used, budget=budget)
    if isinstance(found, Placement):
        assert fits(found.interfaces, node, used)
    elif found.reason is not Reason.UNDECIDED:
        assert not possible(request, node, used)


def asks(*each: tuple[int, InterfaceOptions]) -> Request:
    return Request(tuple(InterfaceRequest(min_tx_rate_mbps=rate, options=options) for rate, options in each))


def node_of(**changes: Mapping[str, object]) -> Inventory:
    """Three PFs of 1,000 Mb/s and 4 VFs: a ConnectX on Ethernet, an 82576, a ConnectX on InfiniBand."""
    base = Pf(name="", pci=pci(0), capacity_vfs=4, link_mbps=1000)
    settings = frozenset({Setting.VLAN, Setting.MTU, Setting.TRUST, Setting.VFIO_PCI})
    cx5 = replace(
        base, name="cx5", driver="mlx5_core", vendor="15b3:1017", mtu=9000, supported_settings=settings
    )
    igb = replace(base, name="igb", pci=pci(1), driver="igb", vendor="8086:10c9", mtu=1500)
    igb = replace(igb, supported_settings=frozenset({Setting.VLAN, Setting.MTU}))
    ib = replace(
        cx5,
        name="ib",
        pci=pci(2),
        link_type=INFINIBAND,
        mtu=4092,
        supported_settings=frozenset({Setting.GUID}),
    )
    return Inventory(node=NODE, pfs=tuple(replace(pf, **changes.get(pf.name, {})) for pf in (cx5, igb, ib)))


def only(**sets: Iterable[str]) -> InterfaceOptions:
    return InterfaceOptions(pf=PfSelector(**{key: frozenset(values) for key, values in sets.items()}))


@pytest.mark.parametrize(
    ("request_", "used", "reason", "message"),
    [
        pytest.param(
            asks((600, only(names=["nope"]))),
            {},
            Reason.NO_SUCH_PF,
            "needs 1 interface of 600 Mb/s; cx5, igb, ib: not what pf selects (name nope)",
            id="no such PF",
        ),
        pytest.param(
            asks((0, only(vendors=["1077"], drivers=["a", "b", "c", "d", "e"]))),
            {},
            Reason.NO_SUCH_PF,
            "needs 1 interface; cx5, igb, ib: not what pf selects (vendor 1077, driver a or b or c "
            "or 2 more)",
            id="long selector",
        ),
        pytest.param(
            asks((600, only(names=["igb"])), (600, only(names=["igb"]))),
            {},
            Reason.NO_SUCH_PF,
            "needs 1200 Mb/s for 2 interfaces; 1 PF has 1000 Mb/s and 4 VFs when empty; "
            "cx5, ib: not what pf selects (name igb)",
            id="too much for the PF that is selected",
        ),
        pytest.param(
            asks((600, only(pcis=[pci(1)]))),
            {pci(1): Used(1, 500)},
            Reason.INSUFFICIENT,
            "needs 1 interface of 600 Mb/s; best PF has 500 Mb/s and 3 VFs free; "
            f"cx5, ib: not what pf selects (pci {pci(1)})",
            id="too much beside what is used there",
        ),
        pytest.param(
            asks((1100, only(names=["igb"]))),
            {},
            Reason.EXCEEDS_CAPACITY,
            "needs 1 interface of 1100 Mb/s; best PF has 1000 Mb/s and 4 VFs when empty; "
            "cx5, ib: not what pf selects (name igb)",
            id="too much for any PF",
        ),
        pytest.param(
            asks((0, InterfaceOptions(link_type=INFINIBAND, vlan=5, trust=True))),
            {},
            Reason.NO_SUCH_PF,
            "needs 1 interface; cx5, igb: its link is ethernet, and link_type is infiniband; "
            "ib: mlx5_core cannot set trust, vlan of a VF",
            id="link type and settings",
        ),
        pytest.param(
            asks((0, InterfaceOptions(mtu=9216))),
            {},
            Reason.NO_SUCH_PF,
            "needs 1 interface; cx5: its MTU is 9000, and mtu is 9216; "
            "igb: its MTU is 1500, and mtu is 9216; ib: its MTU is 4092, and mtu is 9216",
            id="mtu",
        ),
        pytest.param(
            asks((0, InterfaceOptions(vlan=5, vlan_proto=VlanProto.DOT1AD))),
            {},
            Reason.DRIVER_REFUSES,
            "needs 1 interface; cx5: mlx5_core cannot set vlan_proto of a VF; igb: igb cannot set vlan_proto "
            "of a VF; ib: mlx5_core cannot set vlan, vlan_proto of a VF",
            id="vlan_proto",
        ),
        pytest.param(
            asks(*[(0, InterfaceOptions(driver=VfDriver.VFIO_PCI))] * 5),
            {},
            Reason.DRIVER_REFUSES,
            "needs 5 interfaces; 1 PF has 4 VFs when empty; igb, ib: its VFs cannot be given to vfio-pci",
            id="vfio",
        ),
        pytest.param(
            asks((0, InterfaceOptions(mtu=9000)), *[(0, only(names=[str(at)])) for at in range(4)]),
            {},
            Reason.NO_SUCH_PF,
            "needs 5 interfaces; 1 PF has 4 VFs when empty; cx5, igb, ib: not what pf selects (name 0); "
            "cx5, igb, ib: not what pf selects (name 1); cx5, igb, ib: not what pf selects (name 2); "
            "3 more such limits",
            id="many",
        ),
        pytest.param(
            asks((300, InterfaceOptions(mac="02:00:00:00:00:01")), (0, InterfaceOptions(link_type=ETHERNET))),
            {},
            Reason.DRIVER_REFUSES,
            "needs 2 interfaces, 1 of them of 300 Mb/s (300 Mb/s together); 2 PFs have 2000 Mb/s and 8 VFs "
            "when empty, but no arrangement of the interfaces fits; cx5, ib: mlx5_core cannot set mac of "
            "a VF; igb: igb cannot set mac of a VF; ib: its link is infiniband, and link_type is ethernet",
            id="one of two",
        ),
        pytest.param(
            asks((300, InterfaceOptions(trust=True)), (0, only(names=["igb"]))),
            {pci(0): Used(1, 800)},
            Reason.INSUFFICIENT,
            "needs 2 interfaces, 1 of them of 300 Mb/s (300 Mb/s together); 2 PFs have 1200 of 2000 Mb/s "
            "unreserved and 7 of 8 VFs free, but no arrangement of the interfaces fits; igb: igb cannot set "
            "trust of a VF; ib: mlx5_core cannot set trust of a VF; cx5, ib: not what pf selects (name igb)",
            id="one of two, for now",
        ),
    ],
)
def test_rejection_names_pf_and_setting(
    request_: Request, used: dict[PciAddress, Used], reason: Reason, message: str
) -> None:
    found = place(request_, node_of(), used)
    assert isinstance(found, Rejection)
    assert (found.reason, found.message) == (reason, message)


def test_rejection_names_first_the_need_that_no_pf_meets() -> None:
    possible_ones = [only(names=["cx5", str(at)]) for at in range(100)]
    request = asks(*[(0, each) for each in possible_ones], (0, InterfaceOptions(mtu=9216)))
    found = place(request, node_of(cx5={"capacity_vfs": 200}), {})
    assert isinstance(found, Rejection)
    assert found.reason is Reason.NO_SUCH_PF
    clauses = found.message.split("; ")
    assert [clause for clause in clauses if "mtu is 9216" in clause] == clauses[2:5]
    assert clauses[5].endswith("more such limits")


def test_rejection_says_that_an_mtu_is_not_known() -> None:
    node = Inventory(node=NODE, pfs=(Pf(name="old", pci=pci(0), capacity_vfs=4, link_mbps=1000),))
    found = place(asks((0, InterfaceOptions(mtu=1280))), node, {})
    assert isinstance(found, Rejection)
    assert found.message == "needs 1 interface; old: its MTU is not known, and mtu is 1280"


def test_mtu_that_the_driver_cannot_set_is_refused_by_it_and_not_for_want_of_a_pf() -> None:
    cannot = {"supported_settings": frozenset({Setting.VLAN})}
    wanted = asks((0, InterfaceOptions(mtu=1280)))
    found = place(wanted, node_of(cx5=cannot, igb=cannot, ib=cannot), {})
    assert isinstance(found, Rejection)
    assert (found.reason, found.message) == (
        Reason.DRIVER_REFUSES,
        "needs 1 interface; cx5, ib: mlx5_core cannot set mtu of a VF; igb: igb cannot set mtu of a VF",
    )
    found = place(
        wanted,
        node_of(
            cx5=cannot | {"mtu": 1000},
            igb=cannot,
            ib={"mtu": 1000, "supported_settings": frozenset({Setting.MTU})},
        ),
        {},
    )
    assert isinstance(found, Rejection)
    assert found.reason is Reason.NO_SUCH_PF  # one could set it, if its PF had that MTU


def test_rejection_says_that_the_link_of_the_pf_that_is_selected_may_be_down() -> None:
    found = place(asks((100, only(names=["cx5"]))), node_of(cx5={"link_mbps": None}), {})
    assert isinstance(found, Rejection)
    assert found.message == (
        "needs 1 interface of 100 Mb/s; best PF has 0 Mb/s and 4 VFs when empty; link speed of cx5 is "
        "unknown (link down?), only interfaces without a reservation fit there; "
        "igb, ib: not what pf selects (name cx5)"
    )


def test_rejection_distinguishes_needs_and_rates() -> None:
    node = node_of(igb={"rates": NO_RATE})
    wanted = InterfaceRequest(
        min_tx_rate_mbps=5, enforce=Enforce.HARDWARE, options=InterfaceOptions(link_type=ETHERNET, mtu=1500)
    )
    igb_alone = Inventory(node=NODE, pfs=node.pfs[1:])
    found = place(Request((wanted,)), igb_alone, {})
    assert isinstance(found, Rejection)
    assert found.message == (
        "needs 1 interface of 5 Mb/s; ib: its link is infiniband, and link_type is ethernet; igb: igb takes "
        "no minimum rates (5 Mb/s wanted), and enforcement by hardware is demanded by the pod"
    )


def test_place_puts_interfaces_on_able_pfs_although_another_pf_is_a_better_fit() -> None:
    anywhere, infiniband = InterfaceOptions(), InterfaceOptions(link_type=INFINIBAND)
    request = asks((500, anywhere), (0, infiniband), (500, only(vendors=["8086"])), (100, anywhere))
    found = place(request, node_of(), {pci(0): Used(0, 900)})
    assert isinstance(found, Placement)
    assert [each.pf for each in found.interfaces] == [pci(1), pci(2), pci(1), pci(0)]
    assert found.request() == request


def test_sixty_interfaces_of_as_many_names_are_one_kind() -> None:
    """29 of 3,334 Mb/s fit on a PF of 100,000; that no more do would not be found of 60 kinds."""
    pfs = tuple(
        Pf(
            name=f"p{at}",
            pci=pci(at),
            capacity_vfs=64,
            link_mbps=100_000,
            supported_settings=frozenset(Setting),
            mtu=9000,
        )
        for at in range(3)
    )
    node = Inventory(node=NODE, pfs=pfs)
    options = [
        InterfaceOptions(
            name=f"n{at}",
            mac=f"02:00:00:00:00:{at:02x}",
            vlan=at,
            mtu=9000,
            pf=PfSelector(names=frozenset({"p0", "p2"})),
        )
        for at in range(60)
    ]
    assert isinstance(place(asks(*[(3_334, each) for each in options[:58]]), node, {}), Placement)
    found = place(asks(*[(3_334, each) for each in options]), node, {})
    assert isinstance(found, Rejection)
    assert found.reason is Reason.NO_SUCH_PF


def test_names_alone_leave_a_request_as_it_is() -> None:
    named = asks(*[(3_334, InterfaceOptions(name=f"n{at}", network="x")) for at in range(60)])
    assert all(each.needs is NO_NEEDS for each in named.interfaces)


def test_interfaces_of_one_kind_are_searched_together_wherever_they_stand_in_the_request() -> None:
    """Five of 3,334 Mb/s fit on each PF of 20,000, no eleventh of a kind; in turns that takes 3,750."""
    pfs = tuple(Pf(name=f"p{at}", pci=pci(at), capacity_vfs=64, link_mbps=20_000) for at in range(4))
    one, other = only(names=["p0", "p1"]), only(names=["p2", "p3"])
    request = asks(*[(3_334, one), (3_334, other)] * 8, *[(3_334, one)] * 3)
    found = place(request, Inventory(node=NODE, pfs=pfs), {}, budget=2_000)
    assert isinstance(found, Rejection)
    assert found.reason is Reason.NO_SUCH_PF


@pytest.mark.parametrize(
    ("rates", "enforce", "told"),
    [(COARSE, Enforce.AUTO, "ice rounds"), (NO_RATE, Enforce.HARDWARE, "ice takes no minimum rates")],
    ids=["rounded", "refused"],
)
def test_pf_is_counted_once_if_different_interfaces_are_refused_with_the_same_words(
    rates: RateAbility, enforce: Enforce, told: str
) -> None:
    pf = Pf(name="enp1s0", pci=pci(0), capacity_vfs=8, link_mbps=100, rates=rates, driver="ice")
    wanted = [
        InterfaceRequest(
            min_tx_rate_mbps=95,
            enforce=enforce,
            options=InterfaceOptions(pf=PfSelector(drivers=frozenset({"ice", other}))),
        )
        for other in ("igb", "i40e")
    ]
    found = place(Request(tuple(wanted)), Inventory(node=NODE, pfs=(pf,)), {})
    assert isinstance(found, Rejection)
    assert f"; enp1s0: {told}" in found.message
    assert f"; 1 PF: {told}" in found.numbers
