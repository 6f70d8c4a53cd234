"""SetRates, the same on every kernel."""

from __future__ import annotations

import pytest

from contract.lab import needs_min_rates, rate
from k8s_rdma.core.step import SetRates, VfRate
from k8s_rdma.core.types import PciAddress
from k8s_rdma.errors import KernelError


def set_rates(lab, *rates, pf=None):
    previous = tuple(VfRate(rate.index) for rate in rates)
    return SetRates(pf=pf or lab.pcis[0], rates=rates, previous=previous)


def rates_of(lab, pf=0):
    state = next(each for each in lab.kernel.observe().pfs if each.pci == lab.pcis[pf])
    return [VfRate(vf.index, vf.min_tx_rate_mbps, vf.max_tx_rate_mbps) for vf in state.vfs]


def largest_cap(lab):
    assert lab.rates.max is not None
    return lab.rates.max.largest


def test_rates_are_read_back_when_set(lab):
    rates = rate(lab, 0, 100, 200), rate(lab, 2, 1, 0)
    lab.kernel.apply(set_rates(lab, *rates))
    assert rates_of(lab)[:3] == [rates[0], VfRate(1), rates[1]]
    assert rates_of(lab, 1)[:3] == [VfRate(0), VfRate(1), VfRate(2)]


@pytest.mark.parametrize("link_and", [-999, -1, 0, 1, 39_000])
def test_cap_is_read_back_as_it_was_set_whatever_the_link(lab, link_and):
    cap = lab.link_mbps + link_and
    if cap > largest_cap(lab):
        pytest.skip(f"needs a driver that takes a cap above {largest_cap(lab)} Mb/s")
    lab.kernel.apply(set_rates(lab, VfRate(1, 0, cap)))
    assert rates_of(lab)[1] == VfRate(1, 0, cap)


def test_cap_above_the_limit_of_the_driver_is_refused_and_the_others_stay_unset(lab):
    before = lab.kernel.observe()
    with pytest.raises(KernelError, match="VF 1 of PF"):
        lab.kernel.apply(set_rates(lab, VfRate(0, 0, 20), VfRate(1, 0, largest_cap(lab) + 1)))
    assert lab.kernel.observe() == before


def test_rates_hold_when_set_twice(lab):
    step = set_rates(lab, rate(lab, 0, 100, 200))
    lab.kernel.apply(step)
    before = lab.kernel.observe()
    lab.kernel.apply(step)
    assert lab.kernel.observe() == before


def test_rates_are_as_before_when_inverted(lab):
    lab.kernel.apply(set_rates(lab, rate(lab, 0, 100, 200)))
    before = lab.kernel.observe()
    step = SetRates(
        pf=lab.pcis[0],
        rates=(rate(lab, 0, 5, 6), rate(lab, 1, 7, 0)),
        previous=(rate(lab, 0, 100, 200), VfRate(1)),
    )
    lab.kernel.apply(step)
    assert lab.kernel.observe() != before
    lab.kernel.apply(step.inverse)
    assert lab.kernel.observe() == before


@pytest.mark.parametrize("fault", ["unknown VF", "unknown PF", "min above max"])
def test_rates_are_refused_whole_when_one_cannot_be(lab, fault):
    before = lab.kernel.observe()
    step = {
        "unknown VF": set_rates(lab, VfRate(0, 0, 20), VfRate(255, 0, 20)),
        "unknown PF": set_rates(lab, VfRate(0, 0, 20), pf=PciAddress("0000:99:00.0")),
        "min above max": set_rates(lab, VfRate(0, 0, 20), VfRate(1, 21, 20)),
    }[fault]
    with pytest.raises(KernelError):
        lab.kernel.apply(step)
    assert lab.kernel.observe() == before


def test_rates_are_refused_whole_when_reservations_add_up_to_more_than_the_link(lab):
    needs_min_rates(lab)
    if not lab.rates.sum_checked:
        pytest.skip("needs a driver that checks the sum of minimum rates")
    before = lab.kernel.observe()
    with pytest.raises(KernelError):
        lab.kernel.apply(set_rates(lab, VfRate(0, 600, 0), VfRate(1, lab.link_mbps - 599, 0)))
    assert lab.kernel.observe() == before


def test_reservations_may_fill_the_link_to_the_last_megabit(lab):
    needs_min_rates(lab)
    lab.kernel.apply(set_rates(lab, VfRate(0, 600, 0), VfRate(1, lab.link_mbps - 601, 0)))
    lab.kernel.apply(set_rates(lab, VfRate(2, 1, 0)))
    assert sum(rate.min_tx_rate_mbps for rate in rates_of(lab)) == lab.link_mbps


def test_unknown_vf_error_names_pf_and_its_vfs(lab):
    there = len(rates_of(lab))
    with pytest.raises(KernelError, match=f"VF 255 of PF {lab.pcis[0]}.*{lab.pf_names[0]} has {there} VFs"):
        lab.kernel.apply(set_rates(lab, VfRate(255, 0, 2)))
