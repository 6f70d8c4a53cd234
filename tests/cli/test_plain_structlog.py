"""What processes that run for long load: no rich, and one kernel alone."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

KERNELS = {"linux": "k8s_rdma.linux.kernel", "virtual": "k8s_rdma.linux.virtual.kernel"}


def loaded_by(*arguments: str, config: dict[str, object], directory: Path) -> set[str]:
    """The modules of a process that ends for want of its ledger, its certificate or its credentials."""
    file = directory / "config.yaml"
    file.write_text(json.dumps(config))
    command = [sys.executable, "-X", "importtime", "-m", "k8s_rdma", *arguments, "--config", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2, ended.stderr[-1000:]
    return {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines() if "|" in line}


@pytest.mark.parametrize("process", ["agent", "server", "extender"])
def test_process_that_runs_for_long_has_structlog_without_rich(process: str, tmp_path: Path) -> None:
    configs: dict[str, dict[str, object]] = {
        "agent": {"node": "w1", "stateDir": "/proc/nowhere", "runDir": str(tmp_path)},
        "server": {"node": "w1", "tls": {"certFile": "/nowhere", "keyFile": "/nowhere"}},
        "extender": {"kubeconfig": "/nowhere"},
    }
    loaded = loaded_by(process, config=configs[process], directory=tmp_path)
    assert {"structlog", f"k8s_rdma.{process}.main"} <= loaded
    assert not [name for name in loaded if name.startswith("rich.")]


def test_agent_does_not_load_a_kernel_before_it_is_known_which(tmp_path: Path) -> None:
    config: dict[str, object] = {"node": "w1", "stateDir": "/proc/nowhere", "runDir": str(tmp_path)}
    assert not loaded_by("agent", config=config, directory=tmp_path) & set(KERNELS.values())


def test_rich_is_there_for_whoever_asks_for_it_later() -> None:
    program = (
        "import sys; from k8s_rdma.cli.process_commands import load_structlog; load_structlog(); "
        "assert 'rich' not in sys.modules; import rich.table; print(rich.table.__name__)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "rich.table\n"
