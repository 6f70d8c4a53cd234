"""Rates of real VFs: the questions to the kernel for them, and the answers of drivers."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest

from contract.hardware_lab import PFS, await_link, needs_hardware
from contract.lab import state_of
from contract.linux_lab import run
from hardware.netlink_lab import simulated_pf
from k8s_rdma.core.kernel import PfState
from k8s_rdma.core.rate_ability import EVERY_RATE
from k8s_rdma.core.step import ConfigureVfs, SetRates, VfConfig, VfRate, VfRef, Vlan
from k8s_rdma.core.types import PciAddress
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.discovery.netlink_queries import NetlinkQueries
from k8s_rdma.linux.netlink import sriov
from k8s_rdma.linux.vf.programming import rates_of, set_rates

NOWHERE = PciAddress("0000:99:00.0")


class CountedQueries(NetlinkQueries):
    """Counts queries that hold the kernel's lock for long."""

    asked = 0

    def vf_infos(self, index):
        self.asked += 1
        return super().vf_infos(index)


@pytest.fixture
def queries():
    return CountedQueries()


@pytest.fixture
def kernel(lab, queries):
    return lab.another_kernel(queries=queries)


def step(lab, *rates):
    return SetRates(pf=lab.pcis[0], rates=rates, previous=tuple(VfRate(rate.index) for rate in rates))


@needs_hardware
def test_vfs_are_queried_once_until_their_pf_changes(lab, kernel, queries):
    kernel.observe()
    assert queries.asked == len(PFS)
    before = kernel.observe(), kernel.observe()
    assert queries.asked == len(PFS)
    run("ip", "link", "set", PFS[1], "vf", "0", "max_tx_rate", "30")
    assert kernel.observe() not in before
    assert queries.asked == len(PFS) + 1
    run("ip", "link", "set", PFS[1], "vf", "0", "max_tx_rate", "0")


@needs_hardware
def test_rates_of_many_vfs_are_read_back_by_one_query(lab, kernel, queries):
    kernel.observe()
    queries.asked = 0
    kernel.apply(step(lab, *(VfRate(index, 0, 10 + index) for index in range(lab.vfs))))
    assert [vf.max_tx_rate_mbps for vf in kernel.observe().pfs[0].vfs] == list(range(10, 10 + lab.vfs))
    assert queries.asked == 1


@needs_hardware
def test_foreign_change_is_seen_although_its_event_came_while_another_pf_was_programmed(lab, kernel):
    kernel.observe()
    kernel.apply(step(lab, VfRate(0, 0, 20)))
    run("ip", "link", "set", PFS[1], "vf", "1", "max_tx_rate", "30")
    kernel.apply(step(lab, VfRate(0, 0, 25)))
    run("ip", "link", "set", PFS[0], "vf", "1", "max_tx_rate", "40")
    assert [pf.vfs[1].max_tx_rate_mbps for pf in kernel.observe().pfs] == [40, 30]


@needs_hardware
def test_foreign_change_on_a_pf_that_is_down_is_seen_and_corrected(lab, kernel):
    untagged = VfConfig(index=1, vlan=Vlan(0))
    with lab.pf_down(0):
        kernel.observe()
        run("ip", "link", "set", PFS[0], "vf", "1", "vlan", "77")
        kernel.apply(ConfigureVfs(pf=lab.pcis[0], configs=(untagged,), previous=(untagged,)))
        assert state_of(lab, VfRef(lab.pcis[0], 1)).vlan == 0
        run("ip", "link", "set", PFS[0], "vf", "1", "vlan", "78")
        assert kernel.observe().pfs[0].vfs[1].vlan == 78
        run("ip", "link", "set", PFS[0], "vf", "1", "vlan", "0")


@needs_hardware
def test_rates_hold_on_a_pf_that_was_renamed_since_it_was_looked_at(lab, kernel):
    kernel.observe()
    with lab.pf_down(0), renamed(PFS[0], "renamed0"):
        run("ip", "link", "set", "renamed0", "up")
        await_link("renamed0")
        kernel.apply(step(lab, VfRate(0, 0, 20)))
        assert kernel.observe().pfs[0].vfs[0].max_tx_rate_mbps == 20


@needs_hardware
def test_rates_hold_although_another_program_has_changed_them_unseen(lab, kernel):
    kernel.apply(step(lab, VfRate(0, 0, 20)))
    run("ip", "link", "set", PFS[0], "vf", "0", "max_tx_rate", "30")
    kernel.apply(step(lab, VfRate(0, 0, 20)))
    assert state_of(lab, VfRef(lab.pcis[0], 0)).max_tx_rate_mbps == 20


@needs_hardware
def test_rate_that_only_the_driver_knows_to_refuse_is_explained_and_the_inverse_restores(lab, kernel):
    lab.kernel.apply(step(lab, VfRate(0, 0, 20)))
    before = kernel.observe()
    with lab.pf_down(0):
        kernel.observe()
        with pytest.raises(KernelError, match=f"PF {lab.pcis[0]} .{PFS[0]}.*VF 0") as caught:
            kernel.apply(step(lab, VfRate(0, 0, 30)))
        assert "only while the link is up" in caught.value.details
    kernel.apply(replace(step(lab, VfRate(0, 0, 30)).inverse, rates=(VfRate(0, 0, 20),)))
    assert kernel.observe() == before


@needs_hardware
def test_no_rate_is_written_to_a_driver_that_takes_none_if_none_is_requested(lab, kernel):
    with lab.pf_down(0):
        kernel.apply(step(lab, VfRate(0), VfRate(1)))


@needs_hardware
def test_reset_takes_the_vlan_too(lab, kernel):
    vf = VfRef(lab.pcis[0], 2)
    before = kernel.observe()
    run("ip", "link", "set", PFS[0], "vf", "2", "vlan", "5", "qos", "3")
    try:
        assert (state_of(lab, vf).vlan, state_of(lab, vf).qos) == (5, 3)
        kernel.reset(vf)
        assert kernel.observe() == before
    finally:
        run("ip", "link", "set", PFS[0], "vf", "2", "vlan", "0")


def test_minimum_rates_are_programmed_and_read_back_if_the_driver_takes_them():
    with simulated_pf(8) as name, CountedQueries() as queries:
        pf, index = simulated(name, queries)
        wanted = (VfRate(0, 100, 200), VfRate(3, 50, 0), VfRate(7, 0, 70))
        setting = SetRates(pf=NOWHERE, rates=wanted, previous=())
        seen = rates_of(pf, queries.vf_infos(index))
        queries.asked = 0
        now = set_rates(setting, pf, observed=seen, **doors(queries, index))
        assert queries.asked == 1
        assert [rate for rate in now.values() if rate != VfRate(rate.index)] == list(wanted)
        shown = run("ip", "link", "show", name)
        assert "max_tx_rate 200Mbps, min_tx_rate 100Mbps" in shown


def test_rates_hold_although_those_seen_last_were_old():
    with simulated_pf(8) as name, NetlinkQueries() as queries:
        pf, index = simulated(name, queries)
        wanted = (VfRate(0, 100, 200), VfRate(1, 0, 30))
        old = rates_of(pf, queries.vf_infos(index)) | {rate.index: rate for rate in wanted}
        now = set_rates(
            SetRates(pf=NOWHERE, rates=wanted, previous=()), pf, observed=old, **doors(queries, index)
        )
        assert (now[0], now[1]) == wanted


@pytest.mark.parametrize(
    ("rates", "why"),
    [
        ((VfRate(0, 1, 2), VfRate(8, 1, 2)), "VF 8 of PF .* has 8 VFs"),
        ((VfRate(0, 1, 2), VfRate(1, 3, 2)), "VF 1 of PF .*: min rate 3 Mb/s above its max rate 2"),
        ((VfRate(0, 600, 0), VfRate(1, 401, 0)), "add up to 1001"),
    ],
)
def test_no_rate_is_written_if_one_of_them_cannot_be(rates, why):
    with simulated_pf(8) as name, NetlinkQueries() as queries:
        pf, index = simulated(name, queries)
        before = rates_of(pf, queries.vf_infos(index))
        with pytest.raises(KernelError, match=why):
            set_rates(
                SetRates(pf=NOWHERE, rates=rates, previous=()), pf, observed=before, **doors(queries, index)
            )
        assert rates_of(pf, queries.vf_infos(index)) == before


@contextmanager
def renamed(name, other):
    run("ip", "link", "set", name, "name", other)
    try:
        yield
    finally:
        run("ip", "link", "set", other, "down")
        run("ip", "link", "set", other, "name", name)


def doors(queries, index):
    return {
        "write": partial(sriov.set_rates, queries.rtnl, index, "rates"),
        "read": partial(queries.vf_infos, index),
    }


def simulated(name, queries):
    """The PF as an observation would show it if it were a PCI function, and its netdev's index."""
    link = queries.rtnl.link(name)
    pf = PfState(name=name, pci=NOWHERE, link_mbps=1000, driver="netdevsim", vfs=(), rates=EVERY_RATE)
    return pf, link.index
