"""The doctor in the agent's container sees the same of the node as on the node itself."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from doctor_documents import decode_doctor
from e2e.containerd import Containerd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from image.contained_node import ContainedNode


class AsAService(Containerd):
    """Called by its whole path, as systemd does it."""

    def command(self) -> list[str]:
        program, *options = super().command()
        return [shutil.which(program) or program, *options]


pytestmark = pytest.mark.usefixtures("not_emulated")


@pytest.fixture
def node(make_node: Callable[..., ContainedNode]) -> Iterator[ContainedNode]:
    """With a containerd whose network has our plugin."""
    for program in ("containerd", "runc", "ctr"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program} (Debian packages containerd, runc)")
    node = make_node()
    directory = node.directory / "containerd"
    with AsAService(directory, plugins=node.cni_path, deadline_s=node.deadline_s) as containerd:
        containerd.use(node.runtime(chained=True).conflist)
        yield node


def findings(document: bytes) -> dict[tuple[str, str], str]:
    """Return sentences by id and subject."""
    return {(each.id, each.about): each.found for each in decode_doctor(document).findings}


def test_doctor_finds_in_the_container_of_the_agent_the_same_as_on_the_node(node: ContainedNode) -> None:
    node.start_agent()
    node.start("server", node.config("server", {"runDir": str(node.run_dir)}))
    doctor = ["doctor", "node", "--config", str(node.directory / "agent.yaml"), "--json"]
    node.wait("the server", lambda: b"processes-down" not in node.in_agent("k8s-rdma", *doctor).stdout)
    inside = node.in_agent("k8s-rdma", *doctor)
    assert not inside.stderr, inside.stderr.decode()
    on_node = [sys.executable, "-m", "k8s_rdma", *doctor, "--host-root", "/"]
    outside = subprocess.run(on_node, capture_output=True, check=False)
    assert not outside.stderr, outside.stderr.decode()
    assert findings(inside.stdout) == findings(outside.stdout)
    ids = {finding for finding, _ in findings(inside.stdout)}
    assert ids >= {"cni-ok", "runtime-ok", "vfs-ok", "ledger-ok", "processes-ok"}
    assert not ids & {"processes-down", "memlock-no-process", "runtime-version-unknown"}
