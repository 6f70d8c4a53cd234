"""Files of a node whose root file system is mounted below ours."""

from __future__ import annotations

from pathlib import Path

from k8s_rdma.linux.host_root import HostRoot, below


def test_path_is_found_as_the_node_sees_it_when_links_are_on_the_way(tmp_path: Path):
    (tmp_path / "real").mkdir()
    (tmp_path / "absolute").symlink_to("/real")
    (tmp_path / "real/up").symlink_to("../../../real/file")
    (tmp_path / "chain").symlink_to("absolute/up")
    (tmp_path / "circle").symlink_to("/circle")
    assert below(tmp_path, Path("/absolute/file")) == tmp_path / "real/file"
    assert below(tmp_path, Path("/chain")) == tmp_path / "real/file"
    assert below(tmp_path, Path("/../../etc/x")) == tmp_path / "etc/x"
    assert not below(tmp_path, Path("/circle/x")).exists()
    assert below(Path("/"), Path("/nowhere/x")) == Path("/nowhere/x")


def test_directory_is_listed_as_the_node_sees_it_when_it_is_an_absolute_link(tmp_path: Path):
    (tmp_path / "run/cdi").mkdir(parents=True)
    (tmp_path / "run/cdi/b.json").touch()
    (tmp_path / "run/cdi/a.json").touch()
    (tmp_path / "cdi").symlink_to("/run/cdi")
    assert HostRoot(tmp_path).names("/cdi") == ["a.json", "b.json"]


def test_directory_that_is_not_there_has_no_names(tmp_path: Path):
    (tmp_path / "file").touch()
    root = HostRoot(tmp_path)
    assert root.names("/none") == root.names("/file") == root.names("/file/none") == []
