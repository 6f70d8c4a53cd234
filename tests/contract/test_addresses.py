"""Addresses that two have, and telling of those that are new: the same on every kernel."""

from __future__ import annotations

import time

import pytest

from contract.lab import give
from k8s_rdma.core.step import ConfigureInterface, VfRef
from k8s_rdma.errors import KernelError

DEADLINE_S = 120


def configured(lab, index, *addresses):
    """A namespace with a VF of the first PF that has these addresses."""
    netns = lab.namespace()
    lab.kernel.apply(give(lab, VfRef(lab.pcis[0], index), netns))
    lab.kernel.apply(ConfigureInterface(netns=netns, ifname="rdma0", addresses=addresses))
    return netns


def settled(lab, netns):
    """The interface once no station is asked any more about its addresses."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        found = lab.kernel.interfaces(netns)["rdma0"]
        if found.carrier and not (found.unusable or found.unverified):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


def test_address_is_nobodys_else_when_each_has_its_own(lab):
    first, second = configured(lab, 0, "fd00:56::1/64"), configured(lab, 1, "fd00:56::2/64")
    assert settled(lab, first).duplicates == settled(lab, second).duplicates == frozenset()


def test_address_is_a_duplicate_when_another_vf_of_the_pf_has_it(lab):
    first = configured(lab, 0, "fd00:56::1/64", "10.56.0.1/24")
    assert settled(lab, first).duplicates == frozenset()
    second = configured(lab, 1, "fd00:56::1/64", "fd00:56::2/64", "10.56.0.2/24")
    assert settled(lab, second).duplicates == {"fd00:56::1/64"}
    assert settled(lab, first).duplicates == frozenset()


def test_announcing_holds_when_addresses_or_interface_are_not_there(lab):
    netns = configured(lab, 0, "fd00:56::1/64", "10.56.0.1/24")
    lab.kernel.announce(netns, {"rdma0": ("fd00:56::1/64", "10.56.0.1/24"), "absent": ("10.0.0.1/8",)})
    lab.kernel.announce(netns, {})


def test_announcing_fails_when_the_namespace_is_gone(lab):
    netns = configured(lab, 0, "10.56.0.1/24")
    lab.destroy(netns)
    with pytest.raises(KernelError, match=netns.path):
        lab.kernel.announce(netns, {"rdma0": ("10.56.0.1/24",)})
