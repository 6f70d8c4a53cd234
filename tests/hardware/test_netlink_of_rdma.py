"""RDMA devices reported and moved, with devices of software (rdma_rxe) on real VFs."""

from __future__ import annotations

import errno
import os

import pytest

from contract.hardware_lab import PFS, needs_hardware
from contract.linux_lab import run
from hardware.netlink_lab import pf_link, soft_rdma_device, vf_netdev
from k8s_rdma.linux.discovery.netlink_queries import NetlinkQueries
from k8s_rdma.linux.netlink.rdma import NetnsMode, RdmaNetlink
from k8s_rdma.linux.netlink.rtnl import Rtnl, in_namespace
from k8s_rdma.linux.netlink.socket import NetlinkError
from k8s_rdma.linux.netns import current_namespace
from network_namespaces import create_namespace

pytestmark = needs_hardware


@pytest.fixture
def vf():
    """The name of a VF's netdev that no other test uses."""
    return vf_netdev(PFS[1], 3)


@pytest.fixture
def device(vf):
    with soft_rdma_device(vf) as name:
        yield name


@pytest.fixture
def rdma():
    with RdmaNetlink() as opened:
        yield opened


@pytest.fixture
def elsewhere():
    namespace = create_namespace()
    yield namespace
    os.close(namespace)


@pytest.fixture
def host():
    namespace = current_namespace()
    yield namespace
    os.close(namespace)


def needs_mode(rdma, mode):
    if rdma.netns_mode() is not mode:
        pytest.skip(f"needs SR-IOV hardware: RDMA devices {mode} (rdma system set netns {mode})")


def test_mode_is_read_as_by_rdma(device, rdma):
    assert run("rdma", "system").split()[1] == rdma.netns_mode()


def test_device_is_listed_with_the_netdev_of_its_port(device, vf):
    with NetlinkQueries() as queries, Rtnl() as rtnl:
        found = next(each for each in queries.rdma_devices() if each.name == device)
        assert [(port.number, port.netdev_index) for port in found.ports] == [(1, pf_link(rtnl, vf).index)]
        assert found.ports[0].state in ("ACTIVE", "DOWN")
        assert f"node_guid {found.node_guid}" in run("rdma", "dev", "show", device)
        assert device in queries.rdma().indexes()


def test_device_goes_to_a_namespace_and_back(device, rdma, elsewhere, host):
    needs_mode(rdma, NetnsMode.EXCLUSIVE)
    here = next(each for each in rdma.devices() if each.name == device)
    rdma.move(here.index, elsewhere, "give")
    assert device not in [each.name for each in rdma.devices()]
    with RdmaNetlink(elsewhere) as there:
        assert [each.name for each in there.devices()] == [device]
        there.move(there.devices()[0].index, host, "take")
        assert there.devices() == ()
    assert device in [each.name for each in rdma.devices()]


def test_device_is_listed_with_its_netdev_if_both_are_in_a_namespace(vf, rdma, elsewhere, host):
    """One of rdma_rxe dies with its netdev's move, so the netdev goes first and the device is made then."""
    needs_mode(rdma, NetnsMode.EXCLUSIVE)
    with Rtnl() as here, Rtnl(elsewhere) as there:
        here.change(pf_link(here, vf).index, "move", in_namespace(elsewhere))
        index = pf_link(there, vf).index
        path = f"/proc/{os.getpid()}/fd/{elsewhere}"
        run("nsenter", f"--net={path}", "rdma", "link", "add", "rxe_there", "type", "rxe", "netdev", vf)
        made = next(each for each in rdma.devices() if each.name == "rxe_there")
        rdma.move(made.index, elsewhere, "give")
        with RdmaNetlink(elsewhere) as rdma_there:
            assert [port.netdev_index for each in rdma_there.devices() for port in each.ports] == [index]
        run("nsenter", f"--net={path}", "rdma", "link", "delete", "rxe_there")
        there.change(index, "move back", in_namespace(host))


def test_move_is_refused_if_all_namespaces_share(device, rdma, elsewhere):
    needs_mode(rdma, NetnsMode.SHARED)
    with pytest.raises(NetlinkError, match=r"^give") as failure:
        rdma.move(rdma.indexes()[device], elsewhere, "give")
    assert failure.value.errno == errno.EOPNOTSUPP


def test_move_of_a_device_that_is_not_here_is_refused(device, rdma, elsewhere):
    with pytest.raises(NetlinkError) as failure:
        rdma.move(1 << 20, elsewhere, "give")
    assert failure.value.errno == errno.EINVAL
