"""VFs as their PF reports them: as igb did, and as others do by the kernel's source."""

from __future__ import annotations

import errno
import struct

import pytest

from k8s_rdma.linux.netlink.queries import VfInfo
from k8s_rdma.linux.netlink.rtnl import Rtnl
from k8s_rdma.linux.netlink.socket import NetlinkError, attribute, nested, u32
from k8s_rdma.linux.netlink.sriov import VfStats, vf_infos, vf_stats
from linux.recorded import answering, replayed

IGB_INDEX = 2
ADDRESS, NUM_VF, VFINFO_LIST, VF_INFO = 1, 21, 22, 1
MAC, VLAN, TX_RATE, SPOOF_CHECK, LINK_STATE, RATE, STATS = 1, 2, 3, 4, 5, 6, 8
TRUST, NODE_GUID, PORT_GUID, VLAN_LIST = 9, 10, 11, 12


def pair(kind, vf, value):
    return attribute(kind, struct.pack("=II", vf, value))


def of_mac(vf, address="020000000001"):
    return attribute(MAC, struct.pack("=I32s", vf, bytes.fromhex(address)))


def vf_info(vf, *more):
    return nested(VF_INFO, of_mac(vf), *more)


def pf(*vfs, count=None, address=bytes(6)):
    """A PF that answers with these entries, and says that it has so many."""
    told = [u32(NUM_VF, len(vfs) if count is None else count), nested(VFINFO_LIST, *vfs)]
    return Rtnl(socket=answering(bytes(16) + attribute(ADDRESS, address) + b"".join(told)))


def only(rtnl):
    (found,) = vf_infos(rtnl, 7)
    return found


def test_vfs_of_igb_are_read_with_all_their_settings():
    common = {"spoof_check": True, "trust": False}
    assert vf_infos(Rtnl(socket=replayed("igb")), IGB_INDEX) == (
        VfInfo(index=0, mac="ee:17:4a:93:57:f6", max_tx_rate_mbps=100, **common),
        VfInfo(index=1, mac="0e:38:2d:b2:17:c1", vlan=5, qos=3, vlan_proto="802.1Q", **common),
        VfInfo(index=2, mac="a6:34:f3:33:0d:6a", spoof_check=False, trust=True),
        VfInfo(index=3, mac="02:00:00:00:00:03", **common),
        VfInfo(index=4, mac="16:dc:4a:a5:a2:40", **common),
        VfInfo(index=5, mac="0e:c6:1c:16:66:eb", **common),
        VfInfo(index=6, mac="d6:cf:23:3b:e1:29", **common),
    )


def test_counters_of_igb_are_read_for_every_vf():
    kinds = ("packets", "bytes", "dropped")
    nothing = {f"{direction}_{kind}": 0 for direction in ("rx", "tx") for kind in kinds}
    assert vf_stats(Rtnl(socket=replayed("igb")), IGB_INDEX) == tuple(
        VfStats(index=vf, **nothing) for vf in range(7)
    )


def test_counters_are_each_its_own():
    counters = [attribute(kind, struct.pack("=Q", 10**12 + kind)) for kind in range(9)]
    assert vf_stats(pf(vf_info(0, nested(STATS, *counters))), 7) == (
        VfStats(
            index=0,
            rx_packets=10**12,
            tx_packets=10**12 + 1,
            rx_bytes=10**12 + 2,
            tx_bytes=10**12 + 3,
            rx_dropped=10**12 + 7,
            tx_dropped=10**12 + 8,
        ),
    )


def test_vfs_are_ordered_by_index():
    assert [info.index for info in vf_infos(pf(vf_info(2), vf_info(0), vf_info(1)), 7)] == [0, 1, 2]


def test_infiniband_vf_has_an_address_of_20_bytes_and_guids():
    address = bytes(range(20)).hex()
    guids = [
        attribute(kind, struct.pack("=IxxxxQ", 0, guid))
        for kind, guid in ((NODE_GUID, 0x0011223344556677), (PORT_GUID, 0x8899AABBCCDDEEFF))
    ]
    entry = nested(VF_INFO, of_mac(0, address), *guids)
    found = only(pf(entry, address=bytes(20)))
    assert found.mac == ":".join(f"{byte:02x}" for byte in range(20))
    assert (found.node_guid, found.port_guid) == ("00:11:22:33:44:55:66:77", "88:99:aa:bb:cc:dd:ee:ff")


def test_flags_are_unknown_if_the_driver_fills_in_none():
    untold = 0xFFFFFFFF
    found = only(pf(vf_info(0, pair(SPOOF_CHECK, 0, untold), pair(TRUST, 0, untold))))
    assert (found.spoof_check, found.trust) == (None, None)
    assert (only(pf(vf_info(0))).spoof_check, only(pf(vf_info(0))).trust) == (None, None)


@pytest.mark.parametrize(
    ("attributes", "rates"),
    [
        ([pair(TX_RATE, 0, 300)], (0, 300)),
        ([pair(TX_RATE, 0, 300), attribute(RATE, struct.pack("=III", 0, 100, 400))], (100, 400)),
        ([], (0, 0)),
    ],
    ids=["before Linux 3.16", "since", "none"],
)
def test_rates_are_read_from_the_newer_attribute_if_both_exist(attributes, rates):
    found = only(pf(vf_info(0, *attributes)))
    assert (found.min_tx_rate_mbps, found.max_tx_rate_mbps) == rates


def listed_vlan(vlan, qos, protocol):
    value = struct.pack("=III", 0, vlan, qos) + protocol.to_bytes(2, "big") + bytes(2)
    return nested(VLAN_LIST, attribute(1, value))


@pytest.mark.parametrize(
    ("attributes", "vlan"),
    [
        ([attribute(VLAN, struct.pack("=III", 0, 9, 2))], (9, 2, "802.1Q")),
        ([attribute(VLAN, bytes(12))], (0, 0, "")),
        ([attribute(VLAN, struct.pack("=III", 0, 9, 2)), listed_vlan(9, 2, 0x88A8)], (9, 2, "802.1ad")),
        ([listed_vlan(0, 0, 0x8100)], (0, 0, "")),
        ([listed_vlan(1, 0, 0x9100)], (1, 0, "0x9100")),
        ([], (0, 0, "")),
    ],
)
def test_vlan_is_read_with_its_protocol_if_the_kernel_reports_one(attributes, vlan):
    found = only(pf(vf_info(0, *attributes)))
    assert (found.vlan, found.qos, found.vlan_proto) == vlan


@pytest.mark.parametrize(("value", "state"), [(0, "auto"), (1, "enable"), (2, "disable"), (3, "3")])
def test_link_state_is_printed_in_the_words_of_ip(value, state):
    assert only(pf(vf_info(0, pair(LINK_STATE, 0, value)))).link_state == state


def test_list_that_lacks_a_vf_is_an_error_and_not_a_shorter_list():
    with pytest.raises(NetlinkError, match=r"VFs of link #7: .*reported 2 of 3 VFs") as failure:
        vf_infos(pf(vf_info(0), vf_info(2), count=3), 7)
    assert failure.value.errno == errno.EPROTO


def test_list_whose_length_overflowed_is_an_error():
    """The kernel writes 16 bits of it: later bytes are a part of the list, without a head of its own."""
    vfs = [vf_info(vf, *[pair(STATS, vf, 0)] * 20) for vf in range(256)]
    whole = b"".join(vfs)
    assert len(whole) > 1 << 16
    cut = struct.pack("=HH", (len(whole) + 4) & 0xFFFF, VFINFO_LIST) + whole
    rtnl = Rtnl(socket=answering(bytes(16) + u32(NUM_VF, 256) + cut))
    with pytest.raises(NetlinkError, match="of 256 VFs"):
        vf_infos(rtnl, 7)


def test_entry_that_names_no_vf_is_an_error():
    with pytest.raises(NetlinkError, match="names no VF"):
        vf_infos(pf(nested(VF_INFO, pair(RATE, 0, 0))), 7)


def test_link_whose_driver_reports_no_vfs_has_none():
    assert vf_infos(Rtnl(socket=answering(bytes(16) + u32(NUM_VF, 4))), 7) == ()
