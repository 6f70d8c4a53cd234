"""Settings of VFs as hardware took and refused them."""

from __future__ import annotations

import errno
import struct

import pytest

from k8s_rdma.core.step import VfRate
from k8s_rdma.linux.netlink.rtnl import Rtnl
from k8s_rdma.linux.netlink.socket import NetlinkError, attributes
from k8s_rdma.linux.netlink.sriov import (
    link_state,
    mac,
    node_guid,
    port_guid,
    set_rates,
    set_vfs,
    spoof_check,
    trust,
    vf_infos,
    vlan,
)
from linux.recorded import replayed

IGB_INDEX, NETDEVSIM_INDEX = 2, 18


def test_refused_rate_is_named_when_several_were_set_at_once():
    """igb refuses a minimum. All are sent in one message, then one by one up to that which is refused."""
    rates = (VfRate(4, 0, 100), VfRate(5, 10, 100), VfRate(6, 0, 100))
    said = r"^rates: VF 5: min rate 10, max rate 100 Mb/s: EINVAL: Invalid argument$"
    with Rtnl(socket=replayed("igb")) as rtnl, pytest.raises(NetlinkError, match=said) as failure:
        set_rates(rtnl, IGB_INDEX, "rates", rates)
    assert failure.value.errno == errno.EINVAL


def test_settings_are_read_as_netdevsim_took_them():
    settings = (mac(3, "02:00:00:00:00:03"), vlan(3, 100, 7, "802.1ad"), link_state(3, "disable"))
    with Rtnl(socket=replayed("netdevsim")) as rtnl:
        set_rates(rtnl, NETDEVSIM_INDEX, "rates", [VfRate(vf, 100 * vf, 1000) for vf in range(4)])
        set_vfs(rtnl, NETDEVSIM_INDEX, "set", (*settings, trust(3, on=True), spoof_check(3, on=True)))
        infos = vf_infos(rtnl, NETDEVSIM_INDEX)
    assert [(info.min_tx_rate_mbps, info.max_tx_rate_mbps) for info in infos] == [
        (0, 1000),
        (100, 1000),
        (200, 1000),
        (300, 1000),
    ]
    last = infos[3]
    assert (last.mac, last.vlan, last.qos, last.vlan_proto) == ("02:00:00:00:00:03", 100, 7, "802.1ad")
    assert (last.link_state, last.trust, last.spoof_check) == ("disable", True, True)


@pytest.mark.parametrize(("setting", "kind"), [(node_guid, 10), (port_guid, 11)])
def test_guid_is_a_number_in_the_machines_byte_order_behind_the_vf(setting, kind):
    """`struct ifla_vf_guid`, whose number the kernel aligns to 8 bytes."""
    made = setting(2, "00:11:22:33:44:55:66:77")
    assert struct.unpack("@IQ", attributes(made.attribute)[kind]) == (2, 0x0011223344556677)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (mac(1, "02:00:00:00:00:01"), "VF 1: MAC 02:00:00:00:00:01"),
        (vlan(1, 0), "VF 1: VLAN 0, QoS 0, 802.1Q"),
        (trust(1, on=False), "VF 1: trust off"),
        (spoof_check(1, on=True), "VF 1: spoof check on"),
        (link_state(1, "auto"), "VF 1: link state auto"),
        (port_guid(1, "00:00:00:00:00:00:00:01"), "VF 1: port GUID 00:00:00:00:00:00:00:01"),
    ],
)
def test_setting_describes_itself(setting, words):
    assert setting.label == words
