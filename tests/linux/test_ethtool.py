"""Drivers as the kernel here reports them."""

from __future__ import annotations

import os

import pytest

from k8s_rdma.core.kernel import PauseFrames
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.ethtool import DriverInfo, Ethtool, pause_frames_in
from k8s_rdma.linux.netlink.rtnl import Rtnl, named, of_kind
from network_namespaces import create_namespace


def test_driver_is_read(rtnl):
    rtnl.create("create", named("a"), of_kind("veth"))
    with Ethtool() as ethtool:
        assert ethtool.driver_info("a") == DriverInfo(driver="veth", firmware="", bus_info="")


def test_fields_unknown_to_a_driver_are_empty(rtnl):
    """A bridge says `N/A`."""
    rtnl.create("create", named("b"), of_kind("bridge"))
    with Ethtool() as ethtool:
        assert ethtool.driver_info("b") == DriverInfo(driver="bridge", firmware="", bus_info="")


def test_link_without_a_driver_has_no_information(rtnl):
    with Ethtool() as ethtool:
        assert ethtool.driver_info("lo") is None


@pytest.mark.parametrize("name", ["absent", "a-name-of-16-chars", ""])
def test_link_that_is_not_there_is_an_error(rtnl, name):
    with Ethtool() as ethtool, pytest.raises(KernelError, match=f"^driver of {name}: ENODEV"):
        ethtool.driver_info(name)


def test_links_of_another_namespace_are_queried_there(rtnl):
    elsewhere = create_namespace()
    with Rtnl(elsewhere) as there, Ethtool(elsewhere) as ethtool:
        there.create("create", named("a"), of_kind("veth"))
        assert ethtool.driver_info("a").driver == "veth"
    with Ethtool() as here, pytest.raises(KernelError):
        here.driver_info("a")
    os.close(elsewhere)


def test_link_whose_driver_knows_no_pause_frames_has_no_counts_of_them(rtnl):
    rtnl.create("create", named("a"), of_kind("veth"))
    with Ethtool() as ethtool:
        assert ethtool.pauses("a") is None
        with pytest.raises(KernelError, match=r"^driver of absent: ENODEV"):
            ethtool.pauses("absent")


def test_statistics_are_those_of_the_driver_by_its_names(rtnl):
    rtnl.create("create", named("a"), of_kind("veth"))
    with Ethtool() as ethtool:
        found = ethtool.statistics("a")
        assert found["peer_ifindex"] == next(link.index for link in rtnl.links() if link.name == "veth0")
        assert {"rx_queue_0_xdp_packets", "rx_queue_0_drops"} <= found.keys()
        assert ethtool.pause_frames("a") == {}


def test_link_whose_driver_has_no_counters_has_no_statistics(rtnl):
    rtnl.create("create", named("b"), of_kind("bridge"))
    with Ethtool() as ethtool:
        assert ethtool.statistics("b") == {}


def test_pause_frames_are_those_of_priorities_with_both_directions():
    counters = {"rx_prio3_pause": 5, "tx_prio3_pause": 0, "rx_prio4_pause": 7, "rx_prio3_pause_duration": 9}
    assert pause_frames_in({**counters, "tx_prio8_pause": 1}) == {3: PauseFrames(sent=0, received=5)}
