"""Rates and settings in one step: written together, read back once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from k8s_rdma.core.kernel import PfState, Vf
from k8s_rdma.core.rate_ability import EVERY_RATE
from k8s_rdma.core.step import ConfigureVfs, ProgramVfs, SetRates, VfConfig, VfRate
from k8s_rdma.core.types import PciAddress, Setting
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.queries import VfInfo
from k8s_rdma.linux.vf.programming import program_vfs, with_settings

PCI = PciAddress("0000:03:00.0")
TRUSTED, UNTRUSTED = VfConfig(index=0, trust=True), VfConfig(index=0, trust=False)


class Driver:
    """One VF. deaf: to rates, to settings; it refuses neither."""

    def __init__(self, *, takes=frozenset(Setting), deaf=()):
        self.info = VfInfo(index=0, mac="02:00:00:00:00:01", trust=False, spoof_check=True)
        self.deaf = deaf
        self.reads = 0
        self.written = []
        vf = Vf(index=0, pci=PCI, netdev=None, mac="", mtu=1500)
        bare = PfState(
            name="eth0",
            pci=PCI,
            link_mbps=1000,
            driver="ice",
            vfs=(vf,),
            supported_settings=takes,
            rates=EVERY_RATE,
        )
        self.pf = with_settings(bare, [self.info])

    def read(self):
        self.reads += 1
        return [self.info]

    def write_rates(self, rates):
        self.written.append("rates")
        if "rates" not in self.deaf:
            [rate] = rates
            self.info = replace(
                self.info, min_tx_rate_mbps=rate.min_tx_rate_mbps, max_tx_rate_mbps=rate.max_tx_rate_mbps
            )

    def write_settings(self, settings):
        self.written.append("settings")
        if "settings" not in self.deaf:
            [setting] = settings
            self.info = replace(self.info, trust=setting.label.endswith("trust on"))

    def program(self, rate, config, pf=None):
        step = ProgramVfs(
            rates=SetRates(pf=PCI, rates=(rate,), previous=(VfRate(0),)),
            settings=ConfigureVfs(pf=PCI, configs=(config,), previous=(UNTRUSTED,)),
        )
        return self.apply(step, pf)

    def apply(self, step, pf=None):
        return program_vfs(
            step,
            pf or self.pf,
            write_rates=self.write_rates,
            write_settings=self.write_settings,
            read=self.read,
        )


def test_both_are_written_and_read_back_by_one_query():
    driver = Driver()
    now = driver.program(VfRate(0, 100, 200), TRUSTED)
    assert (driver.written, driver.reads) == (["rates", "settings"], 1)
    [vf] = now.vfs
    assert (vf.min_tx_rate_mbps, vf.max_tx_rate_mbps, vf.trust) == (100, 200, "ON")


def test_only_different_settings_are_written():
    driver = Driver()
    now = driver.program(VfRate(0, 100, 200), TRUSTED)
    driver.program(VfRate(0, 100, 200), UNTRUSTED, now)
    driver.program(VfRate(0, 100, 300), UNTRUSTED, with_settings(now, [driver.info]))
    assert driver.written == ["rates", "settings", "settings", "rates"]


def test_inverse_restores_both():
    driver = Driver()
    before = driver.info
    step = ProgramVfs(
        rates=SetRates(pf=PCI, rates=(VfRate(0, 100, 200),), previous=(VfRate(0),)),
        settings=ConfigureVfs(pf=PCI, configs=(TRUSTED,), previous=(UNTRUSTED,)),
    )
    now = driver.apply(step)
    assert driver.info != before
    driver.apply(step.inverse, now)
    assert driver.info == before


@pytest.mark.parametrize(
    ("takes", "rate", "why"),
    [
        (frozenset(), VfRate(0, 100, 200), "trust on: ice does not support it"),
        (frozenset(Setting), VfRate(0, 2000, 0), "2000"),
        (frozenset(Setting), VfRate(7, 1, 0), "VF 7 of PF 0000:03:00.0: unknown"),
    ],
)
def test_no_setting_is_written_if_one_of_them_cannot_be(takes, rate, why):
    driver = Driver(takes=takes)
    with pytest.raises(KernelError, match=why):
        driver.program(rate, TRUSTED)
    assert driver.written == []


@pytest.mark.parametrize(
    ("deaf", "why"), [("rates", "read back VfRate"), ("settings", "trust on, read back OFF")]
)
def test_setting_that_does_not_hold_after_its_write_is_named(deaf, why):
    with pytest.raises(KernelError, match=why):
        Driver(deaf=[deaf]).program(VfRate(0, 100, 200), TRUSTED)
