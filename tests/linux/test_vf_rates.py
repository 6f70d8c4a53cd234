"""Rates of VFs, on a PF whose driver checks the sum of the minima at each VF, as ice does."""

from __future__ import annotations

import errno

import pytest

from k8s_rdma.core.kernel import PfState
from k8s_rdma.core.rate_ability import EVERY_RATE
from k8s_rdma.core.step import SetRates, VfRate
from k8s_rdma.core.types import PciAddress
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.queries import VfInfo
from k8s_rdma.linux.netlink.socket import NetlinkError
from k8s_rdma.linux.vf.programming import set_rates

LINK_MBPS = 1000
PF = PfState(
    name="eth0",
    pci=PciAddress("0000:03:00.0"),
    link_mbps=LINK_MBPS,
    driver="ice",
    vfs=(),
    rates=EVERY_RATE,
)


class Driver:
    """Holds the rates of VFs; `reads` is how often it was asked for them."""

    def __init__(self, *minima_mbps):
        self.rates = {index: VfRate(index, mbps, 0) for index, mbps in enumerate(minima_mbps)}
        self.reads = 0

    def write(self, rates):
        for rate in rates:
            after = {**self.rates, rate.index: rate}
            if sum(each.min_tx_rate_mbps for each in after.values()) > LINK_MBPS:
                raise NetlinkError(f"VF {rate.index}", errno.EINVAL)
            self.rates = after

    def read(self):
        self.reads += 1
        return [
            VfInfo(
                index=rate.index,
                mac="",
                min_tx_rate_mbps=rate.min_tx_rate_mbps,
                max_tx_rate_mbps=rate.max_tx_rate_mbps,
            )
            for rate in self.rates.values()
        ]

    def apply(self, *rates, seen=None):
        setting = SetRates(pf=PF.pci, rates=rates, previous=())
        return set_rates(setting, PF, write=self.write, read=self.read, observed=seen or self.rates)


def test_minima_are_lowered_before_others_are_raised_into_the_free_rate():
    driver = Driver(100, 800, 0)
    now = driver.apply(VfRate(0, 700, 0), VfRate(2, 50, 60), VfRate(1, 200, 0))
    assert now == driver.rates == {0: VfRate(0, 700, 0), 1: VfRate(1, 200, 0), 2: VfRate(2, 50, 60)}
    assert driver.reads == 1


def test_minima_are_lowered_first_although_those_seen_last_were_old():
    driver = Driver(100, 800)
    old = {0: VfRate(0, 100, 0), 1: VfRate(1, 200, 0)}
    driver.apply(VfRate(0, 200, 0), VfRate(1, 200, 0), seen=old)
    assert driver.rates == {0: VfRate(0, 200, 0), 1: VfRate(1, 200, 0)}


def test_refusal_of_the_driver_is_explained():
    driver = Driver(100, 800)
    with pytest.raises(KernelError, match="VF 0: EINVAL") as caught:
        driver.apply(VfRate(0, 300, 0), seen={0: VfRate(0, 0, 0), 1: VfRate(1, 0, 0)})
    assert "minimum rates of all VFs together" in caught.value.details


def test_rate_that_does_not_hold_is_an_error_with_both():
    driver = Driver(0)
    driver.write = lambda rates: None
    with pytest.raises(KernelError, match=r"VF 0 of PF .*: read back .*0.*, set .*10"):
        driver.apply(VfRate(0, 10, 0))
