"""Changes that real hardware reports, and those that it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.hardware_lab import PFS, needs_hardware
from contract.linux_lab import DEADLINE_S, run
from hardware.netlink_lab import pci, pf_link, soft_rdma_device, vf_netdev
from k8s_rdma.core.step import VfRate
from k8s_rdma.linux.changes import UEVENTS, Changes, Dirty
from k8s_rdma.linux.netlink.rtnl import Rtnl
from k8s_rdma.linux.netlink.sriov import set_rates
from linux.watcher import Watcher

pytestmark = needs_hardware


@pytest.fixture
def rtnl():
    with Rtnl() as opened:
        yield opened


def test_pf_is_dirty_when_a_rate_of_its_vfs_was_set(rtnl):
    """And no other: 240 VFs need not be asked for because 2 got a rate."""
    pf, watcher = pf_link(rtnl).index, Watcher(DEADLINE_S)
    with Changes(watcher) as changes:
        try:
            run("ip", "link", "set", PFS[0], "vf", "0", "max_tx_rate", "100")
            watcher.wait()
            assert changes.dirty() == Dirty(frozenset({pf}))
            set_rates(rtnl, pf, "rate", [VfRate(0, 0, 200)])
            assert changes.dirty() == Dirty(frozenset({pf}))
        finally:
            set_rates(rtnl, pf, "tidy", [VfRate(0)])


def test_pf_is_not_dirty_when_a_vf_changes(rtnl):
    vf = pf_link(rtnl, vf_netdev(PFS[0], 0))
    with Changes(lambda: None) as changes:
        rtnl.change(vf.index, "up", up=True)
        rtnl.change(vf.index, "down", up=False)
        assert changes.dirty() == Dirty(frozenset({vf.index}))


def test_everything_is_dirty_when_a_driver_leaves_a_vf_and_comes_back():
    last = int(Path(f"/sys/class/net/{PFS[0]}/device/sriov_numvfs").read_text()) - 1
    name = vf_netdev(PFS[0], last)
    address, watcher = pci(f"{PFS[0]}/device/virtfn{last}"), Watcher(DEADLINE_S)
    driver = Path(f"/sys/bus/pci/devices/{address}/driver").resolve()
    with Changes(watcher, (UEVENTS,)) as changes:
        for action in ("unbind", "bind"):
            (driver / action).write_text(address)
            watcher.wait()
            assert changes.dirty().everything
    renamed = vf_netdev(PFS[0], last)
    if renamed != name:
        run("ip", "link", "set", renamed, "name", name)


def test_watcher_is_notified_of_rdma_devices_without_dirty_links():
    watcher = Watcher(DEADLINE_S)
    with Changes(watcher, (UEVENTS,)) as changes:
        with soft_rdma_device(vf_netdev(PFS[1], 1)):
            watcher.wait()
        watcher.wait()
        assert changes.dirty() == Dirty()


def test_state_of_an_rdma_port_is_seen_in_its_file(rtnl):
    """On Linux 6.1 no event reports it."""
    name, watcher = vf_netdev(PFS[1], 2), Watcher(DEADLINE_S)
    link = pf_link(rtnl, name)
    with soft_rdma_device(name) as device, Changes(watcher, ()) as changes:
        state = Path(f"/sys/class/infiniband/{device}/ports/1/state")
        changes.watch_files([state])
        before = state.read_text()
        rtnl.change(link.index, "up", up=not link.is_up)
        try:
            watcher.wait()
            assert changes.dirty().everything
            assert state.read_text() != before
        finally:
            rtnl.change(link.index, "as before", up=link.is_up)
