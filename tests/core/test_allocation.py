from __future__ import annotations

from dataclasses import replace

from core.chosen_vfs import ASKED, W1, altered, asking, chosen_for
from factories import PF0, PF1, hardware, interface, pf_state, receipt, vf
from k8s_rdma.core.allocation import choose_vfs, decide, foreign_usage, foreign_vfs, used_locally
from k8s_rdma.core.expected_hardware import with_allocations as given_to_pod
from k8s_rdma.core.ledger import Ledger
from k8s_rdma.core.options import NO_OPTIONS, InterfaceOptions
from k8s_rdma.core.pf_use import Used
from k8s_rdma.core.placement import PlacedInterface, Placement, Rejection
from k8s_rdma.core.rate_ability import NO_RATE, RateAbility, RateRange
from k8s_rdma.core.request import InterfaceRequest, PfPolicy, Request
from k8s_rdma.core.step import VfConfig, VfRate, VfRef, Vlan
from k8s_rdma.core.types import Enforce, LinkState, PciAddress, VlanProto
from k8s_rdma.errors import Reason


def placement(*pfs: PciAddress, rate: int = 0) -> Placement:
    placed = tuple(PlacedInterface(pf=pf, min_tx_rate_mbps=rate) for pf in pfs)
    return Placement(node=W1, interfaces=placed)


def request(*rates: int) -> Request:
    return Request(tuple(InterfaceRequest(min_tx_rate_mbps=rate) for rate in rates))


def test_foreign_usage_counts_vfs_that_another_program_moved_or_rated() -> None:
    away, rated = altered(1, netdev=None), altered(2, min_tx_rate_mbps=300)
    assert foreign_usage(away, Ledger()) == {PF0: Used(1, 0)}
    assert foreign_usage(rated, Ledger()) == {PF0: Used(1, 300)}
    assert foreign_usage(altered(2, max_tx_rate_mbps=9), Ledger()) == {PF0: Used(1, 0)}
    assert foreign_usage(hardware(), Ledger()) == {}


def test_foreign_usage_leaves_out_vfs_of_the_ledger() -> None:
    held = Ledger().with_receipt(receipt("a", interface(PF0, 1, minimum=300)))
    assert foreign_usage(altered(1, netdev=None, min_tx_rate_mbps=300), held) == {}


def test_used_here_adds_ledger_and_foreign() -> None:
    held = Ledger().with_receipt(receipt("a", interface(PF0, 1, minimum=300)))
    found = used_locally(altered(2, netdev=None, min_tx_rate_mbps=50), held)
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


def test_decide_places_anew_if_the_promise_contradicts_the_policy() -> None:
    promised = Placement(node=W1, interfaces=(PlacedInterface(pf=PF0), PlacedInterface(pf=PF1)))
    together = Request((InterfaceRequest(), InterfaceRequest()), PfPolicy.SAME_PF)

    def homes(request: Request, *, beside: tuple[PciAddress, ...] = ()) -> list[PciAddress]:
        found = decide(
            node=W1,
            request=request,
            promised=promised,
            hardware=hardware(),
            ledger=Ledger(),
            sibling_pfs=beside,
        )
        assert isinstance(found, Placement)
        assert found.policy in (request.policy, promised.policy)
        return [placed.pf for placed in found.interfaces]

    assert homes(replace(together, policy=PfPolicy.SPREAD_PFS)) == [PF0, PF1]
    assert homes(together) == [PF0, PF0]
    assert homes(together, beside=(PF1,)) == [PF1, PF1]


def test_decide_refuses_with_the_reason_when_no_pf_fits() -> None:
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


COARSE = RateAbility(
    min=RateRange(step=100, smallest=100, largest=1000), max=RateRange(step=100, smallest=100, largest=1000)
)

WEIGHTS = RateAbility(min=RateRange(), max=RateRange(), weights=100)


def test_choose_vfs_programs_and_accounts_the_rates_that_the_driver_takes() -> None:
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
    assert used_locally(after, held) == {PF0: Used(1, 200), PF1: Used(1, 150)}


def test_used_locally_lists_each_minimum_if_minima_are_weights() -> None:
    weighted = hardware(pf_state(PF0, rates=WEIGHTS), pf_state(PF1))
    held = Ledger().with_receipt(
        receipt("a", interface(PF0, 0, minimum=100), interface(PF0, 1), interface(PF1, 0, minimum=100))
    )
    rated = replace(weighted.pfs[0].vfs[3], min_tx_rate_mbps=300)
    first = replace(weighted.pfs[0], vfs=(*weighted.pfs[0].vfs[:3], rated))
    found = used_locally(hardware(first, weighted.pfs[1]), held)
    assert found == {PF0: Used(3, 400, (300, 100)), PF1: Used(1, 100)}


def test_decide_places_anew_when_the_promised_pf_cannot_program_required_rates() -> None:
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


def test_choose_vfs_returns_the_entry_of_the_request_for_each_interface() -> None:
    whole = chosen_for(asking(NO_OPTIONS, NO_OPTIONS))
    assert [each.entry for each in whole] == [0, 1]
    part = choose_vfs(asking(NO_OPTIONS, NO_OPTIONS), hardware(), Ledger(), ("x", "y"), (3, 1))
    assert not isinstance(part, Rejection)
    assert [(each.ifname, each.entry) for each in part] == [("x", 3), ("y", 1)]


def test_choose_vfs_sets_requested_options_and_notes_previous_values() -> None:
    seen = altered(0, admin_mac="00:00:00:00:00:00", spoof_check="ON", link_state="Down", driver="iavf")
    [made, plain] = chosen_for(asking(ASKED, NO_OPTIONS), seen)
    assert (made.options, made.kernel_driver) == (ASKED, "iavf")
    assert made.config == VfConfig(
        index=0,
        mac="02:00:00:00:00:aa",
        vlan=Vlan(100, 3, VlanProto.DOT1AD),
        trust=True,
        spoof_check=False,
        link_state=LinkState.ENABLE,
    )
    assert made.previous == VfConfig(
        index=0,
        mac="00:00:00:00:00:00",
        vlan=Vlan(0),
        trust=False,
        spoof_check=True,
        link_state=LinkState.DISABLE,
    )
    assert (plain.config, plain.previous) == (None, None)


def test_choose_vfs_gives_the_vf_that_has_the_requested_mac() -> None:
    own, other = vf(PF0, 0).mac, "02:00:00:00:00:99"
    seen = altered(2, admin_mac=other)
    options = [NO_OPTIONS, InterfaceOptions(mac=other), InterfaceOptions(mac=own), NO_OPTIONS]
    made = chosen_for(asking(*options), seen)
    assert [each.vf.index for each in made] == [1, 2, 0, 3]
    assert [each.mac for each in made[1:3]] == [other, own]
    assert isinstance(choose_vfs(asking(*options[:2], *options), seen, Ledger(), tuple("abcdef")), Rejection)
