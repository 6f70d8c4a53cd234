"""The server as a process, and its own look at the hardware: when it asks again, and its report."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.core.ledger import Ledger
from k8s_rdma.core.pf_selection import Selection
from k8s_rdma.core.types import NodeName
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.discovery.netlink_queries import traces_of_switchdev
from k8s_rdma.linux.sysfs import Sysfs
from k8s_rdma.server.main import HardwareScan, cached_scan
from k8s_rdma.wire.report_builder import NodeReports
from linux.small_machine import PF, PF1, SmallMachine, vf_pci

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from k8s_rdma.core.kernel import Hardware
    from k8s_rdma.linux.changes import CachedScan


@pytest.fixture
def machine(tmp_path: Path) -> SmallMachine:
    made = SmallMachine(tmp_path)
    made.add_pf(vfs=3)
    return made


def lookout(machine: SmallMachine) -> CachedScan[Hardware]:
    return cached_scan(machine.root, machine.answers, Selection())


def until_another(seen: Hardware, lookout: CachedScan[Hardware]) -> Hardware:
    """Return the hardware as seen once a sign of a change has come."""
    while (now := lookout.scan()) == seen:
        time.sleep(0.01)
    return now


def test_no_scan_is_made_when_no_file_has_changed(machine: SmallMachine) -> None:
    with lookout(machine) as look:
        seen = look.scan()
        asked = list(machine.answers.asked)
        machine.change_vf(0, vlan=7)  # of which no sign comes
        assert look.scan() is seen
        assert machine.answers.asked == asked


def test_failed_read_is_tried_again(machine: SmallMachine) -> None:
    with lookout(machine) as look:
        vfs = machine.answers.vfs.pop(10)
        seen = look.scan()
        assert (seen.pfs, len(seen.unreadable)) == ((), 1)
        machine.answers.vfs[10] = vfs
        now = look.scan()
        assert (len(now.pfs), now.unreadable) == (1, ())


def test_file_without_events_is_a_sign_of_a_change(machine: SmallMachine) -> None:
    def settings(vf: int, rate: int) -> None:
        lines = (
            *(f"VF : {vf}", f"MAC : 0b:00:00:00:00:0{vf}", "VLAN : 0", "QoS : 0", "VLAN Proto : N/A"),
            *("SpoofCheck : OFF", "Trust : OFF", "LinkState : Follow", f"MinTxRate : {rate}"),
            *("MaxTxRate : 0", "VGT+ : OFF", "RateGroup : 0"),
        )
        machine.write(f"{machine.device(PF)}/sriov/{vf}/config", "\n".join(lines))

    for vf in range(3):
        settings(vf, 0)
    with lookout(machine) as look:
        seen = look.scan()
        assert seen == look.scan()
        settings(1, 4000)
        [pf] = until_another(seen, look).pfs
        assert [vf.min_tx_rate_mbps for vf in pf.vfs] == [0, 4000, 0]
        assert machine.answers.asked == []  # never by netlink if there are files


def test_everything_is_looked_at_again_when_a_look_failed(machine: SmallMachine) -> None:
    machine.add_pf(PF1, "eth1", 20, rdma="mlx5_1")
    with lookout(machine) as look:
        machine.answers.vfs.pop(20)
        machine.write(f"{machine.device(PF1)}/sriov_numvfs", 1)
        assert look.scan().unreadable
        machine.change_vf(0, vlan=7)
        machine.at("bus").rename(machine.at("elsewhere"))
        with pytest.raises(KernelError):
            look.scan()
        machine.at("elsewhere").rename(machine.at("bus"))
        assert look.scan().pfs[0].vfs[0].vlan == 7


def test_everything_in_use_is_foreign_when_there_is_no_ledger(machine: SmallMachine) -> None:
    machine.change_vf(0, min_tx_rate_mbps=300)
    machine.remove_netdev(vf_pci(1), "eth12")
    with lookout(machine) as look:
        report = NodeReports(NodeName("w1"), epoch="e").build(look.scan(), Ledger())
    [pf] = report.pfs
    assert [(vf.vf, vf.min_tx_rate) for vf in pf.foreign] == [(0, 300), (1, 0)]
    assert report.allocations == ()


def test_generation_is_another_when_anything_differs_and_only_then(machine: SmallMachine) -> None:
    reports = NodeReports(NodeName("w1"), epoch="e")
    with lookout(machine) as look:
        first = reports.build(look.scan(), Ledger())
        assert reports.build(look.scan(), Ledger()) is first
    machine.change_vf(0, vlan=7)
    with lookout(machine) as look:
        assert reports.build(look.scan(), Ledger()).generation == "e.2"


class CountingReads(dict):
    """Receipts that count how often all of them are read."""

    reads = 0

    def values(self):
        self.reads += 1
        return super().values()


def test_report_is_made_once_for_all_readers_of_a_state(machine: SmallMachine) -> None:
    reports, receipts = NodeReports(NodeName("w1"), epoch="e"), CountingReads()
    with lookout(machine) as look:
        first = reports.build(look.scan(), Ledger(receipts))
        reads = receipts.reads
        assert reports.build(look.scan(), Ledger(receipts)) is first
        assert receipts.reads == reads > 0
        assert reports.build(look.scan(), Ledger(receipts), problems=("late",)).generation == "e.2"


def test_scan_fails_when_there_is_no_sysfs(tmp_path: Path) -> None:
    scan = HardwareScan(NodeReports(NodeName("w1"), epoch="e"), Selection(), sysfs=tmp_path / "none")
    with scan, pytest.raises(KernelError):
        scan()


def test_scan_of_this_machine_needs_no_privilege_and_is_the_same_twice() -> None:
    with HardwareScan(NodeReports(NodeName("w1"), epoch="e"), Selection()) as scan:
        first = scan()
        assert first.node == "w1"
        assert scan().generation == first.generation


def test_switchdev_mode_is_seen_by_its_representors(machine: SmallMachine) -> None:
    sysfs = Sysfs(machine.root)
    assert traces_of_switchdev(sysfs) == {}
    machine.write(f"{machine.device(PF)}/net/eth0/phys_port_name", "p0")
    assert traces_of_switchdev(sysfs) == {}
    machine.add_netdev(PF, "eth0_0", 90)
    machine.write(f"{machine.device(PF)}/net/eth0_0/phys_port_name", "pf0vf0")
    assert traces_of_switchdev(sysfs) == {PF: "switchdev"}


PROGRAM = """
from k8s_rdma.config.server import ServerConfig
from k8s_rdma.server.main import run

run(ServerConfig(listen="127.0.0.1", run_dir="."))
"""


def test_process_ends_with_an_error_when_it_has_a_fault_while_clients_are_connected(tmp_path: Path) -> None:
    faulty = PROGRAM.replace('run_dir=".")', 'run_dir="."), scan=lambda: 1 // int(input())')
    assert faulty != PROGRAM
    with (
        started(tmp_path, faulty) as (process, port),
        socket.create_connection(("127.0.0.1", port)) as client,
    ):
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: w1\r\n\r\n")
        assert client.recv(64)
        _, stderr = process.communicate("0\n", timeout=20)
        assert process.returncode == 1
        assert "ZeroDivisionError" in stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_process_serves_at_its_address_and_ends_with_status_0_when_signalled(
    tmp_path: Path, number: signal.Signals
) -> None:
    with started(tmp_path, PROGRAM) as (process, port):
        url = f"http://127.0.0.1:{port}/healthz"
        with urllib.request.urlopen(url, timeout=20) as answer:
            assert answer.status == 200
        process.send_signal(number)
        _, stderr = process.communicate(timeout=20)
        assert process.returncode == 0
        assert json.loads(stderr.splitlines()[-1])["event"] == "server_stopped"


@contextmanager
def started(tmp_path: Path, program: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The process, once it listens, and its port."""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PORT": "0"},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            ready = json.loads(process.stderr.readline())
            assert ready["event"] == "server_ready"
            yield process, ready["port"]
        finally:
            process.kill()
