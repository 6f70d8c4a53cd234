"""The whole command on a node of virtual PFs with its agent, server and a real containerd."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING

import pytest

from doctor_documents import decode_doctor
from e2e.containerd import Containerd
from k8s_rdma import __version__
from k8s_rdma.wire.report import decode_report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from e2e.node import Node
    from k8s_rdma.wire.doctor import DoctorDocument


@pytest.fixture
def node(make_node: Callable[[int], Node]) -> Node:
    node = make_node(2)
    node.start_agent()
    return node


@pytest.fixture
def containerd(node: Node) -> Iterator[Containerd]:
    for program in ("containerd", "runc", "ctr"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program} (Debian packages containerd, runc)")
    directory = node.directory / "containerd"
    with Containerd(directory, plugins=node.cni_path, deadline_s=node.deadline_s, alone=True) as containerd:
        containerd.use(node.runtime(chained=True).conflist)
        yield containerd


def command(node: Node, containerd: Containerd, *arguments: str | Path) -> list[str | Path]:
    """Return a command that sees no process but the node's runtime."""
    config = node.config("agent", node.document())
    return [*containerd.entering, sys.executable, "-m", "k8s_rdma", *arguments, "--config", config]


def examined(node: Node, containerd: Containerd) -> tuple[DoctorDocument, int]:
    doctor = command(node, containerd, "doctor", "node", "--server", "", "--json")
    done = subprocess.run(doctor, capture_output=True, check=False)
    assert not done.stderr, done.stderr.decode()
    return decode_doctor(done.stdout), done.returncode


def gathered(node: Node, containerd: Containerd, *options: str) -> dict[str, bytes]:
    """Return the contents of an archive, by name."""
    archive = node.directory / "report.tar.gz"
    gather = command(node, containerd, "gather", "--report", archive, *options)
    subprocess.run(gather, capture_output=True, check=True)
    with tarfile.open(archive) as opened:
        files = {member.name: opened.extractfile(member) for member in opened.getmembers()}
        return {name.partition("/")[2]: file.read() for name, file in files.items() if file is not None}


def ids(document: DoctorDocument, subject: str) -> set[str]:
    return {each.id for each in document.findings if each.subject == subject}


def test_doctor_finds_a_node_in_order_and_its_faults(node: Node, containerd: Containerd) -> None:
    document, status = examined(node, containerd)
    assert status == 0, [each for each in document.findings if each.severity == "error"]
    subjects = ("cni", "runtime", "processes", "vfs", "ledger")
    assert {each: ids(document, each) for each in subjects} == {each: {f"{each}-ok"} for each in subjects}
    assert ids(document, "hardware") == {"hardware-virtual"}
    [agent] = [each for each in document.findings if each.id == "processes-ok"]
    assert agent.found == f"answers, version {__version__}; 0 sandboxes hold interfaces"
    [runtime] = [each for each in document.findings if each.id == "runtime-ok"]
    assert re.match(r"version \d+\.\d+\.\d+", runtime.found), runtime.found
    assert str(node.directory / "containerd/config.toml") in runtime.source

    log = node.directory / "agent.log"
    with log.open("a") as file:
        file.write('{"event": "x", "token": "hunter2"}\n')
    report = gathered(node, containerd, "--log", str(log))
    assert set(report) == {
        *("version.json", "doctor.json", "machine.yaml", "state.json"),
        *("networks/10-net.conflist", "logs/agent.log", "missing.txt"),
    }
    assert decode_doctor(report["doctor.json"]).of == "node"
    assert decode_report(report["state.json"]).agent_version == __version__
    assert b"k8s-rdma-cni" in report["networks/10-net.conflist"]
    assert b"hunter2" not in report["logs/agent.log"]
    assert report["missing.txt"] == b""

    other = {"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "bridge"}]}
    (node.directory / "containerd/net.d/05-other.conflist").write_text(json.dumps(other))
    node.kill_agent()
    document, status = examined(node, containerd)
    assert status == 1
    assert ids(document, "cni") == {"cni-other-file-first"}
    assert ids(document, "processes") == {"processes-agent-down"}
    assert ids(document, "ledger") == {"ledger-ok"}  # read from the file itself
