"""Settings of VFs beside rates that drivers can set."""

from __future__ import annotations

import errno

import pytest

from k8s_rdma.core.types import LinkType, Setting
from k8s_rdma.linux.drivers import DRIVERS, explain_setting, supported_settings

ALL_OF_ETHERNET = frozenset(
    {
        *(Setting.VLAN, Setting.QOS, Setting.MAC, Setting.MTU),
        *(Setting.TRUST, Setting.SPOOF_CHECK, Setting.LINK_STATE),
    }
)


def taken(
    driver: str,
    link_type: LinkType = LinkType.ETHERNET,
    *,
    switchdev: bool = False,
    vfio_pci: bool = False,
) -> frozenset[Setting]:
    return supported_settings(driver=driver, link_type=link_type, switchdev=switchdev, vfio_pci=vfio_pci)


LACKED: dict[str, set[Setting]] = {
    "mlx5_core": set(),
    "ice": set(),
    "i40e": set(),
    "mlx4_core": {Setting.TRUST, Setting.SPOOF_CHECK},
    "ixgbe": {Setting.LINK_STATE},
    "igb": {Setting.LINK_STATE},
    "bnxt_en": {Setting.QOS},
    "ionic": {Setting.QOS},
    "hns3": {Setting.MAC},
    "hinic": {Setting.MAC},
    "qede": {Setting.QOS, Setting.MAC},
}
"""Settings of Ethernet that a driver does not take."""


@pytest.mark.parametrize(("driver", "lacks"), LACKED.items(), ids=LACKED)
def test_driver_takes_all_but(driver: str, lacks: set[Setting]) -> None:
    assert taken(driver) == ALL_OF_ETHERNET - lacks


def test_every_driver_has_expected_settings() -> None:
    missing = DRIVERS.keys() - LACKED.keys()
    assert not missing, f"add to LACKED the settings that {', '.join(sorted(missing))} does not take"


def test_unknown_driver_takes_settings_of_a_netdev() -> None:
    assert taken("never_heard_of") == {Setting.MTU}


def test_switchdev_leaves_of_mlx5_the_mac_and_of_ice_all_but_trust() -> None:
    assert taken("mlx5_core", switchdev=True) == {Setting.MAC, Setting.MTU}
    assert taken("ice", switchdev=True) == ALL_OF_ETHERNET - {Setting.TRUST}


@pytest.mark.parametrize(
    ("driver", "expected"),
    [("mlx5_core", {Setting.GUID, Setting.LINK_STATE, Setting.MTU}), ("mlx4_core", {Setting.MTU})],
)
def test_infiniband_takes_guids_of_mlx5_alone(driver: str, expected: set[Setting]) -> None:
    assert taken(driver, LinkType.INFINIBAND) == expected


@pytest.mark.parametrize("link_type", LinkType)
@pytest.mark.parametrize("driver", ["mlx5_core", "igb", "never_heard_of"])
def test_vfs_are_given_to_programs_if_the_machine_can_with_any_driver(
    driver: str, link_type: LinkType
) -> None:
    without = taken(driver, link_type)
    assert taken(driver, link_type, vfio_pci=True) == without | {Setting.VFIO_PCI}


def test_no_driver_takes_partition_keys_or_another_vlan_protocol() -> None:
    for driver in DRIVERS:
        for link_type in LinkType:
            assert not taken(driver, link_type) & {Setting.PKEY, Setting.VLAN_PROTO}


@pytest.mark.parametrize(
    ("driver", "number", "said"),
    [
        ("mlx5_core", errno.EOPNOTSUPP, "switchdev"),
        ("i40e", errno.EAGAIN, "i40e answers EAGAIN: the VF is being reset"),
        ("igb", errno.EPROTONOSUPPORT, "802.1Q"),
        ("bnxt_en", errno.EINVAL, "priority never"),
        ("never_heard_of", errno.EOPNOTSUPP, "no such setting"),
    ],
)
def test_explain_setting_describes_an_error(driver: str, number: int, said: str) -> None:
    assert said in explain_setting(driver, number)
