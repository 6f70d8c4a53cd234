"""Directories of a node: one writer at a time, and whole files, whatever the file system refuses."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from install.node_files import BRIDGE, FILE, OURS, conflist
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.install.directory import NodeDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from install.node_files import NodeFiles


def test_there_is_one_writer_at_a_time(node: NodeFiles) -> None:
    directory = NodeDirectory(node.confs)
    with directory.locked(0), pytest.raises(K8sRdmaError, match="another"), directory.locked(0.1):
        pass
    with directory.locked(0):
        pass


def test_link_is_replaced_and_its_target_is_not_written(
    node: NodeFiles, program: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("theirs")
    (node.confs / FILE).symlink_to(elsewhere)
    (node.bin / OURS).symlink_to(elsewhere)
    node.installation().install(program)
    assert elsewhere.read_text() == "theirs"
    assert not (node.confs / FILE).is_symlink()
    assert (node.bin / OURS).read_bytes() == program.read_bytes()


@pytest.fixture
def read_only(node: NodeFiles) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("needs root, or a user namespace that makes one (`make test`)")
    subprocess.run(["mount", "--bind", node.confs, node.confs], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", node.confs], check=True)
    yield node.confs
    subprocess.run(["umount", node.confs], check=True)


def test_read_only_directory_is_named(node: NodeFiles, program: Path, read_only: Path) -> None:
    with pytest.raises(K8sRdmaError, match=f"{read_only}.*Read-only file system"):
        node.installation().install(program)
    assert node.types() == ["bridge", "portmap"]


@pytest.fixture
def full(node: NodeFiles, program: Path) -> Iterator[Path]:
    """Ours is in place, and there is no room for another one."""
    if os.geteuid() != 0:
        pytest.skip("needs root, or a user namespace that makes one (`make test`)")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", node.confs], check=True)
    (node.confs / "10-pods.conflist").write_text(conflist(BRIDGE))
    node.installation().install(program)
    with (node.confs / "filling").open("wb", 0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
    yield node.confs
    subprocess.run(["umount", node.confs], check=True)


def test_full_file_system_leaves_the_former_files(node: NodeFiles, program: Path, full: Path) -> None:
    before = {path.name for path in full.iterdir()}
    with pytest.raises(K8sRdmaError, match="No space left on device"):
        node.installation(plugin='{"timeoutMs": 1000}').install(program)
    assert node.types() == ["bridge", OURS]
    assert {path.name for path in full.iterdir()} == before
    (full / "filling").unlink()
    node.installation(plugin='{"timeoutMs": 1000}').install(program)
    assert node.network()[1]["plugins"][-1]["timeoutMs"] == 1000
