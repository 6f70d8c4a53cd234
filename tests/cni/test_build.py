"""How the executable is made: by the Makefile and by the wheel's build, with one compiler or another."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import struct
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from cni.call import SOURCES, Program
from k8s_rdma.wire.cni_result import SUPPORTED_VERSIONS

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES = 1_000_000
ROOT = SOURCES.parent


def segments(program: Path) -> set[int]:
    """The types of an ELF file's segments (elf(5)); 64 bits, this machine's byte order."""
    data = program.read_bytes()
    (offset,) = struct.unpack_from("=Q", data, 32)
    size, count = struct.unpack_from("=HH", data, 54)
    return {struct.unpack_from("=I", data, offset + index * size)[0] for index in range(count)}


def assert_fit_for_any_node(program: Path) -> None:
    """Static (no interpreter), position independent, small; and it runs."""
    needs_interpreter, shared_object = 3, 3
    assert needs_interpreter not in segments(program)
    assert struct.unpack_from("=H", program.read_bytes(), 16) == (shared_object,)
    assert program.stat().st_size < MAX_BYTES
    versions = json.loads(Program(program)("VERSION", b"").stdout)["supportedVersions"]
    assert versions == list(SUPPORTED_VERSIONS)


@pytest.fixture(scope="module")
def hook() -> Any:
    """hatch_build.py, which no package holds."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def made(build_dir: Path) -> Path:
    """By the Makefile, as it ships."""
    directory = build_dir / "release"
    subprocess.run(["make", "-C", SOURCES, f"BUILD={directory}"], check=True, stdout=subprocess.DEVNULL)
    return directory / "k8s-rdma-cni"


def test_program_is_static_and_below_a_megabyte(made: Path) -> None:
    assert_fit_for_any_node(made)


def test_program_is_the_same_in_the_wheel_and_from_a_copy_of_the_sources(made, hook, tmp_path) -> None:
    hook.compile_program(hook.compiler(), tmp_path / "of the wheel")
    shutil.copytree(SOURCES, tmp_path / "copy")
    subprocess.run(["make", "-C", tmp_path / "copy"], check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / "of the wheel").read_bytes() == made.read_bytes()
    assert (tmp_path / "build" / "k8s-rdma-cni").read_bytes() == made.read_bytes()


@pytest.fixture
def dynamic_only(tmp_path: Path) -> str:
    """A compiler without the libc for static programs."""
    path = tmp_path / "dynamic-cc"
    path.write_text('#!/bin/sh\ncase "$*" in *-static*) exit 1; esac\nexec cc "$@"\n')
    path.chmod(0o755)
    return str(path)


OTHER_MACHINE = "x86_64" if platform.machine() == "aarch64" else "aarch64"


@pytest.mark.parametrize("kind", ["cc", "none-such", "dynamic only", "another machine"])
def test_wheel_build_requires_ziglang_only_without_a_usable_compiler(kind: str, dynamic_only: str) -> None:
    compiler = {"dynamic only": dynamic_only, "another machine": "cc"}.get(kind, kind)
    target = OTHER_MACHINE if kind == "another machine" else platform.machine()
    ask = "import sys, hatchling.build as b; sys.stdout.write(' '.join(b.get_requires_for_build_wheel()))"
    done = subprocess.run(
        [sys.executable, "-c", ask],
        cwd=ROOT,
        env=os.environ | {"CC": compiler, "_PYTHON_HOST_PLATFORM": f"linux-{target}"},
        capture_output=True,
        check=True,
        text=True,
    )
    assert ("ziglang" in done.stdout.split()) == (kind != "cc")


def test_program_is_built_by_zig_without_a_compiler(hook, tmp_path) -> None:
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("needs requirements/release.txt: scripts/setup-release")
    for name in ("once", "again"):
        hook.compile_program(hook.zig(), tmp_path / name)
        assert_fit_for_any_node(tmp_path / name)
    assert (tmp_path / "once").read_bytes() == (tmp_path / "again").read_bytes()
