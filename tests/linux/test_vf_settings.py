"""Settings that PFs have for their VFs: MLNX_OFED's files and netlink in one spelling."""

from __future__ import annotations

import pytest

from k8s_rdma.linux.discovery.vf_settings import VfSettings, from_netlink, read_vf_settings
from k8s_rdma.linux.netlink.queries import VfInfo
from k8s_rdma.linux.sysfs import Sysfs
from linux.small_machine import PF, SmallMachine

CONFIG = """\
VF         : 0
MAC        : 7A:90:db:7b:30:ac
VLAN       : 12
QoS        : 3
VLAN Proto : 802.1Q
SpoofCheck : OFF
Trust      : ON
LinkState  : Follow
MinTxRate  : 15000
MaxTxRate  : 20000
VGT+       : ON
RateGroup  : 4
"""
OF_CONFIG = VfSettings(
    mac="7a:90:db:7b:30:ac",
    vlan=12,
    qos=3,
    vlan_proto="802.1Q",
    spoof_check="OFF",
    trust="ON",
    link_state="Follow",
    min_tx_rate_mbps=15000,
    max_tx_rate_mbps=20000,
    vgt_plus="ON",
    rate_group=4,
)


def read(machine: SmallMachine) -> object:
    return read_vf_settings(Sysfs(machine.root), PF)


def config(machine: SmallMachine, text: str, vf: int = 0) -> None:
    machine.write(f"{machine.device(PF)}/sriov/{vf}/config", text)


def test_ofed_file_is_read_whole(machine: SmallMachine) -> None:
    machine.add_pf()
    config(machine, CONFIG)
    assert read(machine) == {0: OF_CONFIG}


def test_ofed_file_of_an_older_version_lacks_newer_settings(machine: SmallMachine) -> None:
    machine.add_pf()
    config(machine, "VF : 10\nMAC : 00:00:00:00:00:00\nLinkState : Down", vf=10)
    assert read(machine) == {10: VfSettings(mac="00:00:00:00:00:00", link_state="Down")}


def test_ofed_files_are_found_only_if_they_exist(machine: SmallMachine) -> None:
    machine.add_pf()
    assert read(machine) is None
    machine.write(f"{machine.device(PF)}/sriov/groups/0/config", "Num VFs : 2")
    machine.write(f"{machine.device(PF)}/sriov/0/trust", "on")  # another vendor's directory of this name
    assert read(machine) is None


def test_ofed_file_that_refuses_to_be_read_is_of_no_vf(machine: SmallMachine) -> None:
    machine.add_pf()
    config(machine, CONFIG)
    machine.refuse(f"{machine.device(PF)}/sriov/1/config")
    assert read(machine) == {0: OF_CONFIG}


@pytest.mark.parametrize(
    ("broken", "named"),
    [(CONFIG.replace("20000", "many"), "MaxTxRate"), (CONFIG.replace("MAC", "Mac"), "MAC")],
)
def test_ofed_file_of_another_form_is_an_error_that_names_file_and_key(
    machine: SmallMachine, broken: str, named: str
) -> None:
    machine.add_pf()
    config(machine, broken)
    with pytest.raises(OSError, match=named) as caught:
        read(machine)
    assert str(caught.value.filename).endswith("sriov/0/config")


def test_netlink_comes_in_the_spelling_of_ofed() -> None:
    told = VfInfo(
        index=0,
        mac="7a:90:db:7b:30:ac",
        vlan=12,
        qos=3,
        vlan_proto="802.1Q",
        spoof_check=False,
        trust=True,
        min_tx_rate_mbps=15000,
        max_tx_rate_mbps=20000,
    )
    expected = {name: getattr(OF_CONFIG, name) for name in VfSettings.__slots__} | {
        "vgt_plus": "OFF",
        "rate_group": 0,
    }
    assert from_netlink(told) == VfSettings(**expected)


@pytest.mark.parametrize(("told", "shown"), [("auto", "Follow"), ("enable", "Up"), ("disable", "Down")])
def test_link_state_of_netlink_is_shown_as_ofed_does(told: str, shown: str) -> None:
    assert from_netlink(VfInfo(index=0, mac="", link_state=told)).link_state == shown


def test_setting_that_netlink_does_not_report_is_neither_on_nor_off() -> None:
    settings = from_netlink(VfInfo(index=0, mac=""))
    assert (settings.spoof_check, settings.trust, settings.vlan_proto) == ("N/A", "N/A", "N/A")
