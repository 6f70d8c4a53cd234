"""VFs at home that the host itself uses, by an address or by links made on them."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest

from contract.hardware_lab import needs_hardware
from contract.lab import state_of
from contract.linux_lab import DEADLINE_S, run
from k8s_rdma.core.allocation import Scope, candidates
from k8s_rdma.core.ledger import Ledger
from k8s_rdma.core.step import VfRef

pytestmark = needs_hardware


@pytest.fixture
def vf(lab):
    return VfRef(lab.pcis[0], 1)


@contextmanager
def addressed(netdev, text):
    run("ip", "address", "add", text, "dev", netdev)
    try:
        yield
    finally:
        run("ip", "address", "del", text, "dev", netdev)


@contextmanager
def vlan_above(netdev):
    run("ip", "link", "add", "link", netdev, "name", "storage", "type", "vlan", "id", "7")
    try:
        yield "storage"
    finally:
        run("ip", "link", "del", "storage")


@pytest.mark.parametrize("text", ["192.0.2.7/24", "2001:db8::7/64"])
def test_vf_with_an_address_is_the_hosts_until_it_has_none_and_watchers_are_notified(lab, vf, text):
    before, told = lab.kernel.observe(), threading.Event()
    netdev = state_of(lab, vf).netdev
    end = lab.kernel.watch(told.set)
    with addressed(netdev, text):
        assert told.wait(DEADLINE_S)
        hardware = lab.kernel.observe()
        assert f"IP address on its netdev {netdev}" in state_of(lab, vf).unusable
        [candidate] = candidates(hardware, Ledger(), Scope())
        assert (candidate.ref, candidate.exemption) == (vf, candidate.foreign)
        told.clear()
    assert told.wait(DEADLINE_S)
    end()
    assert lab.kernel.observe() == before


def test_vf_below_another_link_is_the_hosts_with_or_without_an_address(lab, vf):
    before = lab.kernel.observe()
    with vlan_above(state_of(lab, vf).netdev) as vlan:
        assert "has a VLAN" in state_of(lab, vf).unusable
        with addressed(vlan, "192.0.2.7/24"):
            assert "on a link above" in state_of(lab, vf).unusable
    assert lab.kernel.observe() == before
