"""Files of the node, by their paths there: device specifications, and our executable. All calls block."""

from __future__ import annotations

import os
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from k8s_rdma.errors import KernelError
from k8s_rdma.linux.atomic_file import draft_of, write_file
from k8s_rdma.linux.host_root import HostRoot
from k8s_rdma.wire.conflist import PLUGIN

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path, PurePath


def find_executable(host: HostRoot, cni_path: str) -> str:
    """Find our executable in the node's directories of plugins; empty if it is missing."""
    paths = (PurePosixPath(directory, PLUGIN) for directory in cni_path.split(":") if directory)
    return next((str(path) for path in paths if host.exists(path)), "")


class HostFiles(HostRoot):
    """Reads and writes files by their paths on the node.

    A file that is a symbolic link is neither read nor written through: the link itself is replaced.
    """

    def holds(self, path: PurePosixPath, data: bytes) -> bool:
        """Report whether the path is a regular file with exactly this content."""
        target = self._own_path(path)
        try:
            return target.is_file() and not target.is_symlink() and target.read_bytes() == data
        except OSError:
            return False

    def names(self, directory: PurePath | str) -> list[str]:
        """List a directory as `HostRoot`. KernelError when it cannot be read."""
        try:
            return super().names(directory)
        except OSError as error:
            msg = f"device files in {directory} cannot be looked at: {error.strerror}"
            raise KernelError(msg) from error

    def write(self, path: PurePosixPath, data: bytes) -> None:
        """Write a file atomically, since its readers watch the directory; not synced: a reboot discards it.

        KernelError names the file that cannot be written.
        """
        try:
            write_file(self._own_path(path), data)
        except OSError as error:
            msg = f"device file {path}: cannot be written: {error.strerror}"
            raise KernelError(msg) from error

    def update(self, path: PurePosixPath, data: bytes) -> None:
        """Write a file unless it holds this already; KernelError as `write`."""
        if not self.holds(path, data):
            self.write(path, data)

    def read(self, path: PurePosixPath) -> bytes | None:
        """Read a regular file; None if it is missing. KernelError when it cannot be read."""
        target = self._own_path(path)
        try:
            return None if target.is_symlink() or not target.is_file() else target.read_bytes()
        except OSError as error:
            msg = f"device file {path}: cannot be read: {error.strerror}"
            raise KernelError(msg) from error

    def rewrite(self, path: PurePosixPath, data: bytes) -> None:
        """Write a file in place, because containers that have it mounted keep this very file.

        A shorter content than before is followed by spaces, so that no reader finds the end of the former
        one. A reader that finds part of the change reads again. A file that is not there is written as by
        `write`; KernelError likewise.
        """
        target = self._own_path(path)
        if target.is_symlink() or not target.is_file():
            self.write(path, data)
            return
        try:
            with os.fdopen(os.open(target, os.O_WRONLY | os.O_NOFOLLOW), "wb") as file:
                file.write(data.ljust(os.fstat(file.fileno()).st_size))
        except OSError as error:
            msg = f"device file {path}: cannot be written: {error.strerror}"
            raise KernelError(msg) from error

    def remove(self, paths: Iterable[PurePosixPath]) -> None:
        """Remove the files that exist, and their drafts, which a crash may have left.

        All are tried, and one KernelError names those that stay.
        """
        problems = []
        for path in paths:
            try:
                own_path = self._own_path(path)
                own_path.unlink(missing_ok=True)
                draft_of(own_path).unlink(missing_ok=True)
            except NotADirectoryError:
                continue  # so it is not there
            except OSError as error:
                problems.append(f"{path}: {error.strerror}")
        if problems:
            msg = f"device files cannot be removed: {'; '.join(problems)}"
            raise KernelError(msg)

    def _own_path(self, path: PurePosixPath) -> Path:
        """Translate a path of the node into one of this process."""
        return self.path_of(path.parent) / path.name
