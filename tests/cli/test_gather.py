"""`k8s-rdma gather` on the machine that the tests run on, whatever that is."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import subprocess
import sys

import pytest

from fakes.recorded_machine import RecordedMachine
from k8s_rdma.wire.machine import decode_machine


def gather(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "k8s_rdma", "gather", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_gather_prints_a_machine_and_says_what_to_do_with_it() -> None:
    done = gather()
    assert done.returncode == 0, done.stderr
    machine = RecordedMachine(decode_machine(done.stdout))
    assert sorted(link.name for link in machine.queries.links() if link.kind != "veth") == sorted(
        name for _, name in socket.if_nameindex() if not name.startswith("veth")
    )
    [advice] = [line for line in done.stderr.splitlines() if "could not be looked at" not in line]
    assert "attach it to your report" in advice


def test_gather_writes_a_file_without_host_name_and_addresses(tmp_path) -> None:
    output = tmp_path / "machine.yaml"
    done = gather("--output", str(output))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    text = output.read_text()
    assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text)
    assert [found for found in re.findall(r"\b\d+\.\d+\.\d+\.\d+\b", text) if is_address(found)] == []
    decode_machine(text)
    assert str(output) in done.stderr


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def test_gather_that_cannot_write_says_so_in_one_line(tmp_path) -> None:
    done = gather("--output", str(tmp_path / "absent" / "machine.yaml"))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("absent/machine.yaml: No such file or directory")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to drop what root may do")
def test_gather_works_without_capabilities() -> None:
    without = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
    command = [*without, sys.executable, "-m", "k8s_rdma", "gather"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    decode_machine(done.stdout)
