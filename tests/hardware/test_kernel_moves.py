"""VFs of real PFs on ways that only they take."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from contract.hardware_lab import FEWEST_VFS, PFS, needs_hardware
from contract.lab import give, home_of, state_of
from contract.linux_lab import DEADLINE_S, run
from k8s_rdma.core.step import ConfigureInterface, VfRef
from k8s_rdma.errors import KernelError

pytestmark = needs_hardware

NOT_COMING_S = 2


@pytest.fixture
def vf(lab):
    return VfRef(lab.pcis[0], 1)


def test_vf_comes_home_under_its_name_when_the_kernel_could_return_it_under_none_of_both(lab, vf):
    before, netns = lab.kernel.observe(), lab.namespace()
    step = give(lab, vf, netns)
    lab.kernel.apply(step)
    lab.occupy("rdma0")
    lab.destroy(netns)
    lab.kernel.apply(step.inverse)
    assert lab.kernel.observe() == before
    assert lab.seen(step.home.name) is not None


def test_vf_that_came_home_stays_as_it_came_when_its_name_is_taken_and_takes_it_when_it_is_free(lab, vf):
    before, netns = lab.kernel.observe(), lab.namespace()
    step = give(lab, vf, netns)
    lab.kernel.apply(step)
    lab.occupy(step.home.name)
    lab.destroy(netns)
    with pytest.raises(KernelError, match=f"name {step.home.name} is taken"):
        lab.kernel.apply(step.inverse)
    run("ip", "link", "delete", step.home.name)
    lab.kernel.apply(step.inverse)
    assert lab.kernel.observe() == before


def test_bringing_home_waits_once_for_all_when_the_kernel_does_not_return_them(lab):
    kernel, netns = lab.another_kernel(return_timeout_s=NOT_COMING_S), lab.namespace()
    vfs = [VfRef(pf, index) for pf in lab.pcis for index in range(FEWEST_VFS)]
    steps = [give(lab, vf, netns, f"rdma{number}") for number, vf in enumerate(vfs)]
    for step in steps:
        kernel.apply(step)
    with lab.namespaces.existing(netns) as namespace:
        held = os.dup(namespace)  # of somebody who keeps the namespace alive where nobody finds it
    lab.destroy(netns)
    began = time.monotonic()
    for step in steps:
        with pytest.raises(KernelError, match=f"VF {step.vf.index} of PF .* did not come home within 2 s"):
            kernel.apply(step.inverse)
    assert NOT_COMING_S <= time.monotonic() - began < len(steps) * NOT_COMING_S / 2
    assert state_of(lab, vfs[0]).netdev is None
    os.close(held)
    later = lab.another_kernel()
    for step in steps:
        later.apply(step.inverse)
    assert [home_of(lab, step.vf) for step in steps] == [step.home for step in steps]


def test_vf_is_waited_for_when_whoever_lives_there_moved_it_on(lab, vf):
    kernel, netns, nested = (
        lab.another_kernel(return_timeout_s=NOT_COMING_S),
        lab.namespace(),
        lab.namespace(),
    )
    step = give(lab, vf, netns)
    kernel.apply(step)
    run("nsenter", f"--net={netns.path}", "ip", "link", "set", "rdma0", "netns", nested.path)
    with pytest.raises(KernelError, match="did not come home"):
        kernel.apply(step.inverse)
    lab.destroy(nested)
    lab.another_kernel().apply(
        step.inverse
    )  # which finds nothing there, and knows nothing of having given it
    deadline = time.monotonic() + DEADLINE_S
    while state_of(lab, vf).netdev is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    kernel.apply(step.inverse)
    assert home_of(lab, vf) == step.home


def test_vf_comes_home_with_its_mac_although_the_pf_has_set_another_for_its_next_driver(lab, vf):
    netns = lab.namespace()
    step = give(lab, vf, netns)
    lab.kernel.apply(step)
    set_by_pf(vf, "02:00:00:00:00:99")
    try:
        lab.kernel.apply(step.inverse)
        assert lab.seen(step.home.name).mac == step.home.mac
    finally:
        set_by_pf(vf, "00:00:00:00:00:00")


def test_mac_that_the_pf_does_not_let_the_vf_have_again_is_an_error_that_says_what_to_do(lab, vf):
    netns = lab.namespace()
    step = give(lab, vf, netns)
    lab.kernel.apply(step)
    lab.alter("rdma0", netns, name="rdma0", mac="02:00:00:00:00:77", mtu=1280)
    set_by_pf(vf, "02:00:00:00:00:99")
    try:
        with pytest.raises(KernelError, match=f"VF 1 of PF {vf.pf}: MAC {step.home.mac}") as caught:
            lab.kernel.apply(step.inverse)
        assert f"vf 1 mac {step.home.mac}" in caught.value.details
    finally:
        set_by_pf(vf, "00:00:00:00:00:00")
    lab.kernel.apply(step.inverse)
    assert home_of(lab, vf) == step.home


def test_vf_without_a_driver_is_not_given_and_has_nothing_to_bring_home(lab, vf):
    netns = lab.namespace()
    step = give(lab, vf, netns)
    driver, pci = unbind(lab, vf)
    try:
        with pytest.raises(KernelError, match=r"VF 1 of PF .*: wanted in .*, but no driver has it"):
            lab.kernel.apply(step)
        lab.kernel.apply(step.inverse)
        assert state_of(lab, vf).unusable
    finally:
        (driver / "bind").write_text(pci)
    lab.close()  # waits for its netdev
    assert lab.seen(step.home.name) is not None


def test_vf_is_found_by_its_address_when_the_pod_gave_its_name_to_another(lab, vf):
    netns, other = lab.namespace(), VfRef(vf.pf, 2)
    steps = [give(lab, vf, netns, "rdma0"), give(lab, other, netns, "rdma1")]
    for step in steps:
        lab.kernel.apply(step)
        lab.kernel.apply(ConfigureInterface(netns=netns, ifname=step.ifname))
    for was, now in (("rdma0", "spare"), ("rdma1", "rdma0"), ("spare", "rdma1")):
        lab.alter(was, netns, name=now, mac=lab.seen(was, netns).mac, mtu=1500)
    for kernel, step in zip((lab.kernel, lab.another_kernel()), steps, strict=True):
        kernel.apply(step.inverse)
        assert home_of(lab, step.vf) == step.home


def set_by_pf(vf, mac):
    run("ip", "link", "set", PFS[0], "vf", str(vf.index), "mac", mac)


def unbind(lab, vf):
    device = Path(f"/sys/bus/pci/devices/{vf.pf}/virtfn{vf.index}").resolve()
    driver = (device / "driver").resolve()
    (driver / "unbind").write_text(device.name)
    return driver, device.name
