"""`k8s-rdma gather` on SR-IOV hardware: its file shows the same as the machine."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from contract.hardware_lab import PFS, needs_hardware
from fakes.recorded_machine import RecordedMachine, read_machine
from hardware.netlink_lab import soft_rdma_device
from k8s_rdma.core.pf_selection import Selection
from k8s_rdma.linux.discovery.netlink_queries import NetlinkQueries
from k8s_rdma.linux.discovery.observation import Observer
from k8s_rdma.linux.sysfs import Sysfs

if TYPE_CHECKING:
    from k8s_rdma.wire.machine import Machine

pytestmark = needs_hardware


@pytest.fixture
def gathered(tmp_path) -> Machine:
    """By the command, with a soft RDMA device on the first PF."""
    file = tmp_path / "machine.yaml"
    with soft_rdma_device(PFS[0]):
        subprocess.run([sys.executable, "-m", "k8s_rdma", "gather", "--file", str(file)], check=True)
        yield read_machine(file)


def addresses_aside(hardware):
    pfs = (replace(pf, vfs=tuple(replace(vf, mac="", admin_mac="") for vf in pf.vfs)) for pf in hardware.pfs)
    return replace(hardware, pfs=tuple(pfs))


@pytest.mark.parametrize("selection", [Selection(), Selection(require_rdma=False)], ids=["rdma", "any"])
def test_gathered_machine_is_seen_as_the_real_one(gathered, selection) -> None:
    with NetlinkQueries() as queries:
        real = Observer(Sysfs(), queries, selection).observe()
    machine = RecordedMachine(gathered)
    recorded = Observer(machine.sysfs, machine.queries, selection).observe()
    assert PFS[0] in [pf.name for pf in recorded.pfs]
    assert addresses_aside(recorded) == addresses_aside(real)


def test_gathered_machine_holds_no_address_of_the_real_one(gathered) -> None:
    with NetlinkQueries() as queries:
        real = {link.mac for link in queries.links()} - {"00:00:00:00:00:00"}
    assert real
    assert not real & {link.mac for link in gathered.links}
