from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from factories import PF0, PF1, interface, receipt
from k8s_rdma.core.plan import plan, undo
from k8s_rdma.core.step import BringHome, ClearInterface, ConfigureInterface, GiveVf, Route, SetRates, VfRate

INTERFACES = st.lists(
    st.tuples(st.sampled_from((PF0, PF1)), st.integers(0, 500), st.integers(500, 900)), min_size=1, max_size=8
).map(
    lambda drawn: tuple(
        interface(pf, index, f"rdma{index}", minimum, maximum)
        for index, (pf, minimum, maximum) in enumerate(drawn)
    )
)


def test_plan_sets_rates_once_a_pf_then_moves_then_addresses() -> None:
    held = receipt(
        "a", interface(PF0, 0, "rdma0", 5, 9), interface(PF1, 0, "rdma1"), interface(PF0, 1, "rdma2", 7)
    )
    steps = plan(held, {"rdma1": (("10.0.0.2/24",), (Route("10.1.0.0/16", "10.0.0.1"),))})
    assert [type(step) for step in steps] == [SetRates] * 2 + [GiveVf] * 3 + [ConfigureInterface] * 3
    assert steps[0] == SetRates(
        pf=PF0, rates=(VfRate(0, 5, 9), VfRate(1, 7, 0)), previous=(VfRate(0), VfRate(1))
    )
    assert [step.addresses for step in steps if isinstance(step, ConfigureInterface)] == [
        (),
        ("10.0.0.2/24",),
        (),
    ]


@given(INTERFACES)
def test_undo_ends_with_every_vf_home_and_without_rates(interfaces: tuple) -> None:
    steps = undo(plan(receipt("a", *interfaces), {}))
    kinds = [type(step) for step in steps]
    assert kinds == sorted(kinds, key=[ClearInterface, BringHome, SetRates].index)
    assert {step.vf for step in steps if isinstance(step, BringHome)} == {each.vf for each in interfaces}
    reset = {(step.pf, rate) for step in steps if isinstance(step, SetRates) for rate in step.rates}
    assert reset == {(each.vf.pf, VfRate(each.vf.index)) for each in interfaces}


@given(INTERFACES)
def test_undo_of_undo_is_the_plan(interfaces: tuple) -> None:
    steps = plan(receipt("a", *interfaces), {})
    assert undo(undo(steps)) == steps
