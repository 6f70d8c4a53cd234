"""Nodes with many links and VFs, on which other programs' queries of links are slow or are interrupted."""

from __future__ import annotations

import os
import struct
import threading

import pytest

from contract.lab import PF0, home_of
from contract.linux_lab import needs_namespaces
from contract.virtual_lab import VirtualLab
from k8s_rdma.core.step import CleanVf, GiveVf, VfRef
from k8s_rdma.linux.netlink.rtnl import Rtnl, named, of_kind
from k8s_rdma.linux.netlink.socket import NetlinkSocket, attributes, connect, number
from k8s_rdma.linux.netns import current_namespace
from k8s_rdma.linux.virtual.kernel import VirtualSriov

pytestmark = needs_namespaces

VF = VfRef(PF0, 1)
GETLINK, EXT_MASK, FILTER_VF = 18, 29, 1


@pytest.fixture
def lab(tmp_path):
    made = VirtualLab(tmp_path, 3)
    yield made
    made.close()


class Noting:
    """A connection to the kernel that notes which details of links are asked for (RTEXT_FILTER_*)."""

    def __init__(self):
        self._kernel = connect()
        self.filters = []

    def send(self, request):
        _, kind, *_ = struct.unpack_from("=IHHII", request)
        if kind == GETLINK:
            self.filters.append(number(attributes(request, 32).get(EXT_MASK, b"")))
        return self._kernel.send(request)

    def __getattr__(self, name):
        return getattr(self._kernel, name)


def test_no_query_of_links_asks_for_the_vfs_of_each_as_a_pod_comes_and_goes(lab):
    """1 to 2 ms a VF under the kernel's RTNL lock: datapaths of other pods stood still for 0.9 s.

    https://github.com/cilium/cilium/issues/43516, https://github.com/vishvananda/netlink/issues/1097
    """
    connection = Noting()
    kernel = VirtualSriov(lab.namespaces, Rtnl(socket=NetlinkSocket(connection)))
    step = GiveVf(vf=VF, home=home_of(lab, VF), netns=lab.namespace(), ifname="rdma0")
    for each in (CleanVf(vf=VF, home=step.home), step, step.inverse):
        kernel.apply(each)
        kernel.observe()
    kernel.close()
    assert connection.filters
    assert not any(asked & FILTER_VF for asked in connection.filters)


def test_list_of_links_is_whole_while_links_of_other_pods_come_and_go_all_the_time(lab):
    """Each change interrupts a dump; 30 tries in a row were too few, and no pod could start.

    https://github.com/cilium/cilium/issues/48718, https://github.com/containernetworking/plugins/issues/1121
    """
    rtnl = lab.rtnl
    for number_of_pair in range(150):
        rtnl.create("a pair", named(f"stays{number_of_pair}"), of_kind("veth"))
    here, ended, expected = current_namespace(), threading.Event(), {link.name for link in rtnl.links()}

    def come_and_go():
        with Rtnl(here) as links:
            while not ended.is_set():
                links.create("a pod", named("pod0"), of_kind("veth"))
                links.delete(links.link("pod0").index, "its end")

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        seen = [{link.name for link in rtnl.links()} for _ in range(10)]
    finally:
        ended.set()
        other.join()
        os.close(here)
    assert all(expected <= names for names in seen)
