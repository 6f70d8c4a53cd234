"""`k8s-rdma gather` on the machine that the tests run on, whatever that is."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from fakes.recorded_machine import RecordedMachine
from k8s_rdma.wire.machine import decode_machine
from warm_program import run

if TYPE_CHECKING:
    from pathlib import Path


def gather(*arguments: str, directory: Path | None = None) -> subprocess.CompletedProcess[str]:
    return run(["gather", *arguments], directory=directory)


def test_gather_prints_a_machine_with_advice() -> None:
    done = gather()
    assert done.returncode == 0, done.stderr
    machine = RecordedMachine(decode_machine(done.stdout))
    assert sorted(link.name for link in machine.queries.links() if link.kind != "veth") == sorted(
        name for _, name in socket.if_nameindex() if not name.startswith("veth")
    )
    [advice] = [line for line in done.stderr.splitlines() if "could not be looked at" not in line]
    assert "attach it to your report" in advice


def test_json_is_read_as_the_yaml_is() -> None:
    as_json = gather("-o", "json")
    assert as_json.returncode == 0, as_json.stderr
    document = json.loads(as_json.stdout)
    machine = decode_machine(as_json.stdout)
    assert document["links"][0]["name"] == machine.links[0].name
    assert machine.sysfs.keys() == decode_machine(gather("-o", "yaml").stdout).sysfs.keys()


def test_names_are_those_of_netdevs_with_a_device() -> None:
    ran, machine = gather("-o", "name"), decode_machine(gather().stdout)
    assert ran.stdout.split() == [f"link/{link.name}" for link in machine.links if link.device]
    assert "attach it" not in ran.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--report", "r.tar.gz", "-o", "json"), "--report and --output do not go together"),
        (("--report", "r.tar.gz", "--file", "m.yaml"), "--report and --file do not go together"),
        (("--log", "agent.log"), "--log is of an archive: name its file by --report"),
        (("--host-root", "/host"), "--host-root is of an archive: name its file by --report"),
    ],
    ids=["form", "file", "log", "host-root"],
)
def test_option_that_would_have_no_effect_is_refused(
    options: tuple[str, ...], message: str, tmp_path
) -> None:
    ran = gather(*options, directory=tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert message in ran.stderr
    assert list(tmp_path.iterdir()) == []


def test_gather_writes_a_file_without_host_name_and_addresses(tmp_path) -> None:
    output = tmp_path / "machine.yaml"
    done = gather("--file", str(output))
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
    done = gather("--file", str(tmp_path / "absent" / "machine.yaml"))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("absent/machine.yaml: No such file or directory")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to drop what root may do")
def test_gather_works_without_capabilities() -> None:
    without = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
    command = [*without, sys.executable, "-m", "k8s_rdma", "gather"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    decode_machine(done.stdout)
