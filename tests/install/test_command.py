"""`k8s-rdma install-cni`, done once."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

import warm_program
from install.node_files import FILE, OURS, NodeFiles
from k8s_rdma.cli.install_cni import desired_conflist
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.install.network_mode import NetworkMode

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path


def run(node: NodeFiles, program: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = ["install-cni", str(node.bin), "--conf-dir", str(node.confs), *options]
    return warm_program.run(command, os.environ | {"K8S_RDMA_CNI": str(program)})


def test_it_is_put_there_and_taken_away(node: NodeFiles, program: Path, tmp_path: Path) -> None:
    pristine = node.state()
    (tmp_path / "section.json").write_text('{"exclusiveDevices": true}')
    done = run(node, program, "--network", "chained", "--plugin", str(tmp_path / "section.json"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == str(node.confs / FILE)
    assert node.network()[1]["plugins"][-1]["exclusiveDevices"] is True
    done = run(node, program, "--network", "chained", "--remove", "--grace-s", "0")
    assert done.stdout.splitlines() == [f"removed {node.confs / FILE}", f"removed {node.bin / OURS}"]
    assert node.state() == pristine


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"file": "00-ours.conf"}, "--conf-name: 00-ours.conf: must be a file's name that ends in"),
        ({"file": "../00-ours.conflist"}, "--conf-name: ../00-ours.conflist: must be a file's name"),
        ({"plugin": "absent.json"}, "--plugin: absent.json: neither a JSON object nor a file"),
        ({"version": "9.0.0"}, "incompatible CNI version"),
    ],
)
def test_options_that_cannot_be_are_named(options: dict[str, str], said: str) -> None:
    given = {
        "network": NetworkMode.CHAINED,
        "file": FILE,
        "plugin": "{}",
        "name": "k8s-rdma",
        "version": "1.0.0",
    }
    with pytest.raises(K8sRdmaError, match=re.escape(said)):
        desired_conflist(**given | options)


def test_impossible_request_is_one_line(node: NodeFiles, program: Path) -> None:
    done = run(node, program, "--network", "chained", "--conf-dir", "/absent")
    assert (done.returncode, done.stderr) == (2, "k8s-rdma: /absent: No such file or directory\n")
    done = run(node, program, "--network", "chained", "--conf-dir", "/absent", "--remove")
    assert (done.returncode, done.stderr) == (2, "k8s-rdma: /absent: No such file or directory\n")
    done = run(node, program, "--wait", "--follow")
    assert (done.returncode, done.stderr) == (
        2,
        "k8s-rdma: --wait does not go together with --follow and --remove\n",
    )


def test_no_file_is_removed_that_another_installer_keeps_in_place(node: NodeFiles, program: Path) -> None:
    keeper = node.installation()
    keeper.install(program)
    before = node.state()
    with keeper.locked(0):
        done = run(node, program, "--network", "none", "--remove", "--grace-s", "0")
    assert (done.returncode, "another `k8s-rdma install-cni` is running there; stop" in done.stderr) == (
        2,
        True,
    )
    assert node.state() == before
