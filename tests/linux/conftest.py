"""Namespaces and machines of the test's own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.linux.netlink.rtnl import Rtnl, named, of_kind
from k8s_rdma.linux.netns import entered
from k8s_rdma.linux.vf.attributes import NetdevAttributes
from linux.small_machine import SmallMachine
from network_namespaces import create_namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from k8s_rdma.core.netdev_attributes import Attributes
    from k8s_rdma.linux.netlink.rtnl import Link


@pytest.fixture
def namespace() -> Iterator[int]:
    """A new network namespace, which this thread is in."""
    if os.geteuid() != 0:
        pytest.skip("needs root, or a user namespace that makes one")
    descriptor = create_namespace()
    try:
        with entered(descriptor):
            yield descriptor
    finally:
        os.close(descriptor)


@pytest.fixture
def rtnl(namespace: int) -> Iterator[Rtnl]:
    with Rtnl() as opened:
        yield opened


@pytest.fixture
def machine(tmp_path: Path) -> SmallMachine:
    return SmallMachine(tmp_path)


@pytest.fixture
def netdev(rtnl: Rtnl) -> Link:
    rtnl.create("create", named("vf4"), of_kind("veth"))
    return rtnl.link("vf4")


@pytest.fixture
def read_attributes(rtnl: Rtnl, netdev: Link) -> Iterator[Callable[[], Attributes]]:
    with NetdevAttributes(rtnl) as attributes:
        yield lambda: attributes.read(netdev.index, netdev.name)
