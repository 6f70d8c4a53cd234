from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.init.vf_settings import MOST_VFS, vf_guid, vf_mac
from k8s_rdma.linux.vf.sriov_links import GuidOf

PF_MAC = "0c:42:a1:00:00:01"
PF_GUID = "0c:42:a1:03:00:a1:b2:c3"

serials = st.integers(0, (1 << 24) - 1).map(lambda number: f"0c:42:a1:{number.to_bytes(3).hex(':')}")
indexes = st.integers(0, MOST_VFS - 1)


@given(pf=serials, index=indexes)
def test_mac_is_locally_administered_unicast(pf: str, index: int) -> None:
    assert int(vf_mac(pf, index)[:2], 16) & 0b11 == 0b10


@given(one=st.tuples(serials, indexes), other=st.tuples(serials, indexes))
def test_macs_differ_whenever_pf_or_vf_of_one_manufacturer_do(
    one: tuple[str, int], other: tuple[str, int]
) -> None:
    assert (vf_mac(*one) == vf_mac(*other)) == (one == other)


def test_macs_of_neighbouring_ports_and_all_their_vfs_differ() -> None:
    ports = [f"0c:42:a1:00:00:{port:02x}" for port in range(16)]
    assert len({vf_mac(port, index) for port in ports for index in range(MOST_VFS)}) == 16 * MOST_VFS


def test_macs_of_another_manufacturer_differ() -> None:
    assert vf_mac("b8:ce:f6:00:00:01", 0) != vf_mac(PF_MAC, 0)


def test_addresses_stay_unchanged() -> None:
    # Written down, as every node would otherwise get new ones with a new version of this program.
    assert vf_mac(PF_MAC, 7) == "c2:0c:07:00:00:01"
    assert vf_guid(PF_GUID, 7, GuidOf.NODE) == "3a:25:ba:c5:82:ce:ad:d4"
    assert vf_guid(PF_GUID, 7, GuidOf.PORT) == "d6:b4:fa:91:4f:78:ad:56"


@given(index=st.integers(0, 5000), which=st.sampled_from(GuidOf))
def test_guid_is_local_and_not_zero(index: int, which: GuidOf) -> None:
    guid = vf_guid(PF_GUID, index, which)
    assert int(guid[:2], 16) & 0b11 == 0b10
    assert len(bytes.fromhex(guid.replace(":", ""))) == 8


def test_guids_of_node_and_port_of_all_vfs_differ() -> None:
    pfs = ("0c:42:a1:03:00:a1:b2:c3", "0c:42:a1:03:00:a1:b2:c4")
    assert len({vf_guid(pf, index, which) for pf in pfs for index in range(127) for which in GuidOf}) == 508


@pytest.mark.parametrize(
    ("mac", "index"), [("", 0), ("0c:42:a1", 0), (PF_GUID, 0), (PF_MAC, MOST_VFS), (PF_MAC, -1)]
)
def test_mac_is_not_made_without_a_pf_or_vf(mac: str, index: int) -> None:
    with pytest.raises(ValueError, match="no MAC for VF"):
        vf_mac(mac, index)


@pytest.mark.parametrize("guid", ["", PF_MAC])
def test_guid_is_not_made_of_a_malformed_guid(guid: str) -> None:
    with pytest.raises(ValueError, match="no GUID for VF"):
        vf_guid(guid, 0, GuidOf.PORT)
