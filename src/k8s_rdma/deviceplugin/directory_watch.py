"""A watch of the directory of kubelet's sockets, by inotify."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

import structlog

from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.linux.changes import DirectoryChanges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


_log = structlog.get_logger()

CHECK_INTERVAL_S, POLL_INTERVAL_S = 5.0, 1.0
"""Interval of checks without an event, because a mount over a directory comes without one; and if there are
no events, because the kernel limits the watches of each user."""


class DirectoryWatch:
    """Watch of directories; it wakes its owner on each change of their entries, and now and then."""

    def __init__(self, directories: Sequence[Path], wake: Callable[[], None]) -> None:
        self._directories = directories
        self._wake = wake
        self._interval_s = CHECK_INTERVAL_S

    async def run(self) -> NoReturn:
        """Watch until cancelled. K8sRdmaError when a directory is lost for good."""
        with self._notified():
            while True:
                self._check()
                self._wake()
                await asyncio.sleep(self._interval_s)

    @contextmanager
    def _notified(self) -> Iterator[None]:
        """Get notifications from the kernel within the block, if it has a watch left."""
        try:
            changes = DirectoryChanges()
        except OSError as error:
            self._poll(error)
            yield
            return
        loop = asyncio.get_running_loop()

        def directory_changed() -> None:
            changes.forget()
            self._watch(changes)
            self._wake()

        with changes:
            self._watch(changes)
            loop.add_reader(changes, directory_changed)
            try:
                yield
            finally:
                loop.remove_reader(changes)

    def _watch(self, changes: DirectoryChanges) -> None:
        """Watch the directories and their parents, which show when a directory is created again."""
        try:
            changes.watch(path for directory in self._directories for path in (directory, directory.parent))
        except OSError as error:
            self._poll(error)

    def _poll(self, error: OSError) -> None:
        if self._interval_s != POLL_INTERVAL_S:
            directories = [str(directory) for directory in self._directories]
            _log.warning("directories_polled", directories=directories, error=error.strerror)
        self._interval_s = POLL_INTERVAL_S

    def _check(self) -> None:
        """Check that the directories are still the host's: a mounted one stays when that is replaced."""
        for directory in self._directories:
            with suppress(OSError):
                if not directory.stat().st_nlink:
                    msg = f"{directory}: removed from the host while it is mounted here; start again"
                    raise K8sRdmaError(msg)
