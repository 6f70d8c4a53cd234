"""`k8s-rdma gather --report` on a machine where no program of ours runs."""

from __future__ import annotations

import json
import tarfile
from typing import TYPE_CHECKING

import pytest

from warm_program import run

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path


def gather(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    config = directory / "agent.yaml"
    config.write_text(
        json.dumps({"node": "w1", "kernel": "virtual", "runDir": str(directory), "stateDir": str(directory)})
    )
    return run(["gather", "--config", str(config), *options])


def test_unreadable_part_is_reported_and_the_rest_is_gathered(tmp_path):
    report, log = tmp_path / "report.tar.gz", tmp_path / "absent.log"
    done = gather(tmp_path, "--report", str(report), "--log", str(log))
    assert done.returncode == 0, done.stderr
    with tarfile.open(report) as archive:
        names = set(archive.getnames())
        missing = archive.extractfile("k8s-rdma-report/missing.txt").read().decode()
    assert {f"k8s-rdma-report/{each}" for each in ("version.json", "doctor.json", "machine.yaml")} <= names
    assert "k8s-rdma-report/state.json" not in names
    assert f"state.json: {tmp_path}/state.sock: No such file or directory" in missing
    assert "logs/absent.log: " in missing
    assert all(f"k8s-rdma: not in the report: {line}" in done.stderr for line in missing.splitlines())
    assert "read it through" not in done.stderr
    assert f"read {report} through" in done.stderr


def test_network_that_is_no_yaml_is_left_out_without_its_text(tmp_path):
    report, confs = tmp_path / "report.tar.gz", tmp_path / "node/etc/cni/net.d"
    confs.mkdir(parents=True)
    for name in ("proc", "sys"):
        (tmp_path / "node" / name).symlink_to(f"/{name}")
    texts = {
        "10-deep.conflist": '{"plugins": ' + "[" * 5_000 + "]" * 5_000 + "}",
        "20-torn.conflist": '{"token": "hunter2", "plugins": [}',
        "30-whole.conflist": '{"token": "hunter2", "plugins": [{"type": "bridge"}]}',
    }
    for name, text in texts.items():
        (confs / name).write_text(text)
    done = gather(tmp_path, "--report", str(report), "--host-root", str(tmp_path / "node"))
    assert done.returncode == 0, done.stderr
    missing = done.stderr.splitlines()
    prefix = "k8s-rdma: not in the report: networks/"
    assert f"{prefix}10-deep.conflist: line 1, column 76: nested deeper than 64 levels" in missing
    assert any(line.startswith(f"{prefix}20-torn.conflist: line 1, column 34: ") for line in missing)
    with tarfile.open(report) as archive:
        texts = [archive.extractfile(entry).read().decode() for entry in archive.getmembers()]
    assert any("type: bridge" in text for text in texts)
    assert not any("hunter2" in text for text in (*texts, done.stderr))


@pytest.mark.parametrize("where", ["absent/report.tar.gz", ""])
def test_archive_that_cannot_be_written_is_an_error(tmp_path, where):
    done = gather(tmp_path, "--report", str(tmp_path / where))
    assert done.returncode == 2
    assert done.stderr.startswith(f"k8s-rdma: --report {tmp_path}")
