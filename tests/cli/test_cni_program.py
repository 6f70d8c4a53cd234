"""`k8s-rdma install-cni`: the executable in the runtime's directory, by both its names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
NAMES = ("k8s-rdma-cni", "rit-k8s-rdma-cni-linux-amd64")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    program = tmp_path / "built"
    program.write_text("#!/bin/sh\necho new\n")
    program.chmod(0o700)
    return program


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    directory = tmp_path / "bin"
    directory.mkdir()
    return directory


def install(program: Path, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "k8s_rdma", "install-cni", directory],
        env=os.environ | {"K8S_RDMA_CNI": str(program)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_program_is_installed_by_both_its_names(program: Path, plugins: Path) -> None:
    done = install(program, plugins)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [str(plugins / name) for name in NAMES]
    assert sorted(path.name for path in plugins.iterdir()) == sorted(NAMES)
    for name in NAMES:
        assert subprocess.run([plugins / name], capture_output=True, check=True).stdout == b"new\n"
        assert (plugins / name).stat().st_mode & 0o777 == 0o755


@pytest.fixture
def installation(tmp_path: Path, program: Path) -> Path:
    """The installed files of a wheel: its metadata, and the executable in a `bin` not on PATH."""
    (tmp_path / "environment" / "bin").mkdir(parents=True)
    shutil.copy(program, tmp_path / "environment" / "bin" / NAMES[0])
    packages = tmp_path / "environment" / "packages"
    metadata = packages / "k8s_rdma-9.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: k8s-rdma\nVersion: 9\n")
    (metadata / "RECORD").write_text(f"../bin/{NAMES[0]},,\n")
    return packages


def test_program_of_the_package_is_installed_whatever_is_on_the_path(
    installation: Path, plugins: Path, tmp_path: Path
) -> None:
    (tmp_path / "older").mkdir()
    (tmp_path / "older" / NAMES[0]).write_text("#!/bin/sh\necho old\n")
    (tmp_path / "older" / NAMES[0]).chmod(0o755)
    path = f"{tmp_path / 'older'}:{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "k8s_rdma", "install-cni", plugins],
        env=os.environ | {"K8S_RDMA_CNI": "", "PATH": path, "PYTHONPATH": str(installation)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert subprocess.run([plugins / NAMES[0]], capture_output=True, check=True).stdout == b"new\n"


@pytest.mark.parametrize("path", ["", "."])
def test_program_of_a_strangers_directory_is_never_taken(plugins: Path, tmp_path: Path, path: str) -> None:
    """Nor one of PATH that depends on the current directory."""
    for directory in (tmp_path / "build", tmp_path):
        directory.mkdir(exist_ok=True)
        (directory / NAMES[0]).write_text("#!/bin/sh\necho a stranger\n")
        (directory / NAMES[0]).chmod(0o755)
    subprocess.run(
        [sys.executable, "-P", "-m", "k8s_rdma", "install-cni", plugins],
        env=os.environ | {"K8S_RDMA_CNI": "", "PATH": f"{path}:{os.environ['PATH']}"},
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert not any(b"a stranger" in installed.read_bytes() for installed in plugins.iterdir())


def test_program_built_in_the_clone_is_found_from_anywhere(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    shutil.copytree(SOURCE, clone / "src", ignore=shutil.ignore_patterns("__pycache__"))
    (clone / "build").mkdir()
    (clone / "build" / NAMES[0]).write_text("#!/bin/sh\n")
    (clone / "build" / NAMES[0]).chmod(0o755)
    found = subprocess.run(
        [sys.executable, "-c", "from k8s_rdma.install.directory import find_program; print(find_program())"],
        env=os.environ | {"K8S_RDMA_CNI": "", "PYTHONPATH": str(clone / "src")},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == str(clone / "build" / NAMES[0])


def test_program_is_replaced_while_the_old_one_runs(program: Path, plugins: Path) -> None:
    shutil.copy("/bin/cat", plugins / NAMES[0])
    (plugins / NAMES[1]).write_text("of somebody else")
    with subprocess.Popen([plugins / NAMES[0]], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert install(program, plugins).returncode == 0
        assert running.communicate(b"still the old one")[0] == b"still the old one"
    assert subprocess.run([plugins / NAMES[1]], capture_output=True, check=True).stdout == b"new\n"


def test_program_is_not_installed_if_there_is_no_directory(program: Path, plugins: Path) -> None:
    done = install(program, plugins / "absent")
    assert done.returncode == 2
    assert str(plugins / "absent") in done.stderr
    assert not list(plugins.iterdir())


def test_missing_program_is_reported(program: Path, plugins: Path) -> None:
    program.unlink()
    done = install(program, plugins)
    assert done.returncode == 2
    assert "make cni" in done.stderr
