from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from k8s_rdma_demo.cluster.command import main

CNI_PATH = os.environ.get("CNI_PATH") or "/opt/cni/bin:/usr/lib/cni"
UNSHARE = ("unshare", "--user", "--map-root-user", "--mount", "--net")


def test_pod_lives_and_ends_among_the_processes_in_a_user_namespace(tmp_path):
    if shutil.which("bridge", path=CNI_PATH) is None:
        pytest.skip("no CNI plugin bridge here")
    if subprocess.run([*UNSHARE, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no user namespaces here")
    script = Path(__file__).with_name("whole_cluster.py")
    ended = subprocess.run(
        [*UNSHARE, sys.executable, str(script), str(tmp_path), CNI_PATH],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    seen = json.loads(ended.stdout)
    assert seen["node"] == "w1"
    assert seen["told"] == seen["found"]
    assert seen["found"].startswith("10.244.1.")
    assert seen["left"] == []
    assert seen["exits"] == [0, 0, 0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["scheduler", "--server", "http://127.0.0.1:1", "--config", "/nowhere"], "/nowhere"),
        (["api", "--resource", "x/y"], "wanted <group>/<version>/<plural>/<Kind>"),
        (["api", "--host", "192.0.2.1"], "192.0.2.1"),
        (
            ["kubelet", "--server", "http://127.0.0.1:1", "--node", "w1"],
            "kubelet: needed without --runtime-endpoint: --conflist, --cni-path, --netns-dir",
        ),
        (
            ["kubelet", "--server", "http://127.0.0.1:1", "--node", "w1", "--runtime-endpoint", "/none"],
            "kubelet: needed with --runtime-endpoint: --device-plugin-dir, --state-dir",
        ),
    ],
)
def test_command_reports_the_error_and_fails(arguments, says, capsys):
    assert main(arguments) == 1
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["apiserver"], ["kubelet"], ["api", "--port", "x"]])
def test_command_line_is_refused_when_it_makes_no_sense(arguments, capsys):
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2
    assert "usage:" in capsys.readouterr().err
