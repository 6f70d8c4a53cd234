"""`kubectl rdma web`, which runs the kubectl on PATH."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

PLUGIN = str(Path(sys.executable).parent / "kubectl-rdma")
ADDRESS = "Open http://127.0.0.1:54008; Ctrl-C ends it.\n"


def kubectl_in(directory: Path, script: str) -> dict[str, str]:
    """Return the environment with an own kubectl. script: its commands."""
    program = directory / "kubectl"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return os.environ | {"PATH": f"{directory}:/usr/bin:/bin"}


def test_web_forwards_the_port_of_the_pages_or_reports_the_obstacle(tmp_path: Path) -> None:
    command = [
        PLUGIN,
        "web",
        "--chart-namespace",
        "rdma",
        "--kubeconfig",
        "/k",
        "--context",
        "c",
        "--user",
        "u",
    ]
    environment = kubectl_in(tmp_path, 'echo "$@"; exit 3')
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    options = "--namespace rdma --kubeconfig /k --context c --user u"
    arguments = f"{options} port-forward deployment/k8s-rdma-web 54008\n"
    assert (ended.returncode, sorted(ended.stdout.splitlines(True))) == (2, [arguments, ADDRESS])
    assert "kubectl port-forward ended with status 3\n  set viewers.enabled and web.enabled" in ended.stderr


def test_web_ends_quietly_by_ctrl_c(tmp_path: Path) -> None:
    environment = kubectl_in(tmp_path, "echo forwarding; exec sleep 60")
    with subprocess.Popen(
        [PLUGIN, "web"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as process:
        while process.stdout.readline() != "forwarding\n":
            pass
        os.killpg(process.pid, signal.SIGINT)
        assert process.stderr.read() == ""
    assert process.returncode == 130


def test_web_without_kubectl_is_refused(tmp_path: Path) -> None:
    ended = subprocess.run(
        [PLUGIN, "web"], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (2, "k8s-rdma: there is no kubectl on PATH\n")
