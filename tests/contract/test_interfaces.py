"""ConfigureInterface and ClearInterface, the same on every kernel."""

from __future__ import annotations

import pytest

from contract.lab import give
from k8s_rdma.core.step import ConfigureInterface, Route, VfRef
from k8s_rdma.errors import KernelError

ADDRESSES = ("10.56.0.2/24", "fd00:56::2/64")
ROUTES = (Route("10.57.0.0/16", "10.56.0.1"), Route("10.58.0.0/16"), Route("fd00:57::/32", "fd00:56::1"))


@pytest.fixture
def netns(lab):
    return given(lab, 0, 1)


def given(lab, *indexes):
    netns = lab.namespace()
    for index in indexes:
        lab.kernel.apply(give(lab, VfRef(lab.pcis[0], index), netns, f"rdma{index}"))
    return netns


def configure(netns, addresses=ADDRESSES, routes=ROUTES, ifname="rdma0"):
    return ConfigureInterface(netns=netns, ifname=ifname, addresses=addresses, routes=routes)


def test_interface_is_up_with_addresses_and_routes_when_configured(lab, netns):
    lab.kernel.apply(configure(netns))
    found = lab.seen("rdma0", netns)
    assert found.is_up
    assert set(found.addresses) == set(ADDRESSES)
    assert set(found.routes) == set(ROUTES)


def test_interface_is_up_and_bare_when_configured_without_addresses(lab, netns):
    lab.kernel.apply(configure(netns, (), ()))
    found = lab.seen("rdma0", netns)
    assert (found.is_up, found.addresses, found.routes) == (True, (), ())


def test_configuring_again_has_no_effect(lab, netns):
    lab.kernel.apply(configure(netns))
    before = lab.seen("rdma0", netns)
    lab.kernel.apply(configure(netns))
    assert lab.seen("rdma0", netns) == before


def test_interface_is_as_before_when_configured_and_cleared(lab, netns):
    before = lab.seen("rdma0", netns)
    lab.kernel.apply(configure(netns))
    lab.kernel.apply(configure(netns).inverse)
    assert lab.seen("rdma0", netns) == before
    lab.kernel.apply(configure(netns).inverse)
    assert lab.seen("rdma0", netns) == before


def test_clearing_without_addresses_removes_all(lab, netns):
    lab.kernel.apply(configure(netns))
    lab.kernel.apply(configure(netns, (), ()).inverse)
    assert lab.seen("rdma0", netns).addresses == ()


def test_clearing_holds_when_interface_or_namespace_is_gone(lab, netns):
    lab.kernel.apply(configure(netns, ifname="absent").inverse)
    lab.destroy(netns)
    lab.kernel.apply(configure(netns).inverse)


def test_configuring_fails_when_the_interface_is_missing(lab, netns):
    with pytest.raises(KernelError, match="absent"):
        lab.kernel.apply(configure(netns, ifname="absent"))


def test_configuring_fails_when_the_namespace_is_gone(lab, netns):
    lab.destroy(netns)
    with pytest.raises(KernelError, match=netns.path):
        lab.kernel.apply(configure(netns))


def test_both_interfaces_are_configured_when_they_share_subnet_and_route(lab, netns):
    lab.kernel.apply(configure(netns))
    lab.kernel.apply(configure(netns, ("10.56.0.3/24",), ROUTES[:1], "rdma1"))
    assert set(lab.seen("rdma0", netns).routes) == set(ROUTES)
    assert lab.seen("rdma1", netns).addresses == ("10.56.0.3/24",)
