"""Settings of VFs besides rates, on a driver that holds written settings, or does not."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from k8s_rdma.core.kernel import PfState, Vf, present_config
from k8s_rdma.core.step import ConfigureVfs, VfConfig, Vlan
from k8s_rdma.core.types import LinkState, PciAddress, Setting, VlanProto
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.queries import VfInfo
from k8s_rdma.linux.netlink.socket import NetlinkError
from k8s_rdma.linux.vf.programming import configure_vfs, differences, with_settings

PCI = PciAddress("0000:03:00.0")
MAC, OTHER_MAC = "02:00:00:00:00:01", "02:00:00:00:00:99"
GUID, NODE_GUID = "02:00:00:00:00:00:00:01", "02:00:00:00:00:00:00:02"
ALL = VfConfig(
    index=0,
    mac=OTHER_MAC,
    vlan=Vlan(100, 5, VlanProto.DOT1AD),
    trust=True,
    spoof_check=False,
    link_state=LinkState.ENABLE,
)
AS_SET = {
    "VF 0: MAC 02:00:00:00:00:99": {"mac": OTHER_MAC},
    "VF 0: VLAN 100, QoS 5, 802.1ad": {"vlan": 100, "qos": 5, "vlan_proto": "802.1ad"},
    "VF 0: VLAN 0, QoS 5, 802.1Q": {"vlan": 0, "qos": 5, "vlan_proto": "802.1Q"},
    "VF 0: VLAN 0, QoS 0, 802.1Q": {"vlan": 0, "qos": 0, "vlan_proto": ""},
    "VF 0: trust on": {"trust": True},
    "VF 0: trust off": {"trust": False},
    "VF 0: spoof check on": {"spoof_check": True},
    "VF 0: spoof check off": {"spoof_check": False},
    "VF 0: link state enable": {"link_state": "enable"},
    "VF 0: link state auto": {"link_state": "auto"},
    "VF 0: MAC 02:00:00:00:00:01": {"mac": MAC},
    f"VF 0: node GUID {GUID}": {"node_guid": GUID},
    f"VF 0: port GUID {GUID}": {"port_guid": GUID},
    f"VF 0: node GUID {NODE_GUID}": {"node_guid": NODE_GUID},
}


class Driver:
    """Applies settings by `AS_SET`, except those in `ignores`, and reports the VFs as they are now.

    messages: the words of each setting, message by message. answers: errors of the next writes.
    """

    def __init__(self, *infos, driver="mlx5_core"):
        self.told = {info.index: info for info in infos}
        self.untold = frozenset()
        self.ignores = ()
        self.messages = []
        self.answers = []
        self.reads = 0
        vfs = tuple(Vf(index=info.index, pci=PCI, netdev=None, mac="", mtu=1500) for info in infos)
        takes = frozenset(Setting)
        self.pf = PfState(
            name="eth0", pci=PCI, link_mbps=1000, driver=driver, vfs=vfs, supported_settings=takes
        )
        self.pf = with_settings(self.pf, self.infos())

    def infos(self):
        return [replace(info, **dict.fromkeys(self.untold)) for info in self.told.values()]

    def read(self):
        self.reads += 1
        return self.infos()

    def write(self, settings):
        if self.answers:
            raise NetlinkError(settings[0].label, self.answers.pop(0))
        short = [setting.label.replace(" of PF 0000:03:00.0 (eth0)", "") for setting in settings]
        self.messages.append(short)
        for each in short:
            index = int(each.split()[1].rstrip(":"))
            words = each.replace(f"VF {index}:", "VF 0:", 1)
            if words not in self.ignores:
                self.told[index] = replace(self.told[index], **AS_SET[words])

    def apply(self, *configs, pf=None):
        step = ConfigureVfs(pf=PCI, configs=configs, previous=())
        return configure_vfs(step, pf or self.pf, write=self.write, read=self.read)


def info(index=0, **changes):
    return replace(VfInfo(index=index, mac=MAC, trust=False, spoof_check=True), **changes)


def test_all_settings_of_all_vfs_go_in_one_message_and_are_read_back_once():
    driver = Driver(info(0), info(1), info(2))
    now = driver.apply(ALL, replace(ALL, index=2, mac=None))
    assert [len(message) for message in driver.messages] == [9]
    assert driver.reads == 1
    all_of_two = replace(ALL, index=2, mac=None)
    assert not [*differences(now, now.vfs[0], ALL), *differences(now, now.vfs[2], all_of_two)]
    assert driver.told[2] == replace(driver.told[0], index=2, mac=MAC)
    assert driver.told[1] == info(1)


def test_settings_that_hold_already_are_not_written():
    driver = Driver(info())
    now = driver.apply(ALL)
    driver.apply(ALL, pf=now)
    assert len(driver.messages) == 1
    driver.apply(replace(ALL, trust=False), pf=now)
    assert driver.messages[1:] == [["VF 0: trust off"]]


@pytest.mark.parametrize(
    "before",
    [
        info(),
        info(vlan=100, qos=5, vlan_proto="802.1ad", trust=True),
        info(qos=5, vlan_proto="802.1Q", spoof_check=False, link_state="enable"),
    ],
)
def test_inverse_restores_the_previous_settings(before):
    driver = Driver(before)
    previous = present_config(driver.pf.vfs[0], ALL)
    step = ConfigureVfs(pf=PCI, configs=(ALL,), previous=(previous,))
    now = configure_vfs(step, driver.pf, write=driver.write, read=driver.read)
    assert driver.told[0] != before
    configure_vfs(step.inverse, now, write=driver.write, read=driver.read)
    assert driver.told[0] == before


def test_spoof_check_is_off_before_the_mac_changes_and_on_after_it():
    off = Driver(info())
    off.apply(VfConfig(index=0, mac=OTHER_MAC, spoof_check=False))
    assert off.messages == [["VF 0: spoof check off", "VF 0: MAC 02:00:00:00:00:99"]]
    on = Driver(info(spoof_check=False))
    on.apply(VfConfig(index=0, mac=OTHER_MAC, spoof_check=True))
    assert on.messages == [["VF 0: MAC 02:00:00:00:00:99", "VF 0: spoof check on"]]


def test_setting_that_the_driver_takes_and_does_not_hold_is_an_error_with_wanted_and_found():
    driver = Driver(info(), driver="ixgbe")
    driver.ignores = ("VF 0: link state enable",)
    with pytest.raises(
        KernelError, match=r"VF 0 of PF .*eth0.*: link state enable, read back Follow"
    ) as caught:
        driver.apply(VfConfig(index=0, link_state=LinkState.ENABLE))
    assert "ixgbe reported no error" in caught.value.details
    assert driver.reads == 2


def test_refusal_is_an_error_with_the_setting_and_its_meaning_for_the_driver():
    driver = Driver(info())
    driver.answers = [errno.EOPNOTSUPP]
    with pytest.raises(KernelError, match=r"VF 0 of PF .*: trust on") as caught:
        driver.apply(VfConfig(index=0, trust=True))
    assert "mlx5_core answers" in caught.value.details
    assert "switchdev" in caught.value.details


def test_driver_that_resets_the_vf_is_tried_again():
    driver = Driver(info(), driver="i40e")
    driver.answers = [errno.EAGAIN, errno.EBUSY]
    driver.apply(VfConfig(index=0, trust=True))
    assert driver.told[0].trust


def test_settings_hold_although_those_seen_last_were_old():
    driver = Driver(info())
    old = with_settings(driver.pf, [info(trust=True)])
    driver.apply(VfConfig(index=0, trust=True), pf=old)
    assert driver.told[0].trust
    assert driver.reads == 2


def test_flag_that_the_driver_does_not_tell_is_written_and_believed():
    driver = Driver(info())
    driver.untold = frozenset({"trust", "spoof_check"})
    untold = with_settings(driver.pf, driver.infos())
    driver.apply(VfConfig(index=0, trust=False, spoof_check=True), pf=untold)
    assert driver.messages == [["VF 0: trust off", "VF 0: spoof check on"]]


def test_guids_of_port_and_node_are_set_and_brought_back():
    before = info(mac="00:" * 19 + "01", node_guid=NODE_GUID, port_guid=NODE_GUID)
    driver = Driver(before)
    now = driver.apply(VfConfig(index=0, guid=GUID))
    assert (driver.told[0].port_guid, driver.told[0].node_guid) == (GUID, GUID)
    driver.apply(VfConfig(index=0, guid=GUID, node_guid=NODE_GUID), pf=now)
    assert (driver.told[0].port_guid, driver.told[0].node_guid) == (GUID, NODE_GUID)


def test_unknown_vf_is_an_error_without_a_write():
    driver = Driver(info())
    with pytest.raises(KernelError, match=r"VF 3 of PF .*: unknown: eth0 reports 1 VFs"):
        driver.apply(VfConfig(index=0, trust=True), VfConfig(index=3, trust=True))
    assert driver.messages == []


def test_setting_that_the_driver_does_not_take_is_refused_without_a_write_unless_it_holds():
    driver = Driver(info(1), info(trust=True), driver="mlx4_core")
    pf = replace(driver.pf, supported_settings=frozenset({Setting.VLAN}))
    driver.apply(VfConfig(index=0, trust=True), pf=pf)
    assert driver.messages == []
    with pytest.raises(KernelError, match=r"VF 1 of PF .*: trust on: mlx4_core does not support it"):
        driver.apply(VfConfig(index=0, vlan=Vlan(100)), VfConfig(index=1, trust=True), pf=pf)
    assert driver.messages == []
