"""Debian packages of set-up, `scripts/apt.sh`, with a stand-in of apt-get that installs nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
APT_GET = """#!/bin/bash
mkdir {folder}/running || echo overlap >>{folder}/calls
echo "$*" >>{folder}/calls
sleep 0.1
rmdir {folder}/running
"""
"""It plans to install nothing, which is the answer about packages that are installed."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with the scripts alone, and apt-get in `bin`."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "apt-get").write_text(APT_GET.format(folder=tmp_path))
    (tmp_path / "bin" / "apt-get").chmod(0o755)
    return tmp_path


def unpacking(checkout: Path, *packages: str) -> subprocess.Popen[str]:
    """Start `apt_unpack` as a script of set-up calls it."""
    script = f"source scripts/say.sh; source scripts/apt.sh; apt_unpack {' '.join(packages)}"
    return subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=checkout,
        env=os.environ | {"PATH": f"{checkout / 'bin'}:{os.environ['PATH']}"},
        stderr=subprocess.PIPE,
        text=True,
    )


def calls(checkout: Path) -> list[str]:
    """The arguments of apt-get, call by call; `overlap` for one beside another."""
    return (checkout / "calls").read_text().splitlines()


def test_packages_that_are_installed_are_not_downloaded(checkout: Path) -> None:
    """As python3-pip-whl on a machine without python3-venv: there was nothing to download, which failed."""
    with unpacking(checkout, "python3-pip-whl") as script:
        _, errors = script.communicate()
    assert (script.returncode, errors) == (0, "")
    assert calls(checkout) == ["--simulate --no-install-recommends install python3-pip-whl"]


def test_scripts_that_run_beside_each_other_take_turns(checkout: Path) -> None:
    (checkout / ".cache").mkdir()
    scripts = [unpacking(checkout, package) for package in ("iperf3", "python3-venv")]
    for script in scripts:
        with script:
            _, errors = script.communicate()
        assert (script.returncode, errors) == (0, "")
    assert len(calls(checkout)) == 2
    assert "overlap" not in calls(checkout)
