"""SetRates, the same on every kernel."""

from __future__ import annotations

import pytest

from contract.lab import LINK_MBPS, PF0, PF1
from k8s_rdma.core.ids import PciAddress
from k8s_rdma.core.step import SetRates, VfRate
from k8s_rdma.errors import KernelError


def set_rates(*rates: VfRate, pf: PciAddress = PF0) -> SetRates:
    return SetRates(pf=pf, rates=rates, previous=tuple(VfRate(rate.index) for rate in rates))


def rates(lab, pf=PF0):
    state = next(each for each in lab.kernel.observe().pfs if each.pci == pf)
    return [(vf.min_tx_rate_mbps, vf.max_tx_rate_mbps) for vf in state.vfs]


def test_rates_are_read_back_when_set(lab):
    lab.kernel.apply(set_rates(VfRate(0, 100, 200), VfRate(2, 1, 0)))
    assert rates(lab) == [(100, 200), (0, 0), (1, 0)]
    assert rates(lab, PF1) == [(0, 0)] * 3


@pytest.mark.parametrize("cap", [1, LINK_MBPS - 1, LINK_MBPS, LINK_MBPS + 1, 40 * LINK_MBPS])
def test_cap_is_read_back_as_it_was_set_whatever_the_link(lab, cap):
    lab.kernel.apply(set_rates(VfRate(1, 0, cap)))
    assert rates(lab)[1] == (0, cap)


def test_rates_hold_when_set_twice(lab):
    step = set_rates(VfRate(0, 100, 200))
    lab.kernel.apply(step)
    before = lab.kernel.observe()
    lab.kernel.apply(step)
    assert lab.kernel.observe() == before


def test_rates_are_as_before_when_inverted(lab):
    lab.kernel.apply(set_rates(VfRate(0, 100, 200)))
    before = lab.kernel.observe()
    step = SetRates(
        pf=PF0, rates=(VfRate(0, 5, 6), VfRate(1, 7, 0)), previous=(VfRate(0, 100, 200), VfRate(1))
    )
    lab.kernel.apply(step)
    assert lab.kernel.observe() != before
    lab.kernel.apply(step.inverse)
    assert lab.kernel.observe() == before


@pytest.mark.parametrize(
    "step",
    [
        set_rates(VfRate(0, 10, 20), VfRate(3, 10, 20)),
        set_rates(VfRate(0, 10, 20), pf=PciAddress("0000:99:00.0")),
        set_rates(VfRate(0, 10, 20), VfRate(1, 21, 20)),
        set_rates(VfRate(0, 600, 0), VfRate(1, 401, 0)),
    ],
    ids=["unknown VF", "unknown PF", "min above max", "sum above link"],
)
def test_rates_are_refused_whole_when_one_cannot_be(lab, step):
    before = lab.kernel.observe()
    with pytest.raises(KernelError):
        lab.kernel.apply(step)
    assert lab.kernel.observe() == before


def test_reservations_may_fill_the_link_to_the_last_megabit(lab):
    lab.kernel.apply(set_rates(VfRate(0, 600, 0), VfRate(1, 399, 0)))
    lab.kernel.apply(set_rates(VfRate(2, 1, 0)))
    assert sum(minimum for minimum, _ in rates(lab)) == LINK_MBPS


def test_unknown_vf_error_names_pf_and_what_it_has(lab):
    with pytest.raises(KernelError, match=r"VF 3 of PF 0000:03:00\.0.*enp3s0f0 has 3 VFs"):
        lab.kernel.apply(set_rates(VfRate(3, 1, 2)))
