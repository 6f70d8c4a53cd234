"""The program compiled as it ships, a directory for it to look into, and an agent for it to ask.

`K8S_RDMA_CNI_SANITIZE=address,undefined pytest tests/cni` runs the same tests with the compiler's checks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cni.call import SOURCES, Program
from cni.scripted_agent import ScriptedAgent

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def build_dir() -> Iterator[Path]:
    """A directory that every user may read: some tests run the program without privileges."""
    if not shutil.which(os.environ.get("CC", "cc")):
        pytest.skip("no C compiler (cc): k8s-rdma-cni cannot be built here")
    with tempfile.TemporaryDirectory(prefix="k8srdma-build-") as path:
        Path(path).chmod(0o755)
        yield Path(path)


@pytest.fixture(scope="session")
def program(build_dir: Path) -> Program:
    command = ["make", "--no-print-directory", "-C", SOURCES, f"BUILD={build_dir}"]
    if sanitize := os.environ.get("K8S_RDMA_CNI_SANITIZE"):
        command.append(f"SANITIZE={sanitize}")
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return Program(build_dir / "k8s-rdma-cni")


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """The agent's directory on a node, without a marker and without a socket. Short: it goes into one."""
    with tempfile.TemporaryDirectory(prefix="k8srdma-") as path:
        Path(path).chmod(0o755)
        (Path(path) / "attachments").mkdir()
        yield Path(path)


@pytest.fixture
def own_run_dir(run_dir: Path) -> Path:
    """One that a test may take away."""
    directory = run_dir / "own"
    (directory / "attachments").mkdir(parents=True)
    return directory


@pytest.fixture
def agent(run_dir: Path) -> Iterator[ScriptedAgent]:
    """An agent that listens and answers every request with the error `asked`."""
    with ScriptedAgent(run_dir / "cni.sock") as agent:
        yield agent


@pytest.fixture(scope="session")
def netns() -> Iterator[str]:
    """The path of a network namespace that is not ours; it goes with the process that holds it."""
    rootless = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    with subprocess.Popen(
        ["unshare", *rootless, "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        holder.stdin.write(b"\n")
        holder.stdin.flush()
        holder.stdout.readline()  # `cat` answers from within the namespace
        yield f"/proc/{holder.pid}/ns/net"
        holder.stdin.close()
