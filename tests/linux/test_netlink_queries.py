"""The questions of discovery, answered by the kernel here."""

from __future__ import annotations

import ipaddress
import struct
from pathlib import Path

import pytest

from k8s_rdma.errors import KernelError
from k8s_rdma.linux.discovery.netlink_queries import NetlinkQueries
from k8s_rdma.linux.netlink.rtnl import Rtnl, named, of_kind
from k8s_rdma.linux.netlink.socket import ROUTE, NetlinkSocket, attributes
from linux.recorded import Recording

GETLINK, EXT_MASK, FILTER_VF = 18, 29, 1


@pytest.fixture
def queries(rtnl):
    rtnl.create("create", named("a"), of_kind("veth"))
    with NetlinkQueries() as opened:
        yield opened


def test_links_are_all_that_there_are(queries):
    assert {link.name for link in queries.links()} >= {"lo", "a"}


def test_links_and_routes_are_listed_without_a_query_for_vfs(queries):
    """Those hold the kernel's lock for 1-2 ms a VF."""
    recording = Recording(ROUTE)
    queries.rtnl = Rtnl(socket=NetlinkSocket(recording))
    queries.links()
    queries.default_route_links()
    requests = [bytes.fromhex(line[2:]) for line in recording.lines if line.startswith(">")]
    masks = [
        struct.unpack("=I", attributes(request, 32)[EXT_MASK])[0]
        for request in requests
        if struct.unpack_from("=H", request, 4)[0] == GETLINK
    ]
    assert masks
    assert not any(mask & FILTER_VF for mask in masks)
    queries.rtnl.close()


def test_link_that_is_no_pf_has_no_vfs(queries):
    assert [queries.vf_infos(link.index) for link in queries.links()] == [()] * len(queries.links())
    assert [queries.vf_stats(link.index) for link in queries.links()] == [()] * len(queries.links())


def test_firmware_is_empty_if_the_driver_reports_none(queries):
    assert (queries.firmware("a"), queries.firmware("lo")) == ("", "")
    with pytest.raises(KernelError):
        queries.firmware("absent")


def test_links_with_an_address_are_those_with_more_than_a_link_local_one(queries, rtnl):
    ends = rtnl.link("a").index, rtnl.link("a").peer
    for index in ends:
        rtnl.change(index, "up", up=True)
    rtnl.change(rtnl.link("lo").index, "up", up=True)
    assert queries.addressed_links() == frozenset()
    for index, text in zip(ends, ("10.0.0.7/24", "fd00::7/64"), strict=True):
        rtnl.add_address(index, ipaddress.ip_interface(text), "add")
    assert queries.addressed_links() == frozenset(ends)
    rtnl.delete_address(ends[0], ipaddress.ip_interface("10.0.0.7/24"), "delete")
    assert queries.addressed_links() == {ends[1]}


def test_plain_link_has_no_default_route_no_switch_and_no_rdma_device(queries):
    assert queries.default_route_links() == frozenset()
    assert queries.eswitch_modes() == {}
    if not Path("/sys/class/infiniband").exists():
        assert queries.rdma() is None
        assert queries.rdma_devices() == ()


def test_closed_queries_keep_no_descriptor_even_if_closed_twice(rtnl):
    def open_files():
        return len(list(Path("/proc/self/fd").iterdir()))

    before = open_files()
    queries = NetlinkQueries()
    queries.rdma_devices()
    queries.close()
    queries.close()
    assert open_files() == before
