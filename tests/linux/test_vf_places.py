"""Where VFs of recorded machines are, and the errors for those that are absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from contract.linux_lab import needs_namespaces
from fakes.recorded_machine import RecordedMachine, read_machine
from k8s_rdma.core.pf_selection import Selection
from k8s_rdma.core.step import VfRef
from k8s_rdma.core.types import PciAddress
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.changes import files_without_events
from k8s_rdma.linux.discovery.observation import Observer
from k8s_rdma.linux.netlink.rtnl import Rtnl, named
from k8s_rdma.linux.vf.moves import HostNamespace, VfLocator, netdev_of, netdevs_by_device
from network_namespaces import create_namespace

MACHINES = Path(__file__).parent.parent / "machines"
PF = PciAddress("0000:01:00.0")


def machine(name):
    return RecordedMachine(read_machine(MACHINES / f"{name}.yaml"))


@pytest.fixture
def places(rtnl, namespace):
    """A recorded machine's sysfs beside a namespace without its netdevs."""
    return VfLocator(HostNamespace(rtnl, namespace), machine("igb").sysfs)


@needs_namespaces
def test_vf_is_known_by_its_pf_and_index(places):
    assert places.function(VfRef(PF, 1)).pci == "0000:01:10.2"


@needs_namespaces
@pytest.mark.parametrize(
    ("vf", "words"),
    [
        (VfRef(PF, 99), rf"VF 99 of PF {PF}: unknown: \w+ has \d+ VFs"),
        (VfRef(PciAddress("0000:99:00.0"), 0), r"VF 0 of PF 0000:99:00\.0: unknown: there is no such PF"),
    ],
)
def test_unknown_vf_is_an_error_with_the_known_ones(places, vf, words):
    with pytest.raises(KernelError, match=words):
        places.at_home(vf)


@needs_namespaces
def test_netdev_that_only_sysfs_knows_is_an_error_and_not_away(places):
    with pytest.raises(KernelError, match=r"VF 1 of PF .*: sysfs gives it \w+, which netlink does not list"):
        places.at_home(VfRef(PF, 1))


@needs_namespaces
def test_links_that_are_of_no_function_are_of_no_vf(rtnl):
    other = create_namespace()
    try:
        assert netdevs_by_device(rtnl, other) == {}
        assert netdev_of(PciAddress("0000:01:10.2"), rtnl, other, index=1) is None
        with Rtnl(other) as there:
            there.change(1, "rename", named(os.fsdecode(b"\xff")))  # lo, as a pod may call it
            assert netdevs_by_device(there, other) == {}
    finally:
        os.close(other)


@pytest.mark.parametrize(
    ("name", "watched"),
    [
        ("igb", set()),
        ("connectx5", set()),
        ("connectx5-ofed", {"sriov"}),
        ("connectx6-infiniband", {"ports"}),
    ],
)
def test_files_are_watched_if_the_kernel_sends_no_events(name, watched):
    it = machine(name)
    hardware = Observer(it.sysfs, it.queries, Selection(require_rdma=False)).observe()
    files = files_without_events(it.sysfs, hardware)
    assert {part for file in files for part in file.split("/") if part in ("sriov", "ports")} == watched
    for file in files:
        assert it.sysfs.read(file)
    if watched == {"sriov"}:
        assert len(files) == sum(len(pf.vfs) for pf in hardware.pfs)
