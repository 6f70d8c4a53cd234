"""Commands with files and servers of a wrong kind: each ends, and says why in a line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kube.asking import document, write
from kube.stored_objects import serving_objects
from kube.test_bounded_http import LONG, answering

if TYPE_CHECKING:
    from pathlib import Path

K8S_RDMA = [sys.executable, "-m", "k8s_rdma"]
MEMORY_KB = 1_500_000
"""Addresses, of which a command takes 200 MB by itself."""


def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command with a limit of memory; a time that no command that ends takes."""
    command = ["sh", "-c", f'ulimit -v {MEMORY_KB} && exec "$@"', "sh", *K8S_RDMA, *arguments]
    return subprocess.run(command, capture_output=True, check=False, timeout=120)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The root of a node with two networks, the first of which the test makes."""
    root = tmp_path / "node"
    (root / "etc/cni/net.d").mkdir(parents=True)
    (root / "opt/cni/bin").mkdir(parents=True)
    for name in ("proc", "sys", "dev"):
        (root / name).symlink_to(f"/{name}")
    good = {"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "bridge"}]}
    (root / "etc/cni/net.d/20-b.conflist").write_text(json.dumps(good))
    config = {"node": "w1", "kernel": "virtual", "runDir": str(tmp_path), "stateDir": str(tmp_path)}
    (tmp_path / "agent.yaml").write_text(json.dumps(config))
    return root


FOREIGN = {
    "pipe": ("10-a.conflist", "no regular file"),
    "link to /dev/zero": ("10-a.conflist", "no regular file"),
    "no UTF-8": ("10-a.conflist", "codec can't decode byte 0xff"),
    "name that is no UTF-8": (os.fsdecode(b"10-\xff.conflist"), "no valid JSON"),
    "large": ("10-a.conflist", "larger than 16777216 bytes"),
}


def make(directory: Path, case: str) -> None:
    path = directory / FOREIGN[case][0]
    if case == "pipe":
        os.mkfifo(path)
    elif case == "link to /dev/zero":
        path.symlink_to("/dev/zero")
    elif case == "large":
        path.write_bytes(b" " * (17 << 20))
    else:
        no_text = b'{"cniVersion": "1.0.0", "name": "\xff", "plugins": [{"type": "bridge"}]}'
        path.write_bytes(no_text if case == "no UTF-8" else b"\xff")


@pytest.mark.parametrize("case", FOREIGN)
def test_network_that_is_no_file_is_named_by_commands_of_a_node(tmp_path: Path, node: Path, case: str):
    networks, options = node / "etc/cni/net.d", ("--config", str(tmp_path / "agent.yaml"))
    make(networks, case)
    name, why = ascii(FOREIGN[case][0])[1:-1], FOREIGN[case][1]
    found = run(
        "doctor", "node", *options, "--host-root", str(node), "--server", "", "--device-plugin", "", "--json"
    )
    assert found.returncode == 1, found.stderr
    findings = json.loads(found.stdout)["findings"]
    assert [each["found"] for each in findings if each["id"] == "cni-unreadable" and why in each["found"]]
    report = ("--report", str(tmp_path / "r.tar.gz"))
    gathered = run("gather", *report, *options, "--host-root", str(node))
    assert gathered.returncode == 0, gathered.stderr
    assert f"not in the report: networks/{name}: " in gathered.stderr.decode()
    conf_dir = ("--conf-dir", str(networks))
    installed = run("install-cni", "--network", "chained", *conf_dir, str(node / "opt/cni/bin"))
    assert installed.returncode == 2
    assert installed.stderr.decode().startswith(f"k8s-rdma: {networks}: {name}: ")
    assert why in installed.stderr.decode()
    removal = ("--remove", "--grace-s", "0", *conf_dir, str(node / "opt/cni/bin"))
    removed = run("install-cni", "--network", "chained", *removal)
    if case == "large":  # whether a runtime finds our plugin by it is not known
        assert removed.returncode == 2
        assert b"10-a.conflist" in removed.stderr
    else:
        assert (removed.returncode, removed.stderr) == (0, b"")


@pytest.mark.parametrize("option", ["--config", "--log"])
def test_file_that_is_named_and_has_no_end_is_refused(tmp_path: Path, node: Path, option: str):
    (tmp_path / "link").symlink_to("/dev/zero")
    done = run("gather", "--report", str(tmp_path / "r.tar.gz"), option, str(tmp_path / "link"))
    assert b"larger than 16777216 bytes" in done.stderr or b"no regular file" in done.stderr
    assert b"Traceback" not in done.stderr


COMMANDS = [
    *("who", "top --once", "snapshot", "whatif headroom", "doctor cluster", "explain pod a/b"),
    *("rates set a/b --min 5", "verify cluster a b"),
]
OF_EXTENDER = ("top --once", "doctor cluster", "explain pod a/b")


@pytest.mark.parametrize("command", COMMANDS)
def test_servers_that_answer_without_end_take_no_memory(tmp_path: Path, command: str):
    with answering(*LONG["bytes"]) as url:
        options = ["--kubeconfig", write(tmp_path / "k", document(url))]
        options += ["--extender", url] if command in OF_EXTENDER else []
        done = run(*command.split(), *options)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1), done.stderr[-2000:]
    assert b"an answer of more than " in done.stderr


DOCUMENTS = {
    "no name": {"items": [{}], "gitVersion": "v1.36.0"},
    "no metadata": {"items": [{"metadata": None}], "metadata": {}, "gitVersion": "v1.36.0"},
    "lists": {"items": [{"metadata": {"name": "a"}, "spec": [], "status": []}], "gitVersion": "v1.36.0"},
    "names alone": {"items": [{"metadata": {"name": "a"}}], "metadata": {}, "gitVersion": "v1.36.0"},
    "numbers": {
        "items": [
            {"metadata": {"name": "a"}, "spec": {"nodeName": 5}, "status": {"startTime": "x", "pfs": [5]}}
        ],
        "metadata": {},
        "gitVersion": "v1.36.0",
        "data": {"extender.yaml": 5},
    },
    "no version": {"items": [], "gitVersion": [5]},
}


@pytest.mark.parametrize("form", DOCUMENTS)
@pytest.mark.parametrize("command", ["doctor cluster", "explain pod a/b", "rates set a/b --min 5"])
def test_documents_of_another_form_end_no_command(tmp_path: Path, command: str, form: str):
    """Whatever is asked for, the answer is this document."""

    class Every(dict[str, bytes]):
        def get(self, _path: str, _default: object = None) -> bytes:
            return json.dumps(DOCUMENTS[form]).encode()

    with serving_objects(Every(), tmp_path) as kubeconfig:
        done = run(*command.split(), "--kubeconfig", kubeconfig)
    assert done.returncode in (0, 1, 2)
    assert b"Traceback" not in done.stderr, done.stderr[-2000:].decode()
