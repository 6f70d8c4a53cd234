"""Counters from netdevs and from sysfs, of VFs that a namespace of the test's own pretends to have."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from contract.linux_lab import needs_namespaces
from k8s_rdma.core.kernel import Hardware, PfState, Vf
from k8s_rdma.core.step import NetnsRef, VfRef
from k8s_rdma.core.types import PciAddress
from k8s_rdma.linux.discovery.netlink_queries import NetlinkQueries
from k8s_rdma.linux.kernel import VfTrafficSampler
from k8s_rdma.linux.netlink.rtnl import counters_of_all, named, of_kind
from k8s_rdma.linux.netns import Namespaces
from k8s_rdma.linux.sysfs import Sysfs
from k8s_rdma.linux.vf.moves import VfRdma

pytestmark = needs_namespaces

PF = PciAddress("0000:03:00.0")


@pytest.fixture
def traffic(namespace, tmp_path):
    with NetlinkQueries() as queries:
        sysfs = Sysfs(tmp_path)
        rdma = VfRdma(queries=queries, sysfs=sysfs, host=namespace)
        yield VfTrafficSampler(queries=queries, sysfs=sysfs, namespaces=Namespaces(), rdma=rdma)


def vf(index, netdev, rdma_device=None):
    pci = PciAddress(f"0000:03:10.{index}")
    return Vf(index=index, pci=pci, netdev=netdev, mac="", mtu=1500, rdma_device=rdma_device)


def hardware(*vfs):
    return Hardware((PfState(name="pf", pci=PF, link_mbps=1000, driver="", vfs=vfs),))


def test_netdev_at_home_is_queried_if_its_pf_has_no_counters(traffic, rtnl):
    rtnl.create("create", named("pf"), of_kind("bridge"))
    rtnl.create("create", named("v0"), of_kind("veth"))
    (found,) = traffic.sample(hardware(vf(0, "v0"), vf(1, None), vf(2, "absent")), {})
    told = counters_of_all(rtnl.socket)[rtnl.link("v0").index]
    assert (found.vf, found.tx_packets, found.rx_bytes) == (VfRef(PF, 0), told.tx_packets, told.rx_bytes)
    assert found.rdma == {}


def test_counters_of_the_rdma_device_are_those_files_that_hold_a_number(traffic, rtnl, tmp_path):
    rtnl.create("create", named("v0"), of_kind("veth"))
    files = tmp_path / "class/infiniband/mlx5_2/ports/1/hw_counters"
    files.mkdir(parents=True)
    values = {
        "out_of_sequence": "7",
        "rx_write_requests": "18446744073709551615",
        "lifespan": "10",
        "odd": "x",
    }
    for name, value in values.items():
        (files / name).write_text(f"{value}\n")
    (files / "unsupported").mkdir()  # as a file that has no value
    (found,) = traffic.sample(hardware(vf(0, "v0", "mlx5_2")), {})
    assert found.rdma == {"out_of_sequence": 7, "rx_write_requests": 2**64 - 1}
    (found,) = traffic.sample(hardware(vf(0, "v0", "gone")), {})
    assert found.rdma == {}


def test_vfs_in_a_namespace_that_cannot_be_looked_into_are_left_out_and_no_others(traffic, rtnl, tmp_path):
    rtnl.create("create", named("v0"), of_kind("veth"))
    (tmp_path / "unmounted").touch()
    holders = {VfRef(PF, 1): NetnsRef(str(tmp_path / "unmounted"), 7)}
    (found,) = traffic.sample(hardware(vf(0, "v0"), vf(1, None)), holders)
    assert found.vf == VfRef(PF, 0)


class Slow(Namespaces):
    """Namespaces in each of which a look takes so long, in seconds."""

    def __init__(self, takes_s):
        super().__init__()
        self.takes_s, self.now, self.looks = takes_s, 1000.0, []

    @contextmanager
    def opened(self, netns):
        self.looks.append(netns.inode)
        self.now += self.takes_s[netns.inode]
        yield None


def test_namespace_that_takes_long_rests_for_ten_times_as_long_and_no_other(namespace, tmp_path):
    """One pod may have 10,000 links, and the worker that looks through them serves all pods."""
    slow = Slow({1: 2.0, 2: 0.1})
    with NetlinkQueries() as queries:
        sysfs = Sysfs(tmp_path)
        rdma = VfRdma(queries=queries, sysfs=sysfs, host=namespace)
        traffic = VfTrafficSampler(
            queries=queries, sysfs=sysfs, namespaces=slow, rdma=rdma, now=lambda: slow.now
        )
        holders = {VfRef(PF, number): NetnsRef("/run/netns/x", number) for number in (1, 2)}
        for pause_s in (15, 15, 15):
            traffic.sample(hardware(vf(1, None), vf(2, None)), holders)
            slow.now += pause_s
    assert slow.looks == [1, 2, 2, 1, 2]
