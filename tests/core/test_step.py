"""Rates that a driver would refuse are refused before the first is written."""

from __future__ import annotations

import pytest

from k8s_rdma.core.rate_ability import EVERY_RATE, NO_RATE, RateAbility, RateRange
from k8s_rdma.core.step import SetRates, VfRate, check_rates
from k8s_rdma.core.types import PciAddress
from k8s_rdma.errors import KernelError

STEPS = RateAbility(min=None, max=RateRange(step=50, smallest=50, largest=1000))


def check(*rates, ability=EVERY_RATE, link_mbps=1000, before=()):
    step = SetRates(pf=PciAddress("0000:03:00.0"), rates=rates, previous=())
    was = {rate.index: rate for rate in before}
    check_rates(step, ability=ability, link_mbps=link_mbps, current=was)


@pytest.mark.parametrize("rate", [VfRate(1), VfRate(1, 0, 50), VfRate(1, 0, 1000)])
def test_rates_pass_that_the_driver_takes(rate):
    check(rate, ability=STEPS)


@pytest.mark.parametrize(
    ("rate", "ability", "message"),
    [
        (VfRate(1, 21, 20), EVERY_RATE, "VF 1 of PF .*: min rate 21 Mb/s above its max rate 20 Mb/s"),
        (VfRate(1, 10, 50), STEPS, "min rate 10 Mb/s: the driver takes no min rates"),
        (VfRate(1, 0, 10), NO_RATE, "max rate 10 Mb/s: the driver takes no max rates"),
        (VfRate(1, 0, 49), STEPS, "max rate 49 Mb/s: the driver takes 50 to 1000 in steps of 50"),
        (VfRate(1, 0, 51), STEPS, "max rate 51"),
        (VfRate(1, 0, 1050), STEPS, "max rate 1050"),
    ],
)
def test_rates_are_refused_that_the_driver_does_not_take(rate, ability, message):
    with pytest.raises(KernelError, match=message):
        check(VfRate(0), rate, ability=ability)


def test_sum_is_refused_when_it_exceeds_the_link_beside_other_vfs():
    check(VfRate(1, 400, 0), before=[VfRate(0, 600, 0)])
    with pytest.raises(KernelError, match="add up to 1001 Mb/s, its link has 1000"):
        check(VfRate(1, 401, 0), before=[VfRate(0, 600, 0)])


def test_sum_may_exceed_the_link_when_it_does_already_or_is_not_checked():
    check(VfRate(1, 400, 0), before=[VfRate(0, 800, 0), VfRate(1, 500, 0)])
    check(VfRate(1, 1001, 0), ability=RateAbility(min=RateRange(), max=RateRange()))
    check(VfRate(1, 1001, 0), link_mbps=None)
