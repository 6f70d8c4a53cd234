"""Names of the Leases of addresses: both ways, and apart from those of blocks and nodes."""

from __future__ import annotations

import pytest

from k8s_rdma.wire.address_leases import lease_name, leased_address

MAC, GUID = "02:00:00:00:00:0a", "02:00:00:ff:fe:00:00:0a"


@pytest.mark.parametrize(
    ("address", "name"),
    [
        (MAC, "addresses.mac.02-00-00-00-00-0a"),
        (GUID, "addresses.guid.02-00-00-ff-fe-00-00-0a"),
    ],
)
def test_name_of_a_lease_says_its_address(address: str, name: str):
    assert lease_name(address) == name
    assert leased_address(name) == address


@pytest.mark.parametrize(
    "name",
    [
        "addresses.10-56-0-0.16.24.7",
        "addresses.mac.02-00-00-00-00",
        "addresses.mac.02-00-00-00-00-0a-0b",
        "addresses.mac.02-00-00-00-00-0a.b",
        "addresses.guid.02-00-00-00-00-0a",
        "addresses.mac.02-00-00-00-00-0A",
        "w1",
        "",
    ],
)
def test_other_leases_hold_no_address(name: str):
    assert leased_address(name) is None
