"""VFs of real PFs on ways that only they take."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from contract.hardware_lab import FEWEST_VFS, PFS, needs_hardware
from contract.lab import give, home_of, state_of
from contract.linux_lab import DEADLINE_S, inside, ip, run
from k8s_rdma.core.step import ClearInterface, ConfigureInterface, Route, VfRef
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.changes import LINKS, Changes
from k8s_rdma.linux.discovery.netlink_queries import NetlinkQueries
from k8s_rdma.linux.netns import current_namespace
from k8s_rdma.linux.sysfs import Sysfs
from k8s_rdma.linux.vf.moves import HostNamespace, VfLocator, VfMoves, VfRdma
from linux.watcher import Watcher

pytestmark = needs_hardware

NOT_COMING_S = 0.5
NOWHERE = Route(dst="10.9.0.0/16", gateway="192.0.2.1")


@pytest.fixture
def vf(lab):
    return VfRef(lab.pcis[0], 1)


def test_vf_comes_home_under_its_name_although_the_kernel_could_return_it_under_neither_name(lab, vf):
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


def test_vf_comes_home_from_a_pod_that_gave_it_a_name_which_is_no_text(lab, vf):
    before, netns = lab.kernel.observe(), lab.namespace()
    step = give(lab, vf, netns)
    lab.kernel.apply(step)
    run(*inside(netns), "ip", "link", "set", "rdma0", "name", os.fsdecode(b"x\xff"))
    lab.destroy(netns)
    deadline = time.monotonic() + DEADLINE_S
    while (seen := state_of(lab, vf)).netdev is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert seen.netdev.encode() == rb"x\udcff"
    assert "is not valid text" in seen.unusable
    lab.kernel.apply(step.inverse)
    assert lab.kernel.observe() == before


@pytest.mark.parametrize("dead", [False, True], ids=["alive", "dead"])
def test_vf_comes_home_without_the_altnames_of_its_pod_which_could_keep_others_from_home(lab, vf, dead):
    before, other = lab.kernel.observe(), VfRef(vf.pf, vf.index + 1)
    netns, others = lab.namespace(), lab.namespace()
    step, second = give(lab, vf, netns), give(lab, other, others)
    for each in (step, second):
        lab.kernel.apply(each)
    name = second.home.name
    run(*inside(netns), "ip", "link", "property", "add", "dev", "rdma0", "altname", name)
    if dead:
        lab.destroy(netns)
    for each in (step, second):
        lab.kernel.apply(each.inverse)
    assert lab.kernel.observe() == before


def test_no_way_of_a_vf_keeps_a_descriptor_by_which_its_namespace_would_live_on(lab, vf):
    netns = lab.namespace()
    step = give(lab, vf, netns)
    lab.occupy("taken", netns)
    before = len(list(Path("/proc/self/fd").iterdir()))
    lab.kernel.apply(step)
    lab.kernel.apply(ConfigureInterface(netns=netns, ifname="rdma0", addresses=("10.0.0.1/24",)))
    lab.kernel.sample({vf: netns})
    for refused in (
        replace(step, ifname="taken"),
        replace(step, vf=replace(vf, index=2), ifname="taken"),
        ConfigureInterface(netns=netns, ifname="absent"),
        ConfigureInterface(netns=netns, ifname="rdma0", addresses=("10.0.0.1/24",), routes=(NOWHERE,)),
    ):
        with pytest.raises(KernelError):
            lab.kernel.apply(refused)
    lab.kernel.apply(ClearInterface(netns=netns, ifname="rdma0"))
    lab.kernel.apply(step.inverse)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


class CountedPlaces(VfLocator):
    """Counts how often it is looked whether a VF is at home."""

    looks = 0

    def at_home(self, vf):
        self.looks += 1
        return super().at_home(vf)


@pytest.fixture
def counted(lab):
    """Moves of VFs without long waits, and the counts of their looks."""
    with NetlinkQueries() as queries, closing_descriptor(current_namespace()) as descriptor:
        host = HostNamespace(queries.rtnl, descriptor)
        places = CountedPlaces(host, Sysfs())
        rdma = VfRdma(queries=queries, sysfs=Sysfs(), host=descriptor)
        moves = VfMoves(
            host=host, namespaces=lab.namespaces, places=places, rdma=rdma, return_timeout_s=NOT_COMING_S
        )
        yield moves, places


def test_vfs_that_the_kernel_does_not_return_are_errors_and_waited_for_once_for_all(lab, counted):
    moves, places = counted
    netns, vfs = lab.namespace(), [VfRef(pf, index) for pf in lab.pcis for index in range(FEWEST_VFS)]
    steps = [give(lab, vf, netns, f"rdma{number}") for number, vf in enumerate(vfs)]
    for step in steps:
        moves.move_to_pod(step)
    with lab.namespaces.existing(netns) as namespace:
        # As a process that keeps the namespace alive and cannot be found.
        held = lab.stack.enter_context(closing_descriptor(os.dup(namespace)))
    lab.destroy(netns)
    looks = []
    for step in steps:
        places.looks = 0
        with pytest.raises(KernelError, match=rf"VF {step.vf.index} of PF .* did not return within 0\.5 s"):
            moves.bring_home(step.inverse)
        looks.append(places.looks)
    assert looks[0] > 2
    assert looks[1:] == [2] * (len(steps) - 1)
    assert state_of(lab, vfs[0]).netdev is None
    os.close(held)
    for step in steps:
        lab.kernel.apply(step.inverse)
    assert [home_of(lab, step.vf) for step in steps] == [step.home for step in steps]


def test_vf_is_awaited_and_no_other_is_taken_when_another_program_moved_it(lab, vf):
    kernel, netns, nested = (
        lab.another_kernel(return_timeout_s=NOT_COMING_S),
        lab.namespace(),
        lab.namespace(),
    )
    step = give(lab, vf, netns)
    kernel.apply(step)
    index = str(ip(netns, "link", "show", "rdma0")[0]["ifindex"])
    run(*inside(netns), "ip", "link", "set", "rdma0", "netns", nested.path)
    run(*inside(netns), "ip", "link", "add", "rdma0", "index", index, "type", "bridge")
    with pytest.raises(KernelError, match="did not return"):
        kernel.apply(step.inverse)
    assert lab.seen("rdma0", netns) is not None
    lab.destroy(nested)
    lab.another_kernel().apply(
        step.inverse
    )  # which finds no VF there, and does not know that it had given one to it
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


def test_mac_that_the_pf_does_not_let_the_vf_have_again_is_an_error_with_advice(lab, vf):
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


def test_vf_comes_home_with_its_mac_although_its_pf_was_reset_since_the_pod_changed_it(lab, vf):
    netns = lab.namespace()
    step = give(lab, vf, netns)
    lab.kernel.apply(step)
    lab.alter("rdma0", netns, name="rdma0", mac="02:00:00:00:00:77", mtu=1280)
    with lab.pf_down(0):
        pass
    lab.kernel.apply(step.inverse)
    found = lab.seen(step.home.name)
    assert (found.mac, found.mtu, found.is_up, found.addresses) == (step.home.mac, step.home.mtu, False, ())


def test_vf_without_a_driver_is_not_given_and_has_no_netdev_to_bring_home(lab, vf):
    netns = lab.namespace()
    step = give(lab, vf, netns)
    driver, pci = unbind(lab, vf)
    try:
        with pytest.raises(KernelError, match=r"VF 1 of PF .*: expected in .*, but no driver is bound to it"):
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


def test_vf_that_comes_home_under_another_name_as_its_namespace_ends_is_reported_at_once(lab, vf):
    netns = lab.namespace()
    step = give(lab, vf, netns)
    lab.kernel.apply(step)
    name, deadline = "dev5", time.monotonic() + DEADLINE_S
    run(*inside(netns), "ip", "link", "set", "rdma0", "name", name)
    watcher = Watcher(DEADLINE_S)
    with Changes(watcher, (LINKS,)):
        lab.destroy(netns)
        while state_of(lab, vf).netdev != name:
            watcher.wait()  # fails if no event reports it, however often one would look
            assert time.monotonic() < deadline
    lab.kernel.apply(step.inverse)
    assert home_of(lab, vf) == step.home


@contextmanager
def closing_descriptor(descriptor):
    """Close it at the end, unless that was done."""
    try:
        yield descriptor
    finally:
        with suppress(OSError):
            os.close(descriptor)


def set_by_pf(vf, mac):
    run("ip", "link", "set", PFS[0], "vf", str(vf.index), "mac", mac)


def unbind(lab, vf):
    device = Path(f"/sys/bus/pci/devices/{vf.pf}/virtfn{vf.index}").resolve()
    driver = (device / "driver").resolve()
    (driver / "unbind").write_text(device.name)
    return driver, device.name
