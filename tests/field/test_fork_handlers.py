"""Plugins of an agent that has gRPC's threads, which kubelet's device assignments come by.

Source: https://github.com/grpc/grpc/issues/43055, a fork runs gRPC's handlers (pthread_atfork(3)), which
start a poller in the child; the child closes its descriptors before it is the program, and aborts now and
then. A process that is started by vfork(2) runs no handlers. Python falls back to fork(2) for some options.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

COUNT = """
import asyncio, ctypes, subprocess, sys
from pathlib import Path
from k8s_rdma.agent.plugins.execution import Plugins
from k8s_rdma.core.ledger import DelegatedPlugin

forks = []
handler = ctypes.CFUNCTYPE(None)(lambda: forks.append(1))
ctypes.CDLL(None).__register_atfork(handler, None, None, None)
plugin = DelegatedPlugin(plugin="scripted", netconf=b"{}", cni_path=sys.argv[1], cni_args="")
starts = {
    "a plugin": lambda: asyncio.run(Plugins(host_root=Path("/"), timeout_s=90).run(plugin, "ADD", b"{}")),
    "code before exec": lambda: subprocess.run(["true"], check=True, preexec_fn=lambda: None),
}
starts[sys.argv[2]]()
print(len(forks))
"""


@pytest.mark.parametrize(("start", "forks"), [("a plugin", 0), ("code before exec", 1)])
def test_no_library_handles_the_start_of_a_plugin_as_a_fork(tmp_path: Path, start: str, forks: int) -> None:
    plugin = tmp_path / "scripted"
    plugin.write_text("#!/bin/sh\necho '{}'\n")
    plugin.chmod(0o755)
    command = [sys.executable, "-c", COUNT, str(tmp_path), start]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{forks}\n"
