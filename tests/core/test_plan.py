from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from factories import PF0, PF1, interface, receipt
from k8s_rdma.core.plan import configurations, separate_steps, undo
from k8s_rdma.core.step import (
    BringHome,
    CapInterface,
    CleanVf,
    ClearInterface,
    ConfigureInterface,
    GiveVf,
    Route,
    SetRates,
    VfRate,
)
from plans import plan

if TYPE_CHECKING:
    from k8s_rdma.core.ledger import AllocatedInterface

INTERFACES = st.lists(
    st.tuples(
        st.sampled_from((PF0, PF1)),
        st.integers(0, 500),
        st.integers(500, 900),
        st.just(0) | st.integers(500, 900),
    ),
    min_size=1,
    max_size=8,
).map(
    lambda drawn: tuple(
        replace(interface(pf, index, f"rdma{index}", minimum, maximum), software_max_tx_rate_mbps=cap)
        for index, (pf, minimum, maximum, cap) in enumerate(drawn)
    )
)


def test_plan_cleans_vfs_sets_rates_once_a_pf_then_moves_then_addresses() -> None:
    held = receipt(
        "a", interface(PF0, 0, "rdma0", 5, 9), interface(PF1, 0, "rdma1"), interface(PF0, 1, "rdma2", 7)
    )
    steps = plan(held, {"rdma1": (("10.0.0.2/24",), (Route("10.1.0.0/16", "10.0.0.1"),))})
    moves = [GiveVf] * 3 + [ConfigureInterface] * 3
    assert [type(step) for step in steps] == [CleanVf] * 3 + [SetRates] * 2 + moves
    assert steps[3] == SetRates(
        pf=PF0, rates=(VfRate(0, 5, 9), VfRate(1, 7, 0)), previous=(VfRate(0), VfRate(1))
    )
    assert [step.addresses for step in steps if isinstance(step, ConfigureInterface)] == [
        (),
        ("10.0.0.2/24",),
        (),
    ]


def test_plan_caps_an_interface_by_software_before_it_comes_up() -> None:
    capped = replace(interface(PF0, 1, "rdma1"), software_max_tx_rate_mbps=700)
    held = receipt("a", interface(PF0, 0, "rdma0"), capped)
    assert configurations(held, {}) == (
        ConfigureInterface(netns=held.netns, ifname="rdma0"),
        CapInterface(netns=held.netns, ifname="rdma1", max_tx_rate_mbps=700),
        ConfigureInterface(netns=held.netns, ifname="rdma1"),
    )


@given(INTERFACES)
def test_plan_caps_exactly_the_interfaces_with_software_caps_between_move_and_up(
    interfaces: tuple[AllocatedInterface, ...],
) -> None:
    held = receipt("a", *interfaces)
    steps = plan(held, {})
    caps = {step.ifname: step for step in steps if isinstance(step, CapInterface)}
    assert {name: step.max_tx_rate_mbps for name, step in caps.items()} == {
        each.ifname: each.software_max_tx_rate_mbps for each in interfaces if each.software_max_tx_rate_mbps
    }
    for name, cap in caps.items():
        of_it = [type(step) for step in steps if getattr(step, "ifname", "") == name]
        assert of_it == [GiveVf, CapInterface, ConfigureInterface]
        assert cap.netns == held.netns


@given(INTERFACES)
def test_plan_to_end_an_attachment_leaves_caps_to_the_move_home(
    interfaces: tuple[AllocatedInterface, ...],
) -> None:
    assert not [step for step in separate_steps(receipt("a", *interfaces)) if isinstance(step, CapInterface)]


@given(INTERFACES)
def test_undo_ends_with_every_vf_home_and_without_rates(interfaces: tuple[AllocatedInterface, ...]) -> None:
    steps = undo(plan(receipt("a", *interfaces), {}))
    assert not any(step.max_tx_rate_mbps for step in steps if isinstance(step, CapInterface))
    kinds = [type(step) for step in steps if not isinstance(step, CapInterface)]
    assert kinds == sorted(kinds, key=[ClearInterface, BringHome, SetRates, CleanVf].index)
    assert {step.vf for step in steps if isinstance(step, BringHome)} == {each.vf for each in interfaces}
    reset = {(step.pf, rate) for step in steps if isinstance(step, SetRates) for rate in step.rates}
    assert reset == {(each.vf.pf, VfRate(each.vf.index)) for each in interfaces}


@given(INTERFACES)
def test_undo_of_undo_is_the_plan(interfaces: tuple[AllocatedInterface, ...]) -> None:
    steps = plan(receipt("a", *interfaces), {})
    assert undo(undo(steps)) == steps
