from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from factories import PF0, PF1, hardware, interface, pf_state, receipt, vf
from k8s_rdma.core.allocation import choose_vfs, decide, foreign_usage, foreign_vfs, returned, used_here
from k8s_rdma.core.allocation import given as given_to_pod
from k8s_rdma.core.ids import NodeName, PciAddress
from k8s_rdma.core.inventory import Used
from k8s_rdma.core.ledger import Ledger
from k8s_rdma.core.placement import PlacedInterface, Placement, Rejection
from k8s_rdma.core.rates import NO_RATE, Enforce, RateAbility, RateRange
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.core.step import VfRate, VfRef
from k8s_rdma.errors import Reason

if TYPE_CHECKING:
    from k8s_rdma.core.kernel import Hardware

W1 = NodeName("w1")


def altered(index: int, **changes: object) -> Hardware:
    """The usual hardware with one VF of the first PF changed."""
    first = pf_state(PF0)
    vfs = tuple(replace(each, **changes) if each.index == index else each for each in first.vfs)
    return hardware(replace(first, vfs=vfs), pf_state(PF1))


def placement(*pfs: PciAddress, rate: int = 0) -> Placement:
    placed = tuple(PlacedInterface(pf=pf, min_tx_rate_mbps=rate) for pf in pfs)
    return Placement(node=W1, interfaces=placed)


def request(*rates: int) -> Request:
    return Request(tuple(InterfaceRequest(min_tx_rate_mbps=rate) for rate in rates))


def test_foreign_usage_counts_vfs_that_someone_else_moved_or_rated() -> None:
    away, rated = altered(1, netdev=None), altered(2, min_tx_rate_mbps=300)
    assert foreign_usage(away, Ledger()) == {PF0: Used(1, 0)}
    assert foreign_usage(rated, Ledger()) == {PF0: Used(1, 300)}
    assert foreign_usage(altered(2, max_tx_rate_mbps=9), Ledger()) == {PF0: Used(1, 0)}
    assert foreign_usage(hardware(), Ledger()) == {}


def test_foreign_usage_leaves_out_what_the_ledger_holds() -> None:
    held = Ledger().with_receipt(receipt("a", interface(PF0, 1, minimum=300)))
    assert foreign_usage(altered(1, netdev=None, min_tx_rate_mbps=300), held) == {}


def test_used_here_adds_ledger_and_foreign() -> None:
    held = Ledger().with_receipt(receipt("a", interface(PF0, 1, minimum=300)))
    found = used_here(altered(2, netdev=None, min_tx_rate_mbps=50), held)
    assert found == {PF0: Used(2, 350)}


def test_decide_keeps_the_promise_when_it_fits_and_places_anew_when_not() -> None:
    promised = placement(PF1, rate=400)
    kept = decide(node=W1, request=request(400), promised=promised, hardware=hardware(), ledger=Ledger())
    assert kept == promised
    full = Ledger().with_receipt(receipt("a", interface(PF1, 0, minimum=700)))
    moved = decide(node=W1, request=request(400), promised=promised, hardware=hardware(), ledger=full)
    assert isinstance(moved, Placement)
    assert [each.pf for each in moved.interfaces] == [PF0]


def test_decide_places_anew_when_the_promised_pf_is_gone_or_its_link_down() -> None:
    promised = placement(PF1, rate=400)
    for left in (hardware(pf_state(PF0)), hardware(pf_state(PF0), pf_state(PF1, link_mbps=None))):
        found = decide(node=W1, request=request(400), promised=promised, hardware=left, ledger=Ledger())
        assert isinstance(found, Placement)
        assert [each.pf for each in found.interfaces] == [PF0]


def test_decide_keeps_a_promise_without_reservation_when_the_link_is_down() -> None:
    down = hardware(pf_state(PF0), pf_state(PF1, link_mbps=None))
    promised = placement(PF1)
    assert decide(node=W1, request=request(0), promised=promised, hardware=down, ledger=Ledger()) == promised


def test_decide_refuses_with_the_reason_when_nothing_fits() -> None:
    found = decide(node=W1, request=request(1001), promised=None, hardware=hardware(), ledger=Ledger())
    assert isinstance(found, Rejection)
    assert found.reason is Reason.EXCEEDS_CAPACITY


def test_choose_vfs_takes_the_lowest_free_ones_in_the_placements_order() -> None:
    held = Ledger().with_receipt(receipt("a", interface(PF0, 0)))
    chosen = choose_vfs(placement(PF1, PF0, PF0), altered(1, netdev=None), held, ("x", "y", "z"))
    assert not isinstance(chosen, Rejection)
    assert [(each.vf, each.ifname) for each in chosen] == [
        (VfRef(PF1, 0), "x"),
        (VfRef(PF0, 2), "y"),
        (VfRef(PF0, 3), "z"),
    ]
    home = vf(PF1, 0)
    assert (chosen[0].home.name, chosen[0].home.mac, chosen[0].home.mtu) == (home.netdev, home.mac, home.mtu)


def test_choose_vfs_refuses_when_a_pf_has_no_free_one_left() -> None:
    found = choose_vfs(placement(*[PF0] * 5), hardware(), Ledger(), tuple("abcde"))
    assert isinstance(found, Rejection)
    assert found.reason is Reason.STALE_PLACEMENT
    assert "0000:03:00.0" in found.message


@given(st.lists(st.tuples(st.sampled_from((PF0, PF1)), st.integers(0, 200)), min_size=1, max_size=8))
def test_hardware_is_as_before_when_given_and_returned(drawn: list[tuple[PciAddress, int]]) -> None:
    asked = Placement(
        node=W1, interfaces=tuple(PlacedInterface(pf=pf, min_tx_rate_mbps=rate) for pf, rate in drawn)
    )
    wide = hardware(pf_state(PF0, vfs=8), pf_state(PF1, vfs=8))
    chosen = choose_vfs(asked, wide, Ledger(), tuple(f"rdma{index}" for index in range(len(drawn))))
    assert not isinstance(chosen, Rejection)
    assert len({each.vf for each in chosen}) == len(drawn)
    after = given_to_pod(wide, chosen)
    assert sum(vf.netdev is None for pf in after.pfs for vf in pf.vfs) == len(drawn)
    assert sum(vf.min_tx_rate_mbps for pf in after.pfs for vf in pf.vfs) == sum(rate for _, rate in drawn)
    assert returned(after, chosen) == wide


COARSE = RateAbility(
    min=RateRange(step=100, smallest=100, largest=1000), max=RateRange(step=100, smallest=100, largest=1000)
)
WEIGHTS = RateAbility(min=RateRange(), max=RateRange(), weights=100)


def test_choose_vfs_programs_what_the_driver_takes_and_accounts_that() -> None:
    coarse = hardware(pf_state(PF0, rates=COARSE), pf_state(PF1, rates=NO_RATE))
    asked = Placement(
        node=W1,
        interfaces=tuple(
            PlacedInterface(pf=pf, min_tx_rate_mbps=150, max_tx_rate_mbps=250) for pf in (PF0, PF1)
        ),
    )
    chosen = choose_vfs(asked, coarse, Ledger(), ("x", "y"))
    assert not isinstance(chosen, Rejection)
    assert [each.rate() for each in chosen] == [VfRate(0, 200, 200), VfRate(0, 0, 0)]
    assert [(each.min_tx_rate_mbps, each.max_tx_rate_mbps) for each in chosen] == [(150, 250)] * 2
    after = given_to_pod(coarse, chosen)
    assert [(pf.vfs[0].min_tx_rate_mbps, pf.vfs[0].max_tx_rate_mbps) for pf in after.pfs] == [
        (200, 200),
        (0, 0),
    ]
    held = Ledger().with_receipt(receipt("a", *chosen))
    assert used_here(after, held) == {PF0: Used(1, 200), PF1: Used(1, 150)}


def test_used_here_tells_the_minima_one_by_one_where_they_are_weights() -> None:
    weighted = hardware(pf_state(PF0, rates=WEIGHTS), pf_state(PF1))
    held = Ledger().with_receipt(
        receipt("a", interface(PF0, 0, minimum=100), interface(PF0, 1), interface(PF1, 0, minimum=100))
    )
    rated = replace(weighted.pfs[0].vfs[3], min_tx_rate_mbps=300)
    first = replace(weighted.pfs[0], vfs=(*weighted.pfs[0].vfs[:3], rated))
    found = used_here(hardware(first, weighted.pfs[1]), held)
    assert found == {PF0: Used(3, 400, (300, 100)), PF1: Used(1, 100)}


def test_decide_places_anew_when_the_promised_pf_cannot_program_what_must_be() -> None:
    placed = PlacedInterface(pf=PF1, max_tx_rate_mbps=400, enforce=Enforce.HARDWARE)
    promised = Placement(node=W1, interfaces=(placed,))
    found = decide(
        node=W1,
        request=promised.request(),
        promised=promised,
        hardware=hardware(pf_state(PF0), pf_state(PF1, rates=NO_RATE)),
        ledger=Ledger(),
    )
    assert isinstance(found, Placement)
    assert [each.pf for each in found.interfaces] == [PF0]


def test_decide_places_anew_when_vfs_would_get_less_by_their_weights() -> None:
    pfs = hardware(pf_state(PF0), pf_state(PF1, rates=WEIGHTS))
    promised = placement(PF1, rate=500)
    beside = Ledger().with_receipt(receipt("a", interface(PF1, 0, minimum=500)))
    kept = decide(node=W1, request=request(500), promised=promised, hardware=pfs, ledger=beside)
    assert kept == promised
    best_effort = beside.with_receipt(receipt("b", interface(PF1, 1)))
    moved = decide(node=W1, request=request(500), promised=promised, hardware=pfs, ledger=best_effort)
    assert isinstance(moved, Placement)
    assert [each.pf for each in moved.interfaces] == [PF0]


def test_vf_is_not_free_when_it_is_unusable() -> None:
    seen = altered(2, unusable="its driver did not start")
    [foreign] = foreign_vfs(seen, Ledger())
    assert (foreign.vf, foreign.why) == (VfRef(PF0, 2), "its driver did not start")
    assert foreign_usage(seen, Ledger()) == {PF0: Used(1, 0)}
