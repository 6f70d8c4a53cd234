"""Commands whose standard output is full, closed, or a pipe that is read no longer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RECORDED = str(sorted((Path(__file__).parents[1] / "recordings" / "snapshots").glob("*.json"))[-1])
COMMANDS = (
    ("version",),
    ("--version",),
    ("--help",),
    ("version", "--json"),
    ("completion", "bash"),
    ("whatif", "headroom", "--from", RECORDED),
    ("whatif", "headroom", "--from", RECORDED, "--json"),
    ("claim", "--annotation", "[{}]"),
    ("gather",),
)
LINE = "k8s-rdma: standard output cannot be written: {}\n"


def run(redirection: str, command: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    shell = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-m", "k8s_rdma", *command]
    return subprocess.run(shell, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_full_output_is_one_line_and_status_2(command: tuple[str, ...]):
    done = run(">/dev/full", command)
    notes = ("could not be looked at", "attach it to your report")  # of `gather`
    lines = [
        line for line in done.stderr.splitlines(keepends=True) if not any(note in line for note in notes)
    ]
    assert (done.returncode, lines) == (2, [LINE.format("No space left on device")])


@pytest.mark.parametrize("command", COMMANDS[:1] + COMMANDS[5:7], ids=" ".join)
def test_closed_output_is_one_line_and_status_2(command: tuple[str, ...]):
    done = run(">&-", command)
    assert (done.returncode, done.stderr) == (2, LINE.format("Bad file descriptor"))


def test_reader_that_is_gone_is_one_line_and_status_2():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "k8s_rdma", "whatif", "headroom", "--from", RECORDED]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (2, LINE.format("Broken pipe"))


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_can_be_written_is_as_before(unbuffered: str):
    command = [sys.executable, "-m", "k8s_rdma", "whatif", "headroom", "--from", RECORDED, "--json"]
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout[-2:]) == (0, "", "}\n")
