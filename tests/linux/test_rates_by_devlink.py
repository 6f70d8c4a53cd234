"""The effect of rates by devlink for VFs and their PF."""

from __future__ import annotations

from dataclasses import replace

import pytest

from k8s_rdma.core.rate_ability import RateAbility, RateRange
from k8s_rdma.linux.discovery.observation import group_of, with_devlink, without_minimums
from k8s_rdma.linux.discovery.vf_settings import VfSettings
from k8s_rdma.linux.netlink.queries import DevlinkRate

TOLD = VfSettings(mac="02:00:00:00:00:01", min_tx_rate_mbps=100, max_tx_rate_mbps=1000)
WEIGHTS = RateAbility(min=RateRange(), max=RateRange(), weights=100)
IN_GROUP = DevlinkRate(group="g")
IN_RATED_GROUP = DevlinkRate(group="g", group_rated=True)


@pytest.mark.parametrize(
    ("rate", "minimum", "maximum"),
    [
        (DevlinkRate(min_tx_rate_mbps=200), 200, 1000),
        (DevlinkRate(min_tx_rate_mbps=50), 100, 1000),
        (DevlinkRate(max_tx_rate_mbps=500), 100, 500),
        (DevlinkRate(max_tx_rate_mbps=2000), 100, 1000),
    ],
)
def test_vf_has_the_larger_minimum_and_the_smaller_maximum(rate, minimum, maximum):
    """ice reports by netlink only rates set so (`ice_set_vf_bw`), and by devlink only those set there."""
    found = with_devlink("ice", {0: TOLD, 1: TOLD}, {1: rate})
    assert found[0] == TOLD
    assert (found[1].min_tx_rate_mbps, found[1].max_tx_rate_mbps) == (minimum, maximum)
    assert "set by devlink" in found[1].by_devlink


def test_cap_by_devlink_holds_if_the_pf_has_none():
    found = with_devlink("ice", {1: replace(TOLD, max_tx_rate_mbps=0)}, {1: DevlinkRate(max_tx_rate_mbps=7)})
    assert found[1].max_tx_rate_mbps == 7


def test_vf_that_the_pf_does_not_report_stays_unknown():
    assert with_devlink("mlx5_core", {0: TOLD}, {5: IN_GROUP}) == {0: TOLD}


@pytest.mark.parametrize(
    ("driver", "rate", "group"),
    [
        ("mlx5_core", IN_GROUP, "g"),
        ("mlx5_core", IN_RATED_GROUP, "g"),
        ("ice", IN_GROUP, ""),
        ("ice", IN_RATED_GROUP, "g"),
        ("mlx5_core", DevlinkRate(max_tx_rate_mbps=1), ""),
    ],
)
def test_group_counts_but_one_of_the_drivers_own_without_a_rate(driver, rate, group):
    assert group_of(driver, rate) == group
    counts = bool(group) or rate.max_tx_rate_mbps > 0
    assert bool(with_devlink(driver, {0: TOLD}, {0: rate})[0].by_devlink) is counts


def test_pf_guarantees_no_minimum_beside_a_group_and_names_the_group():
    ability, why = without_minimums("mlx5_core", WEIGHTS, {4: IN_GROUP, 2: IN_RATED_GROUP})
    assert ability == RateAbility(max=RateRange())
    assert why.startswith("its VFs 2, 4 are in groups of devlink rates (g)")


def test_pf_guarantees_minimums_beside_rates_by_devlink_without_groups():
    rates = {4: DevlinkRate(min_tx_rate_mbps=10), 5: DevlinkRate(max_tx_rate_mbps=10)}
    assert without_minimums("mlx5_core", WEIGHTS, rates) == (WEIGHTS, "")
    assert without_minimums("ice", WEIGHTS, {1: IN_GROUP}) == (WEIGHTS, "")
