"""`k8s-rdma init` on a pretended machine of 2 PFs: makes VFs, prints its peak memory and processor time.

    python init_program.py DIRECTORY VFS

The measurement includes the machine's own files and state.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path

import k8s_rdma.cli.main  # noqa: F401 - as the command has it
from fakes.sriov_links import MachineLinks
from fakes.sriov_machine import Card, MachineClock, MachineSysfs, SriovMachine
from k8s_rdma import process
from k8s_rdma.cli.console import Page
from k8s_rdma.cli.init import show
from k8s_rdma.config.files import load_config
from k8s_rdma.config.init import InitConfig
from k8s_rdma.core.types import pci_address
from k8s_rdma.init.job import MachineInterfaces
from k8s_rdma.init.main import make_all_ready


def main(directory: Path, vfs: int) -> None:
    """Make the machine, run the command, print the figures."""
    cards = [
        Card(
            name=f"enp4s0f{port}",
            pci=pci_address(f"0{4 + port}:00.0"),
            mac=f"0c:42:a1:00:00:0{port}",
            total_vfs=vfs,
            driver="mlx5_core",
            vf_driver="mlx5_core",
            has_rdma=True,
            vf_netdev_after_s=1.0,
        )
        for port in range(2)
    ]
    pretended = SriovMachine(directory / "sys", cards)
    machine = MachineInterfaces(
        sysfs=MachineSysfs(pretended),
        queries=lambda: MachineLinks(pretended),
        links=lambda: MachineLinks(pretended),
        clock=MachineClock(pretended),
        boot_id="",
    )
    process.configure_logging("init")
    config = load_config(InitConfig, None, {"stateDir": str(directory)})
    started = time.process_time()
    decision_log = make_all_ready(machine, config)
    spent_s = time.process_time() - started
    with redirect_stdout(sys.stderr):
        show(decision_log, Page(markup=False))
    sys.stdout.write(
        json.dumps(
            {"vfs": sum(each.current or 0 for each in decision_log), "peak_mib": peak_mib(), "cpu_s": spent_s}
        )
    )


def peak_mib() -> float:
    """VmHWM (proc_pid_status(5)): of this program alone; `ru_maxrss` knows its parent's size too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
