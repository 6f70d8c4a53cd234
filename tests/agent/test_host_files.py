"""Files of the node, by their paths there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.agent.host_files import HostFiles, find_executable

if TYPE_CHECKING:
    from pathlib import Path


def test_executable_is_searched_in_the_plugin_directories_of_the_node(tmp_path: Path) -> None:
    files = HostFiles(tmp_path)
    assert find_executable(files, "/opt/cni/bin:/usr/lib/cni") == ""
    (tmp_path / "var/cni").mkdir(parents=True)
    (tmp_path / "var/cni/k8s-rdma-cni").touch()
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "usr/lib/cni").symlink_to("/var/cni")
    assert find_executable(files, "/opt/cni/bin::/usr/lib/cni") == "/usr/lib/cni/k8s-rdma-cni"


def test_executable_behind_an_absolute_link_is_looked_for_below_the_nodes_root(tmp_path: Path) -> None:
    files, link = HostFiles(tmp_path / "host"), tmp_path / "host/opt/cni/bin/k8s-rdma-cni"
    link.parent.mkdir(parents=True)
    (tmp_path / "ours").touch()
    link.symlink_to(tmp_path / "ours")
    assert find_executable(files, "/opt/cni/bin") == ""
    (files_of_node := tmp_path / "host" / tmp_path.relative_to("/")).mkdir(parents=True)
    (files_of_node / "ours").touch()
    (tmp_path / "ours").unlink()
    assert find_executable(files, "/opt/cni/bin") == "/opt/cni/bin/k8s-rdma-cni"
