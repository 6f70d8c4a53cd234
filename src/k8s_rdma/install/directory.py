"""The node's directories of plugins and networks, and the CNI executable in them.

Other programs read these directories at any moment, so each file appears, changes and disappears atomically.
A draft has a name that no runtime reads, the same each time, so that drafts do not pile up if a writer is
killed. Blocking.
"""

from __future__ import annotations

import fcntl
import filecmp
import os
import shutil
import time
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from k8s_rdma.config.bounded_files import read_found_file
from k8s_rdma.core.node_paths import CNI_BIN_DIR
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.wire.conflist import LEGACY_PLUGIN, PLUGIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

DISTRIBUTION = "k8s-rdma"
PROGRAM = PLUGIN

CHECKOUT = Path(__file__).parents[3]
"""Directory where `make cni` builds, if this package is part of a clone."""
LOCK_RETRY_S = 0.1
LOCK_WAIT_S = 2.0
"""Time that another writer of the network configuration or the executable may take."""


class NodeDirectory:
    """One of the node's directories; every OSError in here names its path."""

    def __init__(self, path: Path, leads: Callable[[Path], Path] | None = None) -> None:
        """Set the paths only. leads: translates our path to the node's, if that is known."""
        self.path = path
        self._leads = leads

    def draft(self, name: str) -> Path:
        """Return the path of a file while it is being written."""
        return self.path / f".{name}.new"

    def names(self) -> list[str]:
        """Return files and links, not directories, in the order of their bytes, as libcni sorts them."""
        with os.scandir(self.path) as entries:
            found = [entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)]
        return sorted(found, key=os.fsencode)

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or of the node's file behind a link, if it exists."""
        path = self.path / name
        try:
            return read_found_file(self._leads(path) if self._leads else path)
        except FileNotFoundError:
            return None

    def explain_loss(self, name: str) -> str:
        """Return the target of a link that leaves the directory to a place we cannot see; empty otherwise."""
        path = self.path / name
        if self._leads or not path.is_symlink():
            return ""
        aim = path.resolve()
        return "" if aim.parent == self.path.resolve() or aim.exists() else str(aim)

    def write(self, name: str, data: bytes, *, mode: int) -> None:
        """Put a file there, or in another's place, for good: it outlives a loss of power."""
        self._write(name, mode, lambda file: file.write(data))

    def copy(self, source: Path, name: str, *, mode: int) -> None:
        """Copy a file atomically; running programs keep the old one."""
        with source.open("rb") as data:
            self._write(name, mode, lambda file: shutil.copyfileobj(data, file))

    def link(self, name: str, target: str) -> None:
        """Put a symbolic link there."""
        draft = self.draft(name)
        draft.unlink(missing_ok=True)
        draft.symlink_to(target)
        draft.rename(self.path / name)
        self._sync()

    def remove(self, name: str) -> bool:
        """Remove a file, and its draft; report whether it was there."""
        self.draft(name).unlink(missing_ok=True)
        try:
            (self.path / name).unlink()
        except FileNotFoundError:
            return False
        self._sync()
        return True

    @contextmanager
    def locked(self, wait_s: float) -> Iterator[None]:
        """Be its only writer of ours within the block; the kernel ends that with the process.

        K8sRdmaError when another one is at work for so long.
        """
        with self._opened() as descriptor:
            end = time.monotonic() + wait_s
            while not _lock(descriptor):
                if time.monotonic() >= end:
                    msg = f"{self.path}: another `k8s-rdma install-cni` is running there; stop it first"
                    raise K8sRdmaError(msg)
                time.sleep(LOCK_RETRY_S)
            yield

    def _write(self, name: str, mode: int, fill: Callable[[BinaryIO], object]) -> None:
        draft = self.draft(name)
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                fill(file)
                file.flush()
                os.fchmod(descriptor, mode)
                os.fsync(descriptor)
            draft.rename(self.path / name)
        except OSError:
            with suppress(OSError):
                draft.unlink()
            raise
        self._sync()

    def _sync(self) -> None:
        with self._opened() as descriptor:
            os.fsync(descriptor)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


@contextmanager
def all_locked(directories: Iterable[NodeDirectory], wait_s: float) -> Iterator[None]:
    """Lock all directories, as `NodeDirectory.locked` does."""
    with ExitStack() as stack:
        for directory in directories:
            stack.enter_context(directory.locked(wait_s))
        yield


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class InstalledProgram:
    """The executable in a directory of plugins, by both its names.

    Each name is replaced in one moment: a runtime that starts the plugin meanwhile starts the old or the new.
    """

    def __init__(self, directory: NodeDirectory) -> None:
        """Set the paths only."""
        self._directory = directory
        self.paths = (directory.path / PROGRAM, directory.path / LEGACY_PLUGIN)

    def exists(self) -> bool:
        """Report whether an executable is there, of this version or an older one."""
        return os.access(self.paths[0], os.X_OK)

    def install(self, program: Path) -> bool:
        """Put it there; whether it was not there, or another. K8sRdmaError when that fails."""
        try:
            return self._install(program)
        except OSError as error:
            msg = f"{PROGRAM} cannot be installed in {self._directory.path}: {error.strerror}"
            raise K8sRdmaError(msg, details=str(error)) from error

    def remove(self) -> bool:
        """Remove it, and the other name if that is ours; report whether it was there. K8sRdmaError."""
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


def find_program() -> Path | None:
    """Find the executable: the one named in K8S_RDMA_CNI; else this package's own, one on PATH, the node's.

    Its own comes first, because a virtual environment need not be on PATH, and PATH may have an older one.
    The result does not depend on the current directory, which may be a stranger's.
    """
    named = os.environ.get("K8S_RDMA_CNI")
    candidates = [Path(named)] if named else _candidates()
    return next((path.absolute() for path in candidates if os.access(path, os.X_OK)), None)


def _candidates() -> Iterator[Path]:
    yield from _of_this_package()
    yield CHECKOUT / "build" / PROGRAM
    if (on_path := shutil.which(PROGRAM)) and Path(on_path).is_absolute():
        yield Path(on_path)
    yield Path(CNI_BIN_DIR) / PROGRAM


def _of_this_package() -> list[Path]:
    """Return executables in the installed wheel; empty in an editable installation."""
    try:
        files = distribution(DISTRIBUTION).files or []
    except PackageNotFoundError:
        return []
    return [Path(file.locate()) for file in files if file.name == PROGRAM]


def require_program() -> Path:
    """Return the executable; K8sRdmaError describes the remedy if it is missing."""
    program = find_program()
    if program is None:
        msg = f"{PROGRAM} was not found: build it with `make cni`, or name it in K8S_RDMA_CNI"
        raise K8sRdmaError(msg)
    return program


def left_for(program: Path, files: Sequence[str]) -> str:
    """Describe an executable that these files still name: without it no pod of the node would start."""
    return f"left: {program}, which {', '.join(files)} calls; take it out there, and run this again"
