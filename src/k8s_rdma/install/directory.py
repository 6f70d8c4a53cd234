"""A directory of the node that others read at any moment: files come, change and go there in one moment each.

What is being written has a name that neither a runtime nor anybody else takes for a file of its own, the same
each time, so that nothing piles up where a writer is killed. Blocking.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from k8s_rdma.errors import K8sRdmaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from typing import BinaryIO

LOCK_RETRY_S = 0.1


class NodeDirectory:
    """One of the node's directories; every OSError in here names its path."""

    def __init__(self, path: Path, leads: Callable[[Path], Path] | None = None) -> None:
        """Nothing is looked at yet. leads: where a path of ours leads for the node, if that is known."""
        self.path = path
        self._leads = leads

    def draft(self, name: str) -> Path:
        """Where a file is while it is being written."""
        return self.path / f".{name}.new"

    def names(self) -> list[str]:
        """Files and links, not directories, in the order of their bytes, as libcni sorts them."""
        with os.scandir(self.path) as entries:
            found = [entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)]
        return sorted(found, key=os.fsencode)

    def read(self, name: str) -> bytes | None:
        """What is in a file, or in what the node has where a link leads; None where there is none."""
        path = self.path / name
        try:
            return (self._leads(path) if self._leads else path).read_bytes()
        except FileNotFoundError:
            return None

    def explain_loss(self, name: str) -> str:
        """Where a link leads out of here, to what we may not see of the node; empty where it does not."""
        path = self.path / name
        if self._leads or not path.is_symlink():
            return ""
        aim = path.resolve()
        return "" if aim.parent == self.path.resolve() or aim.exists() else str(aim)

    def write(self, name: str, data: bytes, *, mode: int) -> None:
        """Put a file there, or in another's place, for good: it outlives a loss of power."""
        self._write(name, mode, lambda file: file.write(data))

    def copy(self, source: Path, name: str, *, mode: int) -> None:
        """As `write`; a program that runs goes on running what it was started from."""
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
        """Take a file away, and what was left of writing it; whether it was there."""
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
                    msg = f"{self.path}: another `k8s-rdma install-cni` is at work there; end that first"
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
    """As `NodeDirectory.locked`, of all of them."""
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
