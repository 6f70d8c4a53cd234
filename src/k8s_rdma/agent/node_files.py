"""Small files of the node that others read: put there in one go, and removed again. Blocking."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from k8s_rdma.agent.plugins.host_files import below
from k8s_rdma.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_NAME_BYTES = 255
"""`NAME_MAX` of Linux' file systems."""


class NodeFiles:
    """By their paths on the node, whose root file system is at `host_root`.

    The last part of a path is taken as it is: no link there is followed.
    """

    def __init__(self, host_root: Path) -> None:
        """Nothing is looked at yet."""
        self._root = host_root

    def exists(self, path: PurePosixPath) -> bool:
        """Whether there is anything."""
        return self._here(path).exists()

    def holds(self, path: PurePosixPath, data: bytes) -> bool:
        """Whether it is a file with just this in it."""
        target = self._here(path)
        try:
            return target.is_file() and not target.is_symlink() and target.read_bytes() == data
        except OSError:
            return False

    def names(self, directory: PurePosixPath) -> list[str]:
        """What a directory holds, in order; nothing where there is none. KernelError when it is not known."""
        try:
            return sorted(path.name for path in self._here(directory).iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            msg = f"device files in {directory} cannot be looked at: {error.strerror}"
            raise KernelError(msg) from error

    def write(self, path: PurePosixPath, data: bytes) -> None:
        """Put a file there in one go, as its readers watch the directory; a reboot ends it anyway.

        KernelError names the file that cannot be written.
        """
        target = self._here(path)
        draft = target.with_name(f".{target.name[: MAX_NAME_BYTES - 5]}.new")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            draft.unlink(missing_ok=True)
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            draft.rename(target)
        except OSError as error:
            msg = f"device file {path}: cannot be written: {error.strerror}"
            raise KernelError(msg) from error

    def remove(self, paths: Iterable[PurePosixPath]) -> None:
        """Remove those that are there; all are tried, and one KernelError names those that cannot be."""
        problems = []
        for path in paths:
            try:
                self._here(path).unlink(missing_ok=True)
            except NotADirectoryError:
                continue  # so it is not there
            except OSError as error:
                problems.append(f"{path}: {error.strerror}")
        if problems:
            msg = f"device files cannot be removed: {'; '.join(problems)}"
            raise KernelError(msg)

    def _here(self, path: PurePosixPath) -> Path:
        """Where a path of the node is for us."""
        return below(self._root, Path(path.parent)) / path.name
