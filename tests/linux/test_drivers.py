"""Rates that drivers take, compared with their sources (paths and versions of Linux in the module)."""

from __future__ import annotations

import errno

import pytest

from k8s_rdma.core.rate_ability import NO_RATE, RateAbility, RateRange
from k8s_rdma.core.types import LinkType
from k8s_rdma.linux.drivers import ANY_RATE, DRIVERS, ability, explain, understood_max

UP_TO_LINK = RateRange(largest=25_000)


AT_25_GBPS = {
    "mlx5_core": RateAbility(min=ANY_RATE, max=ANY_RATE, weights=100),
    "mlx4_core": NO_RATE,
    "ice": RateAbility(min=UP_TO_LINK, max=UP_TO_LINK, sum_checked=True, needs_link=True),
    "i40e": RateAbility(max=RateRange(step=50, smallest=50, largest=25_000)),
    "ixgbe": RateAbility(needs_link=True),
    "igb": NO_RATE,
    "bnxt_en": RateAbility(min=UP_TO_LINK, max=UP_TO_LINK),
    "ionic": RateAbility(max=ANY_RATE),
    "hns3": RateAbility(max=UP_TO_LINK),
    "hinic": RateAbility(min=UP_TO_LINK, max=UP_TO_LINK, needs_link=True),
    "qede": NO_RATE,
    "never_heard_of": NO_RATE,
    "": NO_RATE,
}


@pytest.mark.parametrize(("driver", "expected"), AT_25_GBPS.items(), ids=AT_25_GBPS)
def test_ability_is_that_of_the_driver_on_a_link_of_25_gbps(driver: str, expected: RateAbility) -> None:
    assert ability(driver=driver, link_mbps=25_000) == expected


def test_every_driver_has_expected_rates() -> None:
    missing = DRIVERS.keys() - AT_25_GBPS.keys()
    assert not missing, f"add to AT_25_GBPS the rates of {', '.join(sorted(missing))} by the kernel's sources"


@pytest.mark.parametrize("driver", [*DRIVERS, "never_heard_of"])
def test_ability_is_none_on_an_infiniband_link(driver: str) -> None:
    assert ability(driver=driver, link_mbps=100_000, link_type=LinkType.INFINIBAND, vst=True) == NO_RATE


def test_ability_of_mlx4_is_a_maximum_when_the_pf_gives_its_vfs_vlans() -> None:
    assert ability(driver="mlx4_core", link_mbps=40_000, vst=True) == RateAbility(max=ANY_RATE)


@pytest.mark.parametrize(
    ("link_mbps", "expected"),
    [
        (10_000, RateRange(smallest=11, largest=10_000)),
        (1_000, None),
        (None, RateRange(smallest=11, largest=10_000)),
    ],
)
def test_ability_of_ixgbe_is_a_maximum_at_10_gbps_alone(
    link_mbps: int | None, expected: RateRange | None
) -> None:
    assert ability(driver="ixgbe", link_mbps=link_mbps) == RateAbility(max=expected, needs_link=True)


@pytest.mark.parametrize(
    ("vendor", "link_mbps", "expected"),
    [
        ("8086:10c9", 1_000, RateAbility(max=RateRange(largest=1_000), needs_link=True)),
        ("8086:10c9", 100, RateAbility(max=RateRange(largest=100), needs_link=True)),
        ("8086:10c9", None, RateAbility(max=RateRange(largest=1_000), needs_link=True)),
        ("8086:10c9", 10, NO_RATE),
        ("8086:1521", 1_000, NO_RATE),  # I350
    ],
)
def test_ability_of_igb_is_a_maximum_on_the_82576(
    vendor: str, link_mbps: int | None, expected: RateAbility
) -> None:
    assert ability(driver="igb", vendor=vendor, link_mbps=link_mbps) == expected


def test_ability_of_i40e_ends_at_a_whole_step_below_the_link() -> None:
    found = ability(driver="i40e", link_mbps=1_030).max
    assert found is not None
    assert found.largest == 1_000


def test_ability_of_ice_ends_at_its_schedulers_largest_rate() -> None:
    found = ability(driver="ice", link_mbps=200_000).min
    assert found is not None
    assert found.largest == 100_000


@pytest.mark.parametrize(
    ("driver", "number", "said"),
    [
        ("ice", errno.EINVAL, "ice answers EINVAL: a rate is above the present link speed"),
        ("ice", errno.EOPNOTSUPP, "DCB"),
        ("igb", errno.EINVAL, "only while the link is up"),
        ("igb", errno.ENODEV, "the PF no longer exists"),
        ("never_heard_of", errno.EOPNOTSUPP, "it sets no rates on VFs"),
        ("", errno.ENOMEM, "the driver answers ENOMEM: Cannot allocate memory"),
        ("mlx5_core", 9999, "mlx5_core answers 9999: "),
    ],
)
def test_explain_describes_an_error_of_rates(driver: str, number: int, said: str) -> None:
    assert said in explain(driver, number)


def test_every_row_names_its_source_and_explains_a_refusal() -> None:
    for driver, row in DRIVERS.items():
        assert row.rates_source.endswith(".c"), driver
        assert row.settings_source.endswith(".c"), driver
        errors = {**row.errors, **row.rate_errors}
        assert errors, driver
        assert all("\n" not in explain(driver, number) for number in errors)


def test_maximum_is_none_if_qede_reports_the_speed_of_the_link() -> None:
    assert understood_max("qede", 25_000, 25_000) == 0
    assert understood_max("qede", 5_000, 25_000) == 5_000
    assert understood_max("ice", 25_000, 25_000) == 25_000


def test_ability_without_a_link_has_no_end_if_the_driver_compares_with_its_speed() -> None:
    assert ability(driver="hns3", link_mbps=None) == RateAbility(max=ANY_RATE)
    assert ability(driver="hinic", link_mbps=None) == RateAbility(min=ANY_RATE, max=ANY_RATE, needs_link=True)


def test_ability_of_ionic_does_not_depend_on_its_link() -> None:
    """AMD Pollara 400: `ionic_set_vf_rate` passes any maximum on, and refuses every minimum."""
    for link_mbps in (None, 400_000):
        assert ability(driver="ionic", link_mbps=link_mbps, vendor="1dd8:1002") == RateAbility(max=ANY_RATE)
    assert "takes no minimum rates" in explain("ionic", errno.EINVAL)
