"""Compiles `k8s-rdma-cni` into the wheel, beside the command `k8s-rdma`.

With the C compiler of the machine, `CC` or `cc`; where there is none, or none that links static ones (many
distributions keep the libc for that apart), with the one in the package `ziglang`. With that always by
`CC=ziglang`, and for another architecture than this machine's (_PYTHON_HOST_PLATFORM=linux-aarch64, as for
all that Python builds).
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROGRAM = "k8s-rdma-cni"
SOURCES = Path(__file__).parent / "cni"


def target() -> str:
    """The architecture that the wheel is for, as the kernel calls it."""
    return sysconfig.get_platform().partition("-")[2]


def compiler() -> list[str] | None:
    """The machine's own compiler; None when it has none that makes a static program for the target."""
    named = shlex.split(os.environ.get("CC") or "cc")
    if named == ["ziglang"] or target() != platform.machine():
        return None
    return named if shutil.which(named[0]) and _links(named) else None


def _links(command: list[str]) -> bool:
    with tempfile.TemporaryDirectory(prefix="k8srdma-link-") as directory:
        done = subprocess.run(
            [*command, "-static-pie", "-x", "c", "-", "-o", f"{directory}/program"],
            input=b"int main(void) { return 0; }",
            capture_output=True,
            check=False,
        )
    return done.returncode == 0


def zig() -> list[str]:
    """The compiler that the package `ziglang` brings, with a libc to link statically."""
    return [sys.executable, "-m", "ziglang", "cc", "-target", f"{target()}-linux-musl"]


def compile_program(command: list[str], program: Path) -> None:
    """Make the static executable; the same sources and compiler make the same bytes."""
    static = ["-static", "-pie"] if "ziglang" in command else ["-static-pie"]
    sources = sorted(path.name for path in SOURCES.glob("*.c"))
    subprocess.run(
        [*command, "@flags", "@release", *static, "-o", str(program), *sources], cwd=SOURCES, check=True
    )


class CniBuildHook(BuildHookInterface):
    """Hatchling's hook: a wheel for this architecture, with the executable as a script of it."""

    def dependencies(self) -> list[str]:
        """What the build needs beyond hatchling."""
        return [] if compiler() else ["ziglang"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, but for an editable installation: there `make cni` does."""
        if version == "editable":
            return
        self._directory = tempfile.TemporaryDirectory(prefix="k8srdma-wheel-")
        program = Path(self._directory.name) / PROGRAM
        compile_program(compiler() or zig(), program)
        build_data["shared_scripts"][str(program)] = PROGRAM
        # A static program runs with any libc, and indexes of packages take no wheel for `linux` alone.
        build_data["tag"] = f"py3-none-manylinux2014_{target()}.musllinux_1_1_{target()}"
        build_data["pure_python"] = False

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Take away what was compiled."""
        if version != "editable":
            self._directory.cleanup()
