"""`k8s-rdma install-cni`, done once."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from install.node_files import FILE, OURS
from k8s_rdma.install.directory import NodeDirectory

if TYPE_CHECKING:
    from pathlib import Path

    from install.node_files import NodeFiles


def run(node: NodeFiles, program: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "k8s_rdma", "install-cni", str(node.bin), "--conf-dir", str(node.confs)]
    return subprocess.run(
        [*command, *options],
        env=os.environ | {"K8S_RDMA_CNI": str(program)},
        capture_output=True,
        text=True,
        check=False,
    )


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
        (["--conf-name", "00-ours.conf"], "--conf-name: 00-ours.conf: must be a file's name that ends in"),
        (["--plugin", "absent.json"], "--plugin: absent.json: neither a JSON object nor a file"),
        (["--cni-version", "9.0.0"], "incompatible CNI version"),
        (["--conf-dir", "/absent"], "/absent: No such file or directory"),
    ],
)
def test_options_that_cannot_be_are_named(
    node: NodeFiles, program: Path, options: list[str], said: str
) -> None:
    done = run(node, program, "--network", "chained", *options)
    assert done.returncode == 1
    assert said in done.stderr
    assert node.types() == ["bridge", "portmap"]


def test_there_is_one_writer_at_a_time(node: NodeFiles) -> None:
    directory = NodeDirectory(node.confs)
    with directory.locked(0), pytest.raises(Exception, match="another"), directory.locked(0.1):
        pass
    with directory.locked(0):
        pass
