"""Settings of VFs: made on hardware and on a simulated device, and shown by netlink and by `ip` alike."""

from __future__ import annotations

import errno
import os
from dataclasses import replace

import pytest

from contract.hardware_lab import PFS, needs_hardware
from contract.linux_lab import ip, run
from hardware.netlink_lab import SIMULATED, pci, pf_link, simulated_pf, vf_netdev
from k8s_rdma.core.step import VfRate
from k8s_rdma.linux.discovery.netlink_queries import NetlinkQueries
from k8s_rdma.linux.netlink.devlink import Devlink
from k8s_rdma.linux.netlink.ethtool import Ethtool
from k8s_rdma.linux.netlink.rtnl import Rtnl, in_namespace
from k8s_rdma.linux.netlink.socket import NetlinkError
from k8s_rdma.linux.netlink.sriov import (
    link_state,
    mac,
    set_rates,
    set_vfs,
    spoof_check,
    trust,
    vf_infos,
    vf_stats,
    vlan,
)
from k8s_rdma.linux.netns import current_namespace
from network_namespaces import create_namespace

pytestmark = needs_hardware


@pytest.fixture
def rtnl():
    with Rtnl() as opened:
        yield opened


@pytest.fixture
def pf(rtnl):
    """The first PF's netdev by index; afterwards its VFs have no rates."""
    index = pf_link(rtnl).index
    yield index
    set_rates(rtnl, index, "tidy", [VfRate(info.index) for info in vf_infos(rtnl, index)])


@pytest.fixture
def simulated(rtnl):
    with simulated_pf(4) as name:
        yield pf_link(rtnl, name).index


def shown(name):
    """Return a PF's VFs as `ip` shows them: index, MAC, rates."""
    return [
        (vf["vf"], vf["address"], vf["rate"]["min_tx"], vf["rate"]["max_tx"])
        for vf in ip(None, "-details", "link", "show", name)[0]["vfinfo_list"]
    ]


def told(rtnl, index):
    return [(vf.index, vf.mac, vf.min_tx_rate_mbps, vf.max_tx_rate_mbps) for vf in vf_infos(rtnl, index)]


@pytest.mark.parametrize("name", PFS)
def test_vfs_are_read_as_by_ip(rtnl, name):
    assert told(rtnl, pf_link(rtnl, name).index) == shown(name) != []


def test_max_rates_of_all_vfs_are_set_in_one_message(rtnl, pf):
    count = len(vf_infos(rtnl, pf))
    rates = [VfRate(vf, 0, 100 + vf) for vf in range(count)]
    set_rates(rtnl, pf, "caps", rates)
    assert [(vf, maximum) for vf, _, _, maximum in shown(PFS[0])] == [(vf, 100 + vf) for vf in range(count)]
    assert told(rtnl, pf) == shown(PFS[0])


def test_refused_rate_is_named_those_before_it_are_set_and_those_after_it_not(rtnl, pf):
    """igb takes no minimum (drivers/net/ethernet/intel/igb/igb_main.c, igb_ndo_set_vf_bw)."""
    rates = (VfRate(0, 0, 100), VfRate(1, 10, 100), VfRate(2, 0, 100))
    with pytest.raises(
        NetlinkError, match=r"^rates: VF 1: min rate 10, max rate 100 Mb/s: EINVAL"
    ) as failure:
        set_rates(rtnl, pf, "rates", rates)
    assert failure.value.errno == errno.EINVAL
    assert [info.max_tx_rate_mbps for info in vf_infos(rtnl, pf)][:3] == [100, 0, 0]


def test_settings_of_a_vf_are_read_as_they_were_made(rtnl, pf):
    before = vf_infos(rtnl, pf)[1]
    assert (before.trust, before.spoof_check) == (False, True)
    wanted = replace(before, vlan=5, qos=3, vlan_proto="802.1Q", trust=True, spoof_check=False)
    try:
        set_vfs(rtnl, pf, "set", (vlan(1, 5, 3), trust(1, on=True), spoof_check(1, on=False)))
        assert vf_infos(rtnl, pf)[1] == wanted
    finally:
        set_vfs(rtnl, pf, "reset", (vlan(1, 0), trust(1, on=False), spoof_check(1, on=True)))
    assert vf_infos(rtnl, pf)[1] == before


def test_administrative_mac_is_read_once_it_was_set(rtnl, pf):
    before = vf_infos(rtnl, pf)[2].mac
    try:
        set_vfs(rtnl, pf, "set", (mac(2, "02:00:00:12:34:56"),))
        assert vf_infos(rtnl, pf)[2].mac == "02:00:00:12:34:56"
    finally:
        set_vfs(rtnl, pf, "reset", (mac(2, before),))


def test_vf_netdevs_tell_of_no_vfs_and_one_that_is_gone_is_an_error(rtnl):
    assert vf_infos(rtnl, pf_link(rtnl, vf_netdev(PFS[0], 0)).index) == ()
    with pytest.raises(NetlinkError) as failure:
        vf_infos(rtnl, 1 << 20)
    assert failure.value.errno == errno.ENODEV


def test_counters_are_read_for_every_vf(rtnl, pf):
    assert [each.index for each in vf_stats(rtnl, pf)] == [info.index for info in vf_infos(rtnl, pf)]


def test_queries_describe_the_pf():
    with NetlinkQueries() as queries:
        link = next(link for link in queries.links() if link.name == PFS[0])
        assert link.device == pci(f"{PFS[0]}/device")
        wanted = next(
            line.partition(": ")[2]
            for line in run("ethtool", "-i", PFS[0]).splitlines()
            if line.startswith("firmware-version")
        )
        assert queries.firmware(PFS[0]) == wanted.strip()
        assert link.device not in queries.eswitch_modes()


def test_device_of_a_vf_is_listed_in_the_namespace_that_it_was_moved_to(rtnl):
    name, home, namespace = vf_netdev(PFS[0], 0), current_namespace(), create_namespace()
    rtnl.change(pf_link(rtnl, name).index, "move", in_namespace(namespace))
    with Rtnl(namespace) as there, Ethtool(namespace) as ethtool:
        moved = there.link(name)
        found = ethtool.driver_info(name)
        there.change(moved.index, "move back", in_namespace(home))
    for each in (home, namespace):
        os.close(each)
    assert found.bus_info == moved.device == pci(f"{PFS[0]}/device/virtfn0")
    assert vf_netdev(PFS[0], 0) == name


def test_simulated_device_takes_min_and_max_rates(rtnl, simulated):
    rates = [VfRate(vf, 100 * vf, 1000) for vf in range(4)]
    set_rates(rtnl, simulated, "rates", rates)
    infos = vf_infos(rtnl, simulated)
    assert [VfRate(each.index, each.min_tx_rate_mbps, each.max_tx_rate_mbps) for each in infos] == rates


def test_simulated_device_takes_every_other_setting(rtnl, simulated):
    settings = (
        mac(3, "02:00:00:00:00:03"),
        vlan(3, 100, 7, "802.1ad"),
        link_state(3, "disable"),
        trust(3, on=True),
        spoof_check(3, on=True),
    )
    set_vfs(rtnl, simulated, "set", settings)
    before, *_, after = vf_infos(rtnl, simulated)
    assert after == replace(
        before,
        index=3,
        mac="02:00:00:00:00:03",
        vlan=100,
        qos=7,
        vlan_proto="802.1ad",
        link_state="disable",
        trust=True,
        spoof_check=True,
    )


def test_max_below_min_is_refused_by_the_kernel_itself(rtnl, simulated):
    with pytest.raises(NetlinkError) as failure:
        set_rates(rtnl, simulated, "rates", [VfRate(0, 100, 10)])
    assert failure.value.errno == errno.EINVAL


def test_switch_mode_is_read_as_it_is_set(simulated):
    name = f"netdevsim{SIMULATED}"
    with Devlink() as devlink:
        assert devlink.eswitch_modes("netdevsim") == {name: "legacy"}
        run("devlink", "dev", "eswitch", "set", f"netdevsim/{name}", "mode", "switchdev")
        assert devlink.eswitch_modes("netdevsim") == {name: "switchdev"}
        assert devlink.eswitch_modes("pci") == {}


def test_every_one_of_256_vfs_is_read_and_set(rtnl):
    with simulated_pf(256) as name:
        index = pf_link(rtnl, name).index
        set_rates(rtnl, index, "rates", [VfRate(vf, vf, 1000 + vf) for vf in range(256)])
        infos = vf_infos(rtnl, index)
        assert [VfRate(each.index, each.min_tx_rate_mbps, each.max_tx_rate_mbps) for each in infos] == [
            VfRate(vf, vf, 1000 + vf) for vf in range(256)
        ]


def test_counters_of_more_vfs_than_the_kernel_can_tell_of_are_an_error(rtnl):
    """Their list is longer than 64 KiB, of which the kernel does not say so (nla_nest_end)."""
    with simulated_pf(256) as name, pytest.raises(NetlinkError) as failure:
        vf_stats(rtnl, pf_link(rtnl, name).index)
    assert failure.value.errno in (errno.EPROTO, errno.EMSGSIZE)
