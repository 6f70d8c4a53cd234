"""VLANs of a bridge's ports, if the running kernel's bridges know any."""

from __future__ import annotations

import errno
import os

import pytest

from contract.linux_lab import needs_namespaces
from k8s_rdma.linux.netlink.rtnl import (
    Rtnl,
    add_tagged_vlan,
    add_untagged_vlan,
    bridge_vlans,
    enslaved_to,
    named,
    of_kind,
    remove_vlan,
    vlan_bridge,
)
from k8s_rdma.linux.netlink.socket import NetlinkError
from network_namespaces import create_namespace

pytestmark = needs_namespaces
DEFAULT = 4094


@pytest.fixture
def rtnl():
    namespace = create_namespace()
    with Rtnl(namespace) as rtnl:
        yield rtnl
    os.close(namespace)


@pytest.fixture
def port(rtnl):
    """Of a bridge with VLANs."""
    try:
        rtnl.create("bridge", named("b"), vlan_bridge(DEFAULT))
    except NetlinkError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        pytest.skip("needs a kernel with CONFIG_BRIDGE_VLAN_FILTERING")
    rtnl.create("port", named("p"), enslaved_to(rtnl.link("b").index), of_kind("veth"))
    return rtnl.link("p").index


def vlans_of(rtnl, port):
    return bridge_vlans(rtnl, "VLANs")[port]


def test_new_port_is_in_the_default_vlan(rtnl, port):
    assert vlans_of(rtnl, port) == {DEFAULT}


def test_port_is_in_added_vlans_and_not_in_removed_ones(rtnl, port):
    remove_vlan(rtnl, port, DEFAULT, "remove")
    remove_vlan(rtnl, port, DEFAULT, "remove again")
    add_untagged_vlan(rtnl, port, 100, "add")
    add_tagged_vlan(rtnl, port, 200, "add")
    add_tagged_vlan(rtnl, port, 200, "add again")
    assert vlans_of(rtnl, port) == {100, 200}


def test_impossible_vlan_is_an_error_with_the_requested_value(rtnl, port):
    with pytest.raises(NetlinkError, match="VLAN 4095 on p"):
        add_tagged_vlan(rtnl, port, 4095, "VLAN 4095 on p")


def test_kernel_without_bridges_that_know_vlans_says_so_or_makes_one(rtnl):
    try:
        rtnl.create("bridge", named("b"), vlan_bridge(DEFAULT))
    except NetlinkError as error:
        assert error.errno == errno.EOPNOTSUPP  # noqa: PT017 - the other outcome is as good
        assert rtnl.link("b") is None
    else:
        assert rtnl.link("b").kind == "bridge"
