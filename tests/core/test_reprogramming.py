"""Later rates of a placement: which ones count meanwhile, how a driver rounds them, and in which order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from factories import PF0, PF1, hardware, interface, pf_state, receipt
from k8s_rdma.core.kernel import LocatedVf
from k8s_rdma.core.ledger import Ledger, RateChange
from k8s_rdma.core.placement import PlacedInterface, Placement, Rejection
from k8s_rdma.core.rate_ability import RateAbility, RateRange
from k8s_rdma.core.reprogramming import changing, judge_rates
from k8s_rdma.core.step import CapInterface, SetRates, VfRate
from k8s_rdma.core.types import NodeName, PciAddress
from k8s_rdma.errors import Reason

if TYPE_CHECKING:
    from k8s_rdma.core.kernel import Hardware
    from k8s_rdma.core.ledger import AllocatedInterface, Receipt

MLX5 = RateAbility(
    min=RateRange(smallest=1, largest=100_000, step=1),
    max=RateRange(smallest=1, largest=100_000, step=1),
    weights=100,
)


def placement(*rates: tuple[int, int], generation: int = 1) -> Placement:
    interfaces = tuple(
        PlacedInterface(pf=PF0, min_tx_rate_mbps=least, max_tx_rate_mbps=most) for least, most in rates
    )
    return Placement(node=NodeName("w1"), interfaces=interfaces, generation=generation)


def pod(*rates: tuple[int, int], first: int = 0) -> Receipt:
    interfaces = (
        replace(interface(PF0, first + index, f"rdma{index}", least, most), entry=index)
        for index, (least, most) in enumerate(rates)
    )
    return receipt("c1", *interfaces)


def judged(
    before: Receipt, target: Placement, seen: Hardware | None = None, *others: Receipt
) -> tuple[Receipt, ...] | Rejection:
    ledger = Ledger()
    for each in (before, *others):
        ledger = ledger.with_receipt(each)
    return judge_rates([before], target, seen or hardware(), ledger)


@pytest.mark.parametrize(("old", "new"), [(300, 500), (500, 300)])
def test_larger_of_two_reservations_counts_until_the_change_is_complete(old: int, new: int) -> None:
    [changed] = judged(pod((old, 0)), placement((new, 0)))
    ledger = Ledger().with_receipt(changed)
    [counted] = ledger.allocations()[changed.pod.uid]
    assert counted.min_tx_rate_mbps == 500
    [counted] = ledger.with_receipt(changed.completed()).allocations()[changed.pod.uid]
    assert counted.min_tx_rate_mbps == new


def test_receipts_of_earlier_generations_with_interfaces_are_outdated() -> None:
    first, second = pod((1, 0)), replace(pod((1, 0), first=2), generation=1)
    bare = replace(first, interfaces=())
    assert [each.is_outdated(1) for each in (first, second, bare)] == [True, False, False]
    assert not first.is_outdated(0)


def test_all_changed_rates_of_a_pf_are_one_step() -> None:
    [changed] = judged(pod((1, 9), (2, 0), (3, 0)), placement((5, 9), (2, 0), (1, 0)))
    assert changing([changed], {}) == (
        SetRates(
            pf=PF0,
            rates=(VfRate(0, 5, 9), VfRate(2, 1, 0)),
            previous=(VfRate(0, 1, 9), VfRate(2, 3, 0)),
        ),
    )


def test_caps_of_software_are_lowered_first_and_lifted_last_by_the_names_of_now() -> None:
    caps = [(40, 80), (80, 40), (0, 50), (50, 0)]
    before = tuple(
        replace(interface(PF0, index), software_max_tx_rate_mbps=old, set_max_tx_rate_mbps=0)
        for index, (old, _) in enumerate(caps)
    )
    target = tuple(
        replace(each, software_max_tx_rate_mbps=new, set_max_tx_rate_mbps=7)
        for each, (_, new) in zip(before, caps, strict=True)
    )
    change = RateChange(generation=1, interfaces=target)
    steps = changing([receipt("c1", *before, change=change)], {_pci(each): _located(each) for each in before})
    lowered, lifted = steps[:2], steps[3:]
    assert isinstance(steps[2], SetRates)
    assert [(step.ifname, step.max_tx_rate_mbps, step.previous) for step in lowered if _is_cap(step)] == [
        ("now1", 40, 80),
        ("now2", 50, 0),
    ]
    assert [(step.ifname, step.max_tx_rate_mbps, step.previous) for step in lifted if _is_cap(step)] == [
        ("now0", 80, 40),
        ("now3", 0, 50),
    ]


def _is_cap(step: object) -> bool:
    return isinstance(step, CapInterface)


def _pci(of: AllocatedInterface) -> PciAddress:
    return PciAddress(of.pci)


def _located(of: AllocatedInterface) -> LocatedVf:
    return LocatedVf(ifname=f"now{of.vf.index}", mac="", max_tx_rate_mbps=0, qdisc="")


def test_rates_are_programmed_as_the_driver_takes_them() -> None:
    steps_of_100 = RateRange(smallest=100, largest=1000, step=100)
    igb = hardware(pf_state(PF0, rates=RateAbility(min=None, max=steps_of_100)))
    [changed] = judged(pod((0, 0)), placement((250, 450)), igb)
    [target] = changed.completed().interfaces
    assert (target.min_tx_rate_mbps, target.max_tx_rate_mbps) == (250, 450)
    assert target.rate() == VfRate(0, 0, 400)


def test_raise_that_weights_would_not_keep_is_refused() -> None:
    weighted = hardware(pf_state(PF0, link_mbps=1000, rates=MLX5, vfs=8))
    others = receipt("c2", *(interface(PF0, index, minimum=1) for index in range(1, 8)))
    refused = judged(pod((1, 0)), placement((990, 0)), weighted, others)
    assert isinstance(refused, Rejection)
    assert refused.reason is Reason.INSUFFICIENT
    assert refused.message.startswith(
        "PF enp3s0f0: minimum rates of mlx5_core are weights, by which some of its VFs"
    )
    assert not isinstance(judged(pod((990, 0)), placement((1, 0)), weighted, others), Rejection)


def test_pf_that_is_not_there_is_named() -> None:
    refused = judged(pod((1, 0)), placement((2, 0)), hardware(pf_state(PF1)))
    assert isinstance(refused, Rejection)
    assert (refused.reason, refused.message) == (
        Reason.NO_SUCH_PF,
        "interface rdma0: its PF 0000:03:00.0 is not there",
    )
