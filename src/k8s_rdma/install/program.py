"""The CNI executable: where it is, and putting it where the container runtime looks."""

from __future__ import annotations

import filecmp
import os
import shutil
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING

from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.wire.conflist import LEGACY_PLUGIN, PLUGIN

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from k8s_rdma.install.directory import NodeDirectory

DISTRIBUTION = "k8s-rdma"
PROGRAM = PLUGIN
CHECKOUT = Path(__file__).parents[3]
"""Where `make cni` builds, if this package is one of a clone."""


def find_program() -> Path | None:
    """Find the executable: the one named in K8S_RDMA_CNI; else this package's own, one on PATH, the node's.

    Its own comes first: a virtual environment need not be on PATH, and what is there may be an older one.
    Nothing depends on the current directory, which may be a stranger's.
    """
    named = os.environ.get("K8S_RDMA_CNI")
    candidates = [Path(named)] if named else _candidates()
    return next((path.absolute() for path in candidates if os.access(path, os.X_OK)), None)


def _candidates() -> Iterator[Path]:
    yield from _of_this_package()
    yield CHECKOUT / "build" / PROGRAM
    if (on_path := shutil.which(PROGRAM)) and Path(on_path).is_absolute():
        yield Path(on_path)
    yield Path("/opt/cni/bin") / PROGRAM


def _of_this_package() -> list[Path]:
    """What the wheel brought, wherever it was installed; nothing in an editable installation."""
    try:
        files = distribution(DISTRIBUTION).files or []
    except PackageNotFoundError:
        return []
    return [Path(file.locate()) for file in files if file.name == PROGRAM]


def require_program() -> Path:
    """The executable; K8sRdmaError says what to do where there is none."""
    program = find_program()
    if program is None:
        msg = f"{PROGRAM} was not found: build it with `make cni`, or name it in K8S_RDMA_CNI"
        raise K8sRdmaError(msg)
    return program


def left_for(program: Path, files: Sequence[str]) -> str:
    """Why the executable has to stay where these files name it: without it no pod of the node would start."""
    return f"left: {program}, which {', '.join(files)} calls; take it out there, and run this again"


class InstalledProgram:
    """The executable in a directory of plugins, by both its names.

    Each name is replaced in one moment: a runtime that starts the plugin meanwhile starts the old or the new.
    """

    def __init__(self, directory: NodeDirectory) -> None:
        """Nothing is looked at yet."""
        self._directory = directory
        self.paths = (directory.path / PROGRAM, directory.path / LEGACY_PLUGIN)

    def exists(self) -> bool:
        """Report whether a runtime could start it, this one or an older one."""
        return os.access(self.paths[0], os.X_OK)

    def install(self, program: Path) -> bool:
        """Put it there; whether it was not there, or another. K8sRdmaError when that fails."""
        try:
            return self._install(program)
        except OSError as error:
            msg = f"{PROGRAM} cannot be installed in {self._directory.path}: {error.strerror}"
            raise K8sRdmaError(msg, details=str(error)) from error

    def remove(self) -> bool:
        """Take it away, and the other name where it is ours; whether it was there. K8sRdmaError."""
        try:
            if self._linked():
                self._directory.remove(LEGACY_PLUGIN)
            self._directory.draft(LEGACY_PLUGIN).unlink(missing_ok=True)
            return self._directory.remove(PROGRAM)
        except OSError as error:
            msg = f"{PROGRAM} cannot be removed from {self._directory.path}: {error.strerror}"
            raise K8sRdmaError(msg, details=str(error)) from error

    def _install(self, program: Path) -> bool:
        installed = self.paths[0]
        differs = not self.exists() or installed.is_symlink()
        if differs := differs or not _is_identical(program, installed):
            self._directory.copy(program, PROGRAM, mode=0o755)
        if linked := not self._linked():
            self._directory.link(LEGACY_PLUGIN, PROGRAM)
        return differs or linked

    def _linked(self) -> bool:
        legacy = self.paths[1]
        return legacy.is_symlink() and legacy.readlink() == Path(PROGRAM)


def _is_identical(program: Path, installed: Path) -> bool:
    if program.samefile(installed):
        return True
    return installed.stat().st_mode & 0o777 == 0o755 and filecmp.cmp(program, installed, shallow=False)
