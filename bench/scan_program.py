"""Looks at a machine of so many PFs and VFs: `scan_program.py DIRECTORY PFS VFS` prints the costs (JSON).

Sysfs is a copy of files in that directory; netlink's answers are ready: the kernel's own time is not in it.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

from k8s_rdma.core.ledger import Ledger
from k8s_rdma.core.pf_selection import Selection
from k8s_rdma.core.types import NodeName, PciAddress
from k8s_rdma.linux.discovery.observation import Observer
from k8s_rdma.linux.netlink.queries import VfInfo
from k8s_rdma.linux.sysfs import Sysfs
from k8s_rdma.server.agent_link import report_answers
from k8s_rdma.server.main import cached_scan
from k8s_rdma.wire.report_builder import NodeReports

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from linux.small_machine import SmallMachine

ROUNDS = 9
INDEXES = 1000


def machine_of(directory: Path, pfs: int, vfs: int) -> SmallMachine:
    """Return cards on buses of their own; VFs have eight functions a device, as on a bus with ARI."""
    machine = SmallMachine(directory)
    for number in range(pfs):
        bus, index = 0x40 + number, (number + 1) * INDEXES
        pci = PciAddress(f"0000:{bus:02x}:00.0")
        machine.add_pf(pci, f"eth{index}", index, rdma=f"mlx5_{number}")
        machine.write(f"{machine.device(pci)}/sriov_numvfs", vfs)
        for vf in range(vfs):
            function = f"0000:{bus:02x}:{(vf + 1) // 8:02x}.{(vf + 1) % 8}"
            machine.add_function(function, "mlx5_core", vendor="0x15b3", device="0x1018")
            machine.at(f"{machine.device(pci)}/virtfn{vf}").symlink_to(f"../{function}")
            machine.add_netdev(PciAddress(function), f"eth{index + vf + 1}", index + vf + 1)
            machine.answers.vfs[index].append(VfInfo(index=vf, mac=f"0a:00:00:00:{number:02x}:{vf:02x}"))
    return machine


def resident_mib() -> float:
    """Return the VmRSS of this process (proc_pid_status(5))."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def main(directory: str, pfs: str, vfs: str) -> None:
    """Measure, and print the results."""
    machine = machine_of(Path(directory), int(pfs), int(vfs))
    before = resident_mib()
    took = {"first_ms": [], "one_pf_ms": [], "unchanged_ms": []}
    for _ in range(ROUNDS):
        observer = Observer(Sysfs(machine.root), machine.answers, Selection())
        with cached_scan(machine.root, machine.answers, Selection()) as cached:
            steps = {
                "first_ms": observer.observe,
                "one_pf_ms": lambda observer=observer: observer.observe({INDEXES}),
            }
            for name, step in steps.items():
                began = time.thread_time()
                seen = step()
                took[name].append((time.thread_time() - began) * 1000)
            assert sum(len(pf.vfs) for pf in seen.pfs) == int(pfs) * int(vfs)
            assert not seen.unreadable
            cached.scan()
            began = time.thread_time()
            cached.scan()
            took["unchanged_ms"].append((time.thread_time() - began) * 1000)
    answers = report_answers(NodeReports(NodeName("w1"), epoch="e").build(seen, Ledger()))
    medians = {name: statistics.median(values) for name, values in took.items()}
    print(json.dumps({**medians, "mib": resident_mib() - before, "bytes": len(answers.getpfs.body)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
