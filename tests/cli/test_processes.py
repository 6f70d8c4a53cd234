"""Plain command lines of processes, and the modules that processes which run for long have loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from inspect import signature
from typing import TYPE_CHECKING, Any, cast

import pytest
import typer

from k8s_rdma.cli.main import app
from k8s_rdma.cli.processes import PROCESSES, plain_start

if TYPE_CHECKING:
    from functools import partial
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


def test_rich_can_be_imported_later() -> None:
    program = (
        "import sys; from k8s_rdma.cli.processes import load_without_extras; load_without_extras(); "
        "assert 'rich' not in sys.modules; import rich.table; print(rich.table.__name__)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "rich.table\n"


@pytest.mark.parametrize("process", sorted(PROCESSES))
def test_parameters_of_a_start_are_options_of_the_command_line(process: str) -> None:
    commands: dict[str, Any] = cast("Any", typer.main.get_command(app)).commands
    options = {option.name: option for option in commands[process].params}
    for name, parameter in signature(PROCESSES[process]).parameters.items():
        option = options[name]
        assert f"--{name.replace('_', '-')}" in option.opts
        assert (option.nargs, option.multiple, option.is_flag, option.envvar) == (1, False, False, None)
        assert option.type.convert("a.yaml", None, None) == "a.yaml"
        assert option.default == parameter.default


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("agent", {}),
        ("agent --config a.yaml --node w1", {"config": "a.yaml", "node": "w1"}),
        ("agent --node=w1 --kernel=virtual", {"node": "w1", "kernel": "virtual"}),
        ("server --config=a=b.yaml", {"config": "a=b.yaml"}),
        ("server --node=", {"node": ""}),
        ("device-plugin --config a --node w1 --pod-uid u", {"config": "a", "node": "w1", "pod_uid": "u"}),
        ("extender --config /etc/k8s-rdma/extender.yaml", {"config": "/etc/k8s-rdma/extender.yaml"}),
    ],
)
def test_plain_line_starts_its_process(line: str, values: dict[str, str]) -> None:
    arguments = line.split()
    start = cast("partial[None] | None", plain_start(arguments))
    assert start is not None
    assert start.func is PROCESSES[arguments[0]]
    assert start.keywords == values


@pytest.mark.parametrize(
    "line",
    [
        "",
        "top",
        "init --config a.yaml",
        "--version",
        "agent --help",
        "agent -h",
        "agent adopt",
        "agent a.yaml",
        "agent --config",
        "agent --config a --config b",
        "agent --config --node",
        "agent --config=-",
        "agent --conf a.yaml",
        "agent --check-config",
        "agent --rebuild-ledger --config a.yaml",
        "agent --pod-uid u",
        "server --config a.yaml --",
        "device-plugin -config a.yaml",
        "device-plugin --use-cdi",
        "device-plugin --config-file a.json",
        "extender --print-schema",
    ],
)
def test_every_other_line_is_left_to_the_command_line(line: str) -> None:
    assert plain_start(line.split()) is None
