"""Requests are equal if they ask for the same, and a policy groups the PFs."""

from __future__ import annotations

from core.cards import asks, card
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.placement import PlacedInterface, Rejection, fits, place
from k8s_rdma.core.request import InterfaceRequest, PfPolicy, Request, groups
from k8s_rdma.errors import Reason
from packing_oracle import pci


def test_pfs_without_a_numa_node_share_none_with_other_pfs() -> None:
    lone = card((100, 8, None), (100, 8, None), (100, 8, 1))
    assert [len(group) for group in groups(PfPolicy.SAME_NUMA, lone.pfs)] == [1, 1, 1]
    found = place(asks(PfPolicy.SAME_NUMA, 60, 60), lone, {})
    assert isinstance(found, Rejection)
    assert found.reason is Reason.EXCEEDS_CAPACITY
    assert found.message.endswith("(best of 1 NUMA node and 2 PFs without one)")
    together = [PlacedInterface(pf=pci(0)), PlacedInterface(pf=pci(1))]
    assert fits(together, lone, {})
    assert not fits(together, lone, {}, PfPolicy.SAME_NUMA)


def test_request_without_interfaces_has_no_policy() -> None:
    assert Request((), PfPolicy.SAME_PF) == Request()


def test_requests_that_differ_in_the_policy_are_not_equal() -> None:
    found = {asks(policy, 5) for policy in PfPolicy}
    assert len(found) == len(PfPolicy)


def test_interfaces_without_requests_are_equal_however_they_were_made() -> None:
    made, plain = InterfaceRequest(options=InterfaceOptions()), InterfaceRequest()
    assert (made, hash(made), made.options) == (plain, hash(plain), plain.options)
    assert made.options is plain.options
    named = [InterfaceRequest(options=InterfaceOptions(name=name)) for name in "abc"]
    assert len({hash(each) for each in (*named, plain)}) == 4
