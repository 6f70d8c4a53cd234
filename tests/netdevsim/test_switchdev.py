"""Switchdev mode, and rates that somebody sets by devlink, which are not ours to share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contract.lab import state_of
from contract.linux_lab import run
from k8s_rdma.core.allocation import foreign_reason, is_free
from k8s_rdma.core.step import SetRates, VfRate, VfRef
from k8s_rdma.core.types import Setting
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.drivers import ability
from k8s_rdma.linux.netlink.devlink import Devlink, devlink_rates
from k8s_rdma.linux.netlink.queries import DevlinkRate
from netdevsim.device import device

TAKE_BACK = "`devlink port function rate set` takes them back"


@pytest.fixture
def switched(make_lab):
    """A lab whose first PF is in switchdev mode."""

    def make(**options):
        lab = make_lab(**options)
        lab.devices[0].become("switchdev")
        return lab

    return make


def group(lab, name, *words):
    run("devlink", "port", "function", "rate", "add", f"{lab.devices[0].devlink}/{name}", *words)


def free(lab):
    return [vf.index for vf in lab.kernel.observe().pfs[0].vfs if is_free(vf)]


def test_mode_of_the_switch_is_seen_with_the_settings_of_mlx5_in_it(make_lab):
    lab = make_lab(driver="mlx5_core")
    before = lab.kernel.observe()
    lab.devices[0].become("switchdev")
    pf, other = lab.kernel.observe().pfs
    assert (pf.switchdev, other.switchdev) == (True, False)
    assert (pf.takes, other.takes) == ({Setting.MAC, Setting.MTU}, lab.takes)
    assert (pf.rates, other.rates) == (lab.rates, lab.rates)
    assert any("switchdev mode" in problem for problem in pf.problems)
    lab.devices[0].become("legacy")
    assert lab.kernel.observe() == before


def test_rates_that_a_driver_refuses_in_switchdev_mode_are_an_error_without_a_change(switched):
    """As netdevsim does, and no driver that is known (`nsim_set_vf_rate`)."""
    lab = switched(driver="mlx5_core")
    before = lab.kernel.observe()
    step = SetRates(pf=lab.pcis[0], rates=(VfRate(0, 100, 200),), previous=(VfRate(0),))
    with pytest.raises(KernelError, match="VF 0: min rate 100, max rate 200 Mb/s: EOPNOTSUPP") as caught:
        lab.kernel.apply(step)
    assert caught.value.details.startswith("mlx5_core answers EOPNOTSUPP: the card's firmware has no")
    assert lab.kernel.observe() == before


def test_vf_with_rates_by_devlink_is_not_free_until_they_are_taken_back(switched):
    lab = switched()
    before = lab.kernel.observe()
    lab.devices[0].rate_by_devlink(2, "tx_share", "100mbit", "tx_max", "200mbit")
    found = state_of(lab, VfRef(lab.pcis[0], 2))
    assert (found.min_tx_rate_mbps, found.max_tx_rate_mbps) == (100, 200)
    words = "its rates are set by devlink (tx_share 100 Mb/s, tx_max 200 Mb/s)"
    assert foreign_reason(found) == f"{words}; {TAKE_BACK}"
    assert free(lab) == [0, 1, 3]
    lab.devices[0].rate_by_devlink(2, "tx_share", "0", "tx_max", "0")
    assert lab.kernel.observe() == before


def test_pf_is_queried_again_only_after_a_change_by_devlink(switched):
    lab = switched()
    queries = lab.queries()
    kernel = lab.another_kernel(queries)
    kernel.observe()
    queries.asked = 0
    lab.devices[0].rate_by_devlink(1, "tx_max", "300mbit")
    assert kernel.observe().pfs[0].vfs[1].max_tx_rate_mbps == 300
    assert queries.asked == 1
    kernel.observe()
    assert queries.asked == 1


def test_vf_in_a_group_is_not_free_and_its_pf_guarantees_no_minimum_beside_it(switched):
    lab = switched(driver="mlx5_core")
    before = lab.kernel.observe()
    group(lab, "tenants")
    assert lab.kernel.observe() == before
    lab.devices[0].rate_by_devlink(3, "parent", "tenants")
    pf, other = lab.kernel.observe().pfs
    assert foreign_reason(pf.vfs[3]) == f"its rates are set by devlink (group tenants); {TAKE_BACK}"
    assert free(lab) == [0, 1, 2]
    assert (pf.rates, other.rates) == (replace(lab.rates, min=None, weights=None), lab.rates)
    assert any("VFs 3 are in groups of devlink rates (tenants)" in problem for problem in pf.problems)
    with pytest.raises(KernelError, match=r"VF 0 of PF .*: min rate 100 Mb/s: the driver takes no min rates"):
        lab.kernel.apply(SetRates(pf=pf.pci, rates=(VfRate(0, 100, 0),), previous=(VfRate(0),)))
    lab.devices[0].rate_by_devlink(3, "noparent")
    assert lab.kernel.observe() == before


def test_groups_of_ice_count_once_one_of_them_has_a_rate(switched):
    """It puts each VF in one by itself."""
    lab = switched(driver="ice")
    group(lab, "root")
    group(lab, "node_1")
    run("devlink", "port", "function", "rate", "set", f"{lab.devices[0].devlink}/node_1", "parent", "root")
    lab.devices[0].rate_by_devlink(0, "parent", "node_1")
    before = lab.kernel.observe()
    assert free(lab) == [0, 1, 2, 3]
    run("devlink", "port", "function", "rate", "set", f"{lab.devices[0].devlink}/root", "tx_max", "500mbit")
    assert free(lab) == [1, 2, 3]
    pf = lab.kernel.observe().pfs[0]
    assert pf.rates == replace(ability(driver="ice", link_mbps=lab.link_mbps), min=None)
    run("devlink", "port", "function", "rate", "set", f"{lab.devices[0].devlink}/root", "tx_max", "0")
    assert lab.kernel.observe() == before


def test_rates_by_devlink_end_with_switchdev_mode_and_stay_on_the_vf(switched):
    lab = switched()
    lab.devices[0].rate_by_devlink(1, "tx_max", "300mbit")
    lab.devices[0].become("legacy")
    found = state_of(lab, VfRef(lab.pcis[0], 1))
    assert foreign_reason(found) == "rates that are not ours: min 0, max 300 Mb/s"
    lab.kernel.reset(VfRef(lab.pcis[0], 1))
    assert free(lab) == [0, 1, 2, 3]


@pytest.mark.timeout(600)
def test_rates_by_devlink_of_many_vfs_are_read_with_the_right_vf():
    """In several messages, of two devices at once."""
    with device(64) as first, device(2) as second, Devlink() as devlink:
        for each in (first, second):
            each.become("switchdev")
        assert devlink_rates(devlink, "netdevsim") == {}
        for vf in (0, 31, 63):
            first.rate_by_devlink(vf, "tx_share", f"{vf + 1}mbit", "tx_max", "100mbit")
        second.rate_by_devlink(1, "tx_max", "5000mbit")
        assert devlink_rates(devlink, "netdevsim") == {
            first.name: {
                vf: DevlinkRate(min_tx_rate_mbps=vf + 1, max_tx_rate_mbps=100) for vf in (0, 31, 63)
            },
            second.name: {1: DevlinkRate(max_tx_rate_mbps=5000)},
        }
        assert devlink_rates(devlink, "pci") == {}
