"""The table of keys, and the requests and needs that follow from a row."""

from __future__ import annotations

import pytest

from k8s_rdma.core.options import (
    NO_OPTIONS,
    OPTIONS,
    InterfaceOptions,
    Permission,
    claim_parameter,
    keys_with,
    needs_of,
    requested_values,
)
from k8s_rdma.core.types import LinkType, Setting, VfDriver, VlanProto


def test_key_is_spelled_in_camel_case_in_a_claim():
    assert {key: claim_parameter(key) for key in ("vlan", "vlan_proto", "spoof_check", "a_b_c")} == {
        "vlan": "vlan",
        "vlan_proto": "vlanProto",
        "spoof_check": "spoofCheck",
        "a_b_c": "aBC",
    }


def test_value_that_changes_no_setting_is_not_requested():
    assert requested_values(NO_OPTIONS) == {}
    assert requested_values(InterfaceOptions(vlan=0, vlan_proto=VlanProto.DOT1Q, trust=False)) == {
        "vlan": 0,
        "trust": False,
    }
    assert requested_values(InterfaceOptions(vlan_proto=VlanProto.DOT1AD)) == {"vlan_proto": VlanProto.DOT1AD}


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (InterfaceOptions(driver=VfDriver.VFIO_PCI), {Setting.VFIO_PCI}),
        (InterfaceOptions(driver=VfDriver.KERNEL, name="a", network="b"), set()),
        (InterfaceOptions(trust=False, vlan=0), {Setting.TRUST, Setting.VLAN}),
        (InterfaceOptions(vlan=1, vlan_proto=VlanProto.DOT1Q), {Setting.VLAN}),
        (InterfaceOptions(vlan=1, vlan_proto=VlanProto.DOT1AD), {Setting.VLAN, Setting.VLAN_PROTO}),
    ],
    ids=("program", "kernel", "trust and VLAN 0", "802.1Q", "802.1ad"),
)
def test_interface_needs_a_driver_with_the_settings_of_its_keys(
    options: InterfaceOptions, settings: set[Setting]
):
    assert needs_of(options).settings == settings


USERS = {
    Permission.ALWAYS: {"name", "link_type", "near", "per"},
    Permission.UNLESS_DENIED: {"pf", "network", "link_state", "mtu"},
    Permission.IF_ALLOWED: {
        *("driver", "vlan", "qos", "vlan_proto", "mac", "trust", "spoof_check", "guid", "pkey"),
    },
}
"""The keys by who may use them."""


@pytest.mark.parametrize("permission", Permission, ids=lambda permission: permission.name)
def test_key_has_the_expected_users(permission: Permission):
    missing = set(OPTIONS) - set().union(*USERS.values())
    assert not missing, f"add {', '.join(sorted(missing))} to USERS, and test the effect of its values"
    assert set(keys_with(lambda row: row.permission is permission)) == USERS[permission]


def test_keys_are_found_by_their_properties():
    assert keys_with(lambda row: row.link_type is LinkType.INFINIBAND) == ("guid", "pkey")
    assert keys_with(lambda row: row.unique and row.link_type is LinkType.ETHERNET) == ("mac",)
    assert {key for key in OPTIONS if key not in keys_with(lambda row: row.in_claims)} == {
        "pf",
        "link_type",
        "near",
        "per",
    }
