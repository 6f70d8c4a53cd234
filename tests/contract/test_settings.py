"""ConfigureVfs, the same on every kernel, each with the settings that it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contract.lab import give, needs, previous_of, state_of
from k8s_rdma.core.plan import undo
from k8s_rdma.core.step import ConfigureVfs, ProgramVfs, SetRates, VfConfig, VfRate, VfRef, Vlan
from k8s_rdma.core.types import LinkState, PciAddress, Setting, VlanProto
from k8s_rdma.errors import KernelError

MAC = "02:11:22:33:44:55"

CONFIGS = {
    Setting.VLAN: VfConfig(index=1, vlan=Vlan(100)),
    Setting.QOS: VfConfig(index=1, vlan=Vlan(100, 5)),
    Setting.VLAN_PROTO: VfConfig(index=1, vlan=Vlan(100, 0, VlanProto.DOT1AD)),
    Setting.MAC: VfConfig(index=1, mac=MAC),
    Setting.TRUST: VfConfig(index=1, trust=True),
    Setting.SPOOF_CHECK: VfConfig(index=1, spoof_check=False),
    Setting.LINK_STATE: VfConfig(index=1, link_state=LinkState.DISABLE),
    Setting.GUID: VfConfig(index=1, guid="00:11:22:33:44:55:66:77"),
}
SHOWN: dict[Setting, dict[str, object]] = {
    Setting.VLAN: {"vlan": 100, "qos": 0, "vlan_proto": "802.1Q"},
    Setting.QOS: {"vlan": 100, "qos": 5, "vlan_proto": "802.1Q"},
    Setting.VLAN_PROTO: {"vlan": 100, "qos": 0, "vlan_proto": "802.1ad"},
    Setting.MAC: {"admin_mac": MAC},
    Setting.TRUST: {"trust": "ON"},
    Setting.SPOOF_CHECK: {"spoof_check": "OFF"},
    Setting.LINK_STATE: {"link_state": "Down"},
    Setting.GUID: {"admin_mac": "00:11:22:33:44:55:66:77"},
}
LATER = {
    Setting.VLAN: VfConfig(index=1, vlan=Vlan(4093)),
    Setting.QOS: VfConfig(index=1, vlan=Vlan(100, 7)),
    Setting.VLAN_PROTO: VfConfig(index=1, vlan=Vlan(100)),
    Setting.MAC: VfConfig(index=1, mac="02:11:22:33:44:66"),
    Setting.TRUST: VfConfig(index=1, trust=False),
    Setting.SPOOF_CHECK: VfConfig(index=1, spoof_check=True),
    Setting.LINK_STATE: VfConfig(index=1, link_state=LinkState.ENABLE),
    Setting.GUID: VfConfig(index=1, guid="00:11:22:33:44:55:66:78"),
}

each_setting = pytest.mark.parametrize("setting", list(CONFIGS), ids=str)


def configure(lab, *configs, pf=None):
    pf = pf or lab.pcis[0]
    return ConfigureVfs(
        pf=pf, configs=configs, previous=tuple(previous_of(lab, pf, each) for each in configs)
    )


def others(lab, but=1):
    """All that is observed but one VF of the first PF."""
    return [
        (pf.pci, vf)
        for pf in lab.kernel.observe().pfs
        for vf in pf.vfs
        if (pf.pci, vf.index) != (lab.pcis[0], but)
    ]


def test_pf_reports_its_supported_settings(lab):
    told = {pf.pci: pf.supported_settings for pf in lab.kernel.observe().pfs}
    assert [told[pci] for pci in lab.pcis] == [lab.takes, lab.takes]


@each_setting
def test_setting_is_shown_when_made_and_other_vfs_keep_theirs(lab, setting):
    needs(lab, setting)
    before = others(lab)
    lab.kernel.apply(configure(lab, CONFIGS[setting]))
    found = state_of(lab, VfRef(lab.pcis[0], 1))
    assert {key: getattr(found, key) for key in SHOWN[setting]} == SHOWN[setting]
    assert others(lab) == before


@each_setting
def test_setting_is_shown_by_another_kernel_when_made_by_one_that_is_gone(lab, setting):
    needs(lab, setting)
    lab.kernel.apply(configure(lab, CONFIGS[setting]))
    during = lab.kernel.observe()
    lab.kernel.close()
    assert lab.another_kernel().observe() == during


@each_setting
def test_setting_holds_when_made_twice(lab, setting):
    needs(lab, setting)
    step = configure(lab, CONFIGS[setting])
    lab.kernel.apply(step)
    before = lab.kernel.observe()
    lab.kernel.apply(step)
    assert lab.kernel.observe() == before


@each_setting
def test_setting_is_as_before_when_inverted(lab, setting):
    needs(lab, setting)
    before = lab.kernel.observe()
    step = configure(lab, CONFIGS[setting])
    lab.kernel.apply(step)
    lab.kernel.apply(step.inverse)
    lab.kernel.apply(step.inverse)
    assert lab.kernel.observe() == before


@each_setting
def test_setting_is_as_before_when_changed_from_another_value_and_inverted(lab, setting):
    needs(lab, setting)
    lab.kernel.apply(configure(lab, CONFIGS[setting]))
    before = lab.kernel.observe()
    step = configure(lab, LATER[setting])
    lab.kernel.apply(step)
    assert lab.kernel.observe() != before
    lab.kernel.apply(step.inverse)
    assert lab.kernel.observe() == before


@each_setting
def test_inverse_of_a_setting_that_was_never_made_has_no_effect(lab, setting):
    needs(lab, setting)
    before = lab.kernel.observe()
    lab.kernel.apply(configure(lab, CONFIGS[setting]).inverse)
    assert lab.kernel.observe() == before


@each_setting
def test_setting_that_the_pf_does_not_take_is_refused_without_a_change(lab, setting):
    if setting in lab.takes:
        pytest.skip(f"{lab.pf_names[0]} takes {setting}")
    before = lab.kernel.observe()
    with pytest.raises(KernelError, match="VF 1 of PF"):
        lab.kernel.apply(configure(lab, CONFIGS[setting]))
    assert lab.kernel.observe() == before


def test_everything_taken_is_set_on_several_vfs_at_once_and_taken_back(lab):
    before = lab.kernel.observe()
    merged = everything(lab)
    step = configure(lab, replace(merged, index=0), replace(merged, index=2, mac=None))
    lab.kernel.apply(step)
    during = lab.kernel.observe().pfs
    shown = [key for setting in lab.takes & SHOWN.keys() for key in SHOWN[setting] if setting != Setting.MAC]
    first, _, third = next(pf for pf in during if pf.pci == lab.pcis[0]).vfs[:3]
    assert [getattr(first, key) for key in shown] == [getattr(third, key) for key in shown]
    lab.kernel.apply(step.inverse)
    assert lab.kernel.observe() == before


def test_settings_are_as_before_when_a_step_that_failed_half_way_is_inverted(lab):
    """No driver takes a multicast address, and netlink hands one setting after the other to it."""
    needs(lab, Setting.MAC)
    before = lab.kernel.observe()
    step = configure(lab, everything(lab), VfConfig(index=2, mac="03:00:00:00:00:01"))
    with pytest.raises(KernelError, match="VF 2"):
        lab.kernel.apply(step)
    lab.kernel.apply(step.inverse)
    assert lab.kernel.observe() == before


def test_settings_of_an_unknown_vf_are_refused_without_a_change(lab):
    before = lab.kernel.observe()
    good = everything(lab)
    configs = good, replace(good, index=255)
    with pytest.raises(KernelError, match=f"VF 255 of PF {lab.pcis[0]}"):
        lab.kernel.apply(ConfigureVfs(pf=lab.pcis[0], configs=configs, previous=configs))
    assert lab.kernel.observe() == before


def test_settings_are_refused_when_the_pf_is_unknown(lab):
    absent = PciAddress("0000:99:00.0")
    config = everything(lab)
    with pytest.raises(KernelError, match=absent):
        lab.kernel.apply(ConfigureVfs(pf=absent, configs=(config,), previous=(config,)))


def test_settings_survive_that_the_vf_is_given_and_comes_home(lab):
    lab.kernel.apply(configure(lab, everything(lab, without=(Setting.MAC, Setting.GUID))))
    before = lab.kernel.observe()
    steps = [give(lab, VfRef(lab.pcis[0], 1), lab.namespace())]
    for step in (*steps, *undo(steps)):
        lab.kernel.apply(step)
    assert lab.kernel.observe() == before


def everything(lab, without=()):
    """All that the lab takes, on VF 1."""
    merged = VfConfig(index=1)
    for setting, config in CONFIGS.items():
        if setting in lab.takes and setting not in without:
            set_here = {
                key: getattr(config, key) for key in config.__slots__ if getattr(config, key) is not None
            }
            merged = replace(merged, **set_here)
    return merged


def test_rates_and_settings_in_one_step_are_shown_and_taken_back(lab):
    needs(lab, Setting.TRUST)
    vf, before = VfRef(lab.pcis[0], 1), lab.kernel.observe()
    cap = VfRate(1, 0, 20)
    step = ProgramVfs(
        rates=SetRates(pf=vf.pf, rates=(cap,), previous=(VfRate(1),)),
        settings=configure(lab, CONFIGS[Setting.TRUST]),
    )
    lab.kernel.apply(step)
    found = state_of(lab, vf)
    assert (found.max_tx_rate_mbps, found.trust) == (20, "ON")
    lab.kernel.apply(step.inverse)
    assert lab.kernel.observe() == before
