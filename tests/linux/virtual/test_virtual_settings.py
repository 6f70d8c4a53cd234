"""Settings of virtual functions, by the frames that then pass or do not."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace

import pytest

from contract.lab import PF0, home_of, needs, state_of
from contract.linux_lab import needs_namespaces, run
from contract.virtual_lab import VirtualLab
from k8s_rdma.core.kernel import present_config
from k8s_rdma.core.step import ConfigureVfs, GiveVf, SetRates, VfConfig, VfRate, VfRef, Vlan
from k8s_rdma.core.types import LinkState, Setting
from k8s_rdma.errors import KernelError
from linux.virtual.vf_pod import (
    EVERYBODY,
    Pod,
    dropped_as_forged,
    ethertype,
    frames,
    octets,
    overdraw,
    tc,
    vf_class,
)

pytestmark = needs_namespaces
MAC = "02:11:22:33:44:55"
STRANGER = "02:99:00:00:00:01"


@pytest.fixture
def lab(tmp_path):
    made = VirtualLab(tmp_path, 3)
    yield made
    made.close()


@pytest.fixture
def pods(lab):
    made = [Pod(lab, index) for index in range(3)]
    yield made
    for pod in made:
        pod.socket.close()


@pytest.fixture
def wire(lab):
    with frames(lab.rtnl.link_at(lab.rtnl.link("up0").peer).name) as opened:
        yield opened


def configure(lab, *configs):
    """The step, done."""
    previous = tuple(present_config(state_of(lab, VfRef(PF0, each.index)), each) for each in configs)
    step = ConfigureVfs(pf=PF0, configs=configs, previous=previous)
    lab.kernel.apply(step)
    return step


def classified():
    """The classes that filters lead to, without the kernel's numbers of filters, which change each time."""
    shown = tc("filter", "show", "dev", "enp3s0f0-tx").splitlines()
    return sorted(line.split("flowid")[1].split()[0] for line in shown if "flowid" in line)


@pytest.mark.parametrize("config", [{"spoof_check": False}, {"trust": True}], ids=str)
def test_any_source_mac_passes_and_counts_for_the_vf_without_a_spoof_check(lab, pods, config):
    step = configure(lab, VfConfig(index=0, **config))
    before = vf_class(0)[0], vf_class(1)[0]
    for source in (STRANGER, pods[1].home.mac):
        pods[0].send(bytes(1400), source=source)
    pods[0].send(b"last", source=STRANGER)
    assert pods[2].receive_until(b"last")[-1] == b"last"
    assert vf_class(0)[0] - before[0] >= 2800
    assert vf_class(1)[0] - before[1] < 1400  # only the pod's own messages for IPv6
    lab.kernel.apply(step.inverse)
    dropped = dropped_as_forged()
    pods[0].send(b"forged", source=STRANGER)
    pods[0].send(b"genuine")
    assert pods[2].receive_until(b"genuine") == [b"genuine"]
    assert dropped_as_forged() == dropped + 1


def test_other_vfs_are_still_checked_when_one_is_not(lab, pods):
    configure(lab, VfConfig(index=0, spoof_check=False))
    pods[1].send(b"forged", source=STRANGER)
    pods[1].send(b"genuine")
    assert pods[2].receive_until(b"genuine") == [b"genuine"]


@pytest.mark.parametrize("spoof_check", [True, False])
def test_frames_bear_the_new_mac_and_count_for_the_vf_also_after_its_class_was_made_anew(lab, spoof_check):
    configure(lab, VfConfig(index=0, mac=MAC, spoof_check=spoof_check))
    netns = lab.namespace()
    home = home_of(lab, VfRef(PF0, 0))
    lab.kernel.apply(GiveVf(vf=VfRef(PF0, 0), home=home, netns=netns, ifname="rdma0", mac=MAC))
    pod, other = Pod.in_namespace(lab, 0, netns, home), Pod(lab, 1)
    pod.send(b"first", source=MAC)
    assert other.receive_until(b"first") == [b"first"]
    overdraw(lab, pod)
    lab.kernel.apply(SetRates(pf=PF0, rates=(VfRate(0, 100, 200),), previous=(VfRate(0),)))
    before = vf_class(0)
    assert before[2] > 0
    other.listen_anew(lab)
    pod.send(b"second", source=MAC)
    assert other.receive_until(b"second") == [b"second"]
    assert vf_class(0)[0] > before[0]
    pod.socket.close()
    other.socket.close()


def test_old_mac_is_dropped_when_the_vf_has_a_new_one_and_passes_again_afterwards(lab, pods):
    step = configure(lab, VfConfig(index=0, mac=MAC))
    pods[0].send(b"old")
    pods[0].send(b"new", source=MAC)
    assert pods[2].receive_until(b"new") == [b"new"]
    lab.kernel.apply(step.inverse)
    pods[0].send(b"new again", source=MAC)
    pods[0].send(b"old again")
    assert pods[2].receive_until(b"old again") == [b"old again"]


def test_mac_of_another_vf_is_refused_without_a_change(lab):
    configure(lab, VfConfig(index=1, mac=MAC))
    before = lab.kernel.observe()
    for mac in (MAC, before.pfs[0].vfs[2].mac):
        config = VfConfig(index=0, mac=mac)
        with pytest.raises(KernelError, match=rf"VF 0 of PF.*{mac} is VF [12]'s"):
            lab.kernel.apply(ConfigureVfs(pf=PF0, configs=(config,), previous=(config,)))
    assert lab.kernel.observe() == before


def test_vfs_change_macs_with_each_other_in_one_step_and_back(lab, pods):
    before = lab.kernel.observe()
    first, second = pods[0].home.mac, pods[1].home.mac
    step = configure(lab, VfConfig(index=0, mac=second), VfConfig(index=1, mac=first))
    pods[0].send(b"mine no more")
    pods[0].send(b"mine now", source=second)
    assert pods[2].receive_until(b"mine now") == [b"mine now"]
    lab.kernel.apply(step.inverse)
    assert [vf.mac for vf in lab.kernel.observe().pfs[0].vfs] == [vf.mac for vf in before.pfs[0].vfs]
    pods[0].send(b"mine again")
    assert pods[2].receive_until(b"mine again") == [b"mine again"]


def test_one_mac_for_two_vfs_is_refused_without_a_change(lab):
    before = lab.kernel.observe()
    configs = VfConfig(index=0, mac=MAC), VfConfig(index=1, mac=MAC)
    with pytest.raises(KernelError, match=r"MAC .* is VF [01]'s"):
        lab.kernel.apply(ConfigureVfs(pf=PF0, configs=configs, previous=configs))
    assert lab.kernel.observe() == before


def test_macs_with_the_same_last_byte_are_distinguished(lab, pods):
    same = f"02:11:22:33:44:{pods[1].home.mac[-2:]}"
    configure(lab, VfConfig(index=0, mac=same))
    before = vf_class(0)[0], vf_class(1)[0]
    for pod, source in ((pods[0], same), (pods[1], pods[1].home.mac)):
        pod.send(bytes(1400), source=source)
        pod.send(b"last", source=source)
        pods[2].receive_until(b"last")
    assert all(vf_class(index)[0] - before[index] >= 1400 for index in (0, 1))


def test_pod_has_no_carrier_while_its_link_is_disabled(lab, pods):
    def carrier():
        shown = run("nsenter", f"--net={pods[0].netns.path}", "ip", "-json", "link", "show", "rdma0")
        return "NO-CARRIER" not in json.loads(shown)[0]["flags"]

    step = configure(lab, VfConfig(index=0, link_state=LinkState.DISABLE))
    assert not carrier()
    lab.kernel.apply(step.inverse)
    assert carrier()
    configure(lab, VfConfig(index=0, link_state=LinkState.ENABLE))
    assert carrier()


def test_vf_at_home_stays_unchanged_while_its_link_is_disabled(lab):
    configure(lab, VfConfig(index=0, link_state=LinkState.DISABLE))
    before = lab.rtnl.link("enp3s0f0r0")
    assert state_of(lab, VfRef(PF0, 0)).link_state == "Down"
    assert lab.rtnl.link("enp3s0f0r0") == before


@pytest.mark.parametrize("mtu", [9000, 1280])
def test_largest_frames_of_the_mtu_pass_to_the_uplink_and_the_port_is_home_again(lab, wire, mtu):
    for name in ("up0", lab.rtnl.link_at(lab.rtnl.link("up0").peer).name):
        run("ip", "link", "set", name, "mtu", "9000")
    assert lab.kernel.observe().pfs[0].mtu == 9000
    vf, netns = VfRef(PF0, 0), lab.namespace()
    before = lab.kernel.observe(), lab.rtnl.link("enp3s0f0r0").mtu
    step = GiveVf(vf=vf, home=home_of(lab, vf), netns=netns, ifname="rdma0", mtu=mtu)
    lab.kernel.apply(step)
    pod = Pod.in_namespace(lab, 0, netns, step.home)
    pod.send(bytes(mtu))
    assert len(wire.recv(10_000)) == mtu + 14
    with pytest.raises(OSError, match="too long"):
        pod.send(bytes(mtu + 1))
    pod.socket.close()
    lab.kernel.apply(step.inverse)
    assert (lab.kernel.observe(), lab.rtnl.link("enp3s0f0r0").mtu) == before


def test_vf_that_died_has_the_settings_of_a_new_one_and_no_old_ones(lab):
    before, filters = lab.kernel.observe(), classified()
    home = home_of(lab, VfRef(PF0, 0))
    config = VfConfig(index=0, mac=MAC, trust=True, spoof_check=False, link_state=LinkState.ENABLE)
    step = configure(lab, config)
    netns = lab.namespace()
    giving = GiveVf(vf=VfRef(PF0, 0), home=home, netns=netns, ifname="rdma0", mac=MAC, mtu=1400)
    lab.kernel.apply(giving)
    lab.destroy(netns)
    for each in (giving.inverse, step.inverse):
        lab.kernel.apply(each)
        assert (lab.kernel.observe(), classified()) == (before, filters)


def test_port_has_the_settings_and_the_owner_of_the_vf(lab):
    netns = lab.namespace()
    configure(lab, VfConfig(index=0, mac=MAC, trust=True))
    home = home_of(lab, VfRef(PF0, 0))
    lab.kernel.apply(GiveVf(vf=VfRef(PF0, 0), home=home, netns=netns, ifname="rdma0"))
    assert json.loads(lab.rtnl.link("enp3s0f0r0").alias) == {"given": netns.inode, "mac": MAC, "trust": True}


def test_vf_whose_port_has_a_foreign_alias_is_left_alone(lab):
    netns = lab.namespace()
    giving = GiveVf(vf=VfRef(PF0, 0), home=home_of(lab, VfRef(PF0, 0)), netns=netns, ifname="rdma0")
    lab.kernel.apply(giving)
    subprocess.run(["ip", "link", "set", "enp3s0f0r0", "alias", "hands off"], check=True)
    lab.kernel.apply(giving.inverse)
    assert lab.seen("rdma0", netns) is not None


def test_vf_given_by_an_agent_that_wrote_the_number_alone_comes_home(lab):
    before, netns = lab.kernel.observe(), lab.namespace()
    giving = GiveVf(vf=VfRef(PF0, 0), home=home_of(lab, VfRef(PF0, 0)), netns=netns, ifname="rdma0")
    lab.kernel.apply(giving)
    subprocess.run(["ip", "link", "set", "enp3s0f0r0", "alias", str(netns.inode)], check=True)
    lab.kernel.apply(giving.inverse)
    assert lab.kernel.observe() == before


def test_network_cards_are_separated_by_vlan_and_tagged_on_the_uplink(lab, pods, wire):
    needs(lab, Setting.VLAN)
    configure(lab, VfConfig(index=0, vlan=Vlan(100)), VfConfig(index=1, vlan=Vlan(100)))
    pods[0].send(b"in 100")
    pods[2].send(b"in none")
    assert pods[1].receive_until(b"in 100") == [b"in 100"]
    step = configure(lab, VfConfig(index=1, vlan=Vlan(0)))
    pods[0].send(b"in 100 again")
    pods[2].send(b"in none again")
    assert pods[1].receive_until(b"in none again")[-1] == b"in none again"
    assert vlans_of("up0") == {4094, 100}
    lab.kernel.apply(step.inverse)
    pods[1].send(b"end")
    assert b"in none again" not in pods[0].receive_until(b"end")
    assert vlans_of("up0") == {4094, 100}
    lab.kernel.apply(
        ConfigureVfs(
            pf=PF0,
            configs=(VfConfig(index=0, vlan=Vlan(0)), VfConfig(index=1, vlan=Vlan(0))),
            previous=(VfConfig(index=0, vlan=Vlan(100)), VfConfig(index=1, vlan=Vlan(100))),
        )
    )
    assert vlans_of("up0") == {4094}


def test_frame_of_a_vlan_is_tagged_on_the_uplink_and_comes_in_to_that_vlan_alone(lab, pods):
    needs(lab, Setting.VLAN)
    configure(lab, VfConfig(index=0, vlan=Vlan(100)))
    peer = lab.rtnl.link_at(lab.rtnl.link("up0").peer).name
    run("ip", "link", "add", "link", peer, "name", "tagged", "type", "vlan", "id", "100")
    run("ip", "link", "set", "tagged", "up")
    with frames("tagged") as tagged, frames(peer) as wire:
        pods[0].send(b"out")
        assert tagged.recv(2048)[14:].rstrip(b"\0") == b"out"
        tagged.send(octets(EVERYBODY) + octets(STRANGER) + ethertype() + b"in")
        wire.send(octets(EVERYBODY) + octets(STRANGER) + ethertype() + b"untagged")
        assert pods[0].receive_until(b"in") == [b"in"]
        assert pods[2].receive_until(b"untagged") == [b"untagged"]


def test_rates_hold_in_a_vlan(lab, pods):
    needs(lab, Setting.VLAN)
    configure(lab, VfConfig(index=0, vlan=Vlan(100)), VfConfig(index=1, vlan=Vlan(100)))
    before = vf_class(0)[0]
    pods[0].send(bytes(1400))
    pods[0].send(b"last")
    pods[1].receive_until(b"last")
    assert vf_class(0)[0] - before >= 1400


def test_pod_cannot_tag_its_way_into_another_vlan(lab, pods):
    needs(lab, Setting.VLAN)
    configure(lab, VfConfig(index=1, vlan=Vlan(100)))
    tag = b"\x81\x00\x00\x64"
    sender = octets(EVERYBODY) + octets(pods[0].home.mac)
    pods[0].socket.send(sender + tag + ethertype() + b"sneaked in")
    configure(lab, VfConfig(index=0, vlan=Vlan(100)))
    pods[0].send(b"end")
    assert pods[1].receive_until(b"end") == [b"end"]


@pytest.mark.parametrize("vlan", [Vlan(4094), Vlan(1, 3), Vlan(4095), Vlan(-1)], ids=str)
def test_impossible_vlan_is_refused_without_a_change(lab, vlan):
    before = lab.kernel.observe()
    config = VfConfig(index=0, vlan=vlan, trust=True)
    with pytest.raises(KernelError, match=r"VF 0 of PF.*(VLAN|QoS)"):
        lab.kernel.apply(ConfigureVfs(pf=PF0, configs=(config,), previous=(replace(config),)))
    assert lab.kernel.observe() == before


def vlans_of(name):
    shown = json.loads(run("bridge", "-json", "vlan", "show", "dev", name))
    return {vlan["vlan"] for vlan in shown[0]["vlans"]}
