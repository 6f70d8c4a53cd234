"""Peak memory of `k8s-rdma init` (budget: 100 MiB for 2 x 120 VFs); for information its processor time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Record

PROGRAM = Path(__file__).with_name("init_program.py")
BUDGET_MIB = 100
VFS = 120
ENVIRONMENT = os.environ | {"PYTHONPATH": str(PROGRAM.parents[1] / "tests")}
"""The program's machine is a fake of the tests."""


def test_init_memory(tmp_path: Path, record: Record) -> None:
    ended = subprocess.run(
        [sys.executable, PROGRAM, tmp_path, str(VFS)],
        capture_output=True,
        text=True,
        check=True,
        env=ENVIRONMENT,
    )
    found = json.loads(ended.stdout)
    assert found["vfs"] == 2 * VFS
    what = f"init of 2 x {VFS} VFs"
    record(
        f"{what}, peak resident memory",
        budget=BUDGET_MIB,
        measured=found["peak_mib"],
        unit="MiB",
        note="on a pretended machine, which is part of it",
    )
    record(
        f"{what}, processor time",
        budget=None,
        measured=found["cpu_s"],
        unit="s",
        note="a pretended machine's part included; the kernel's own work is not in it",
    )
