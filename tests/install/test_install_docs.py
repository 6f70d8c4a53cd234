"""The documents describe the options and log lines that exist."""

from __future__ import annotations

import re
from inspect import getsource
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from k8s_rdma.cli.main import app
from k8s_rdma.install import installation

DOCS = Path(__file__).parents[2] / "docs"
SECTIONS = {
    "install-cni": ("cni-install.md", "Installing"),
    "uninstall": ("agent-updates.md", "Uninstalling a node"),
}


def section(command: str) -> str:
    file, title = SECTIONS[command]
    return (DOCS / file).read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]


def parameters(command: str) -> list[Any]:
    program: Any = get_command(app)
    return program.commands[command].params


@pytest.mark.parametrize("command", SECTIONS)
def test_options_are_all_in_the_table(command: str) -> None:
    [options] = re.findall(r"^\| option \|.*\n\|.*\n((?:\|.*\n)+)", section(command), re.MULTILINE)
    told = {name for row in options.splitlines() for name in re.findall(r"`(--[a-z-]+)`", row.split("|")[1])}
    known = parameters(command)
    assert told == {name for each in known for name in each.opts if name.startswith("--")}


@pytest.mark.parametrize("command", SECTIONS)
def test_defaults_are_those_of_the_command(command: str) -> None:
    text = section(command)
    for each in parameters(command):
        default = each.default
        if default not in (None, False, True):
            shown = f"{default:g}" if isinstance(default, float | int) else f"`{default}`"
            assert shown in text, each.name


def test_log_lines_are_all_in_the_table() -> None:
    [rows] = re.findall(r"^\| event \|.*\n\|.*\n((?:\|.*\n)+)", section("install-cni"), re.MULTILINE)
    told = {name for row in rows.splitlines() for name in re.findall(r"`(cni_[a-z_]+)`", row.split("|")[1])}
    assert told == set(re.findall(r'"(cni_[a-z_]+)"', getsource(installation)))
