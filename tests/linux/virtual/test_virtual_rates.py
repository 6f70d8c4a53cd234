"""Rates of virtual functions: few queries of the kernel for them, and yet changes by others are seen."""

from __future__ import annotations

import subprocess
from contextlib import closing

import pytest

from contract.lab import PF0
from contract.linux_lab import needs_namespaces
from contract.virtual_lab import VirtualLab
from k8s_rdma.core.step import SetRates, VfRate
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.rtnl import Rtnl
from k8s_rdma.linux.netlink.socket import NetlinkSocket
from k8s_rdma.linux.netns import Namespaces
from k8s_rdma.linux.virtual.kernel import VirtualSriov
from k8s_rdma.linux.virtual.pf import Shaper, VfRateCache

pytestmark = needs_namespaces
VFS = 8


class CountingShaper(Shaper):
    """Counts reads: lists of all classes, and single ones."""

    lists = singles = 0

    def rates(self, pf, scheduler):
        self.lists += 1
        return super().rates(pf, scheduler)

    def rate(self, scheduler, index):
        self.singles += 1
        return super().rate(scheduler, index)


@pytest.fixture
def lab(tmp_path):
    made = VirtualLab(tmp_path, VFS)
    yield made
    made.close()


@pytest.fixture
def shaper(lab):
    return CountingShaper(lab.rtnl)


@pytest.fixture
def rates(lab, shaper):
    """As of an agent that has looked at the PF once."""
    made = VfRateCache(shaper)
    made.read_all(lab.pfs[0], scheduler(lab))
    shaper.lists = shaper.singles = 0
    return made


def scheduler(lab):
    return lab.rtnl.link("enp3s0f0-tx").index


def step(*rates):
    return SetRates(pf=PF0, rates=rates, previous=tuple(VfRate(each.index) for each in rates))


def classes(lab):
    return lab.kernel.observe().pfs[0].vfs


def test_rates_of_one_vf_are_set_without_asking_for_those_of_others(lab, rates, shaper):
    rates.set(lab.pfs[0], scheduler(lab), step(VfRate(3, 100, 200)))
    assert (shaper.lists, shaper.singles) == (0, 2)
    assert (classes(lab)[3].min_tx_rate_mbps, classes(lab)[3].max_tx_rate_mbps) == (100, 200)


def test_rates_of_many_vfs_are_read_together(lab, rates, shaper):
    rates.set(lab.pfs[0], scheduler(lab), step(*(VfRate(index, 10, 0) for index in range(VFS))))
    assert (shaper.lists, shaper.singles) == (2, 0)


def test_sum_of_reservations_includes_other_vfs(lab, rates):
    rates.set(lab.pfs[0], scheduler(lab), step(VfRate(0, 600)))
    rates.set(lab.pfs[0], scheduler(lab), step(VfRate(1, 400)))
    with pytest.raises(KernelError, match="add up to 1001"):
        rates.set(lab.pfs[0], scheduler(lab), step(VfRate(2, 1)))


def test_others_are_looked_at_again_before_a_sum_is_refused(lab, rates):
    rates.set(lab.pfs[0], scheduler(lab), step(VfRate(0, 600)))
    VfRateCache(Shaper(lab.rtnl)).set(lab.pfs[0], scheduler(lab), step(VfRate(0)))
    rates.set(lab.pfs[0], scheduler(lab), step(VfRate(1, 500)))
    assert [vf.min_tx_rate_mbps for vf in classes(lab)[:2]] == [0, 500]


def test_rates_changed_by_another_program_are_set_again(lab, rates):
    rates.set(lab.pfs[0], scheduler(lab), step(VfRate(0, 100, 200)))
    VfRateCache(Shaper(lab.rtnl)).set(lab.pfs[0], scheduler(lab), step(VfRate(0, 5, 6)))
    rates.set(lab.pfs[0], scheduler(lab), step(VfRate(0, 100, 200)))
    assert (classes(lab)[0].min_tx_rate_mbps, classes(lab)[0].max_tx_rate_mbps) == (100, 200)


def test_class_that_is_not_there_is_made_anew_with_its_rates(lab, rates):
    dev = ("dev", "enp3s0f0-tx")
    gone = "filter", "del", *dev, "parent", "1:", "handle", "1:2:3", "prio", "1000", "u32"
    for arguments in (gone, ("class", "del", *dev, "classid", "1:12")):
        subprocess.run(["tc", *arguments], check=True)
    rates.set(lab.pfs[0], scheduler(lab), step(VfRate(2, 30, 40)))
    assert (classes(lab)[2].min_tx_rate_mbps, classes(lab)[2].max_tx_rate_mbps) == (30, 40)


class ListedClasses(NetlinkSocket):
    """Notes each list of classes. refused: the operation that fails."""

    def __init__(self):
        super().__init__()
        self.noted = []
        self.refused = ""

    def request(self, kind, body, operation, flags=0):
        if operation == self.refused:
            msg = f"{operation}: refused"
            raise KernelError(msg)
        super().request(kind, body, operation, flags)

    def dump(self, kind, body, operation):
        if operation.endswith(": classes"):
            self.noted.append(operation)
        return super().dump(kind, body, operation)


@pytest.fixture
def lists(lab):
    return ListedClasses()


@pytest.fixture
def kernel(lists):
    """As of an agent that has looked at all PFs once."""
    with closing(VirtualSriov(Namespaces(), Rtnl(socket=lists))) as opened:
        opened.observe()
        lists.noted.clear()
        yield opened


def tc(*words):
    subprocess.run(["tc", *words], check=True)


def test_observation_lists_no_classes_without_a_change_of_one(kernel, lists):
    assert kernel.observe() == kernel.observe()
    assert lists.noted == []


def test_observation_lists_no_classes_after_a_change_of_its_own(kernel, lists):
    kernel.apply(step(VfRate(2, 30, 40)))
    vf = kernel.observe().pfs[0].vfs[2]
    assert (vf.min_tx_rate_mbps, vf.max_tx_rate_mbps) == (30, 40)
    assert lists.noted == []


def test_observation_lists_the_classes_again_after_a_change_of_its_own_that_failed(kernel, lists):
    lists.refused = "enp3s0f0-tx: rates of VF 3"
    with pytest.raises(KernelError, match="refused"):
        kernel.apply(step(VfRate(2, 30, 40), VfRate(3, 10, 0)))
    vfs = kernel.observe().pfs[0].vfs
    assert [(vf.min_tx_rate_mbps, vf.max_tx_rate_mbps) for vf in vfs[2:4]] == [(30, 40), (0, 0)]
    assert lists.noted == ["enp3s0f0-tx: classes"]


def test_observation_shows_rates_that_another_program_changed(lab, kernel, lists):
    change = ("class", "change", "dev", "enp3s0f0-tx", "parent", "1:1", "classid", "1:12")
    tc(*change, "htb", "rate", "30mbit", "ceil", "40mbit", "burst", "128k", "cburst", "128k")
    vf = kernel.observe().pfs[0].vfs[2]
    assert (vf.min_tx_rate_mbps, vf.max_tx_rate_mbps) == (30, 40)
    assert lists.noted == ["enp3s0f0-tx: classes"]


def test_observation_does_not_show_rates_of_a_scheduler_that_is_gone(lab, kernel):
    tc("qdisc", "delete", "dev", "enp3s0f0-tx", "root")
    observed = kernel.observe()
    assert PF0 not in {pf.pci for pf in observed.pfs}
    assert [unreadable.pf for unreadable in observed.unreadable] == [PF0]
