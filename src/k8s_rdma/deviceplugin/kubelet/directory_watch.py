"""Tells when there may be another kubelet, or a socket of ours no more."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.linux.inotify import DirectoryChanges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import NoReturn

_log = structlog.get_logger()

LOOK_S = 1.0
"""Between two looks when nobody tells of anything: a mount over a directory comes without an event, and the
kernel gives each user so many watches and no more."""


class KubeletWatch:
    """Wakes others whenever something came to or went from kubelet's directory, and once a second."""

    def __init__(self, directory: Path, wake: Callable[[], None]) -> None:
        self._directory = directory
        self._wake = wake
        self._told_polled = False

    async def run(self) -> NoReturn:
        """Watch until cancelled. K8sRdmaError when the directory can never be seen again."""
        with self._told():
            while True:
                self._check()
                self._wake()
                await asyncio.sleep(LOOK_S)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Be told by the kernel within the block, if it has a watch to give."""
        try:
            stirrings = DirectoryChanges()
        except OSError as error:
            self._polled(error)
            yield
            return
        loop = asyncio.get_running_loop()

        def stirred() -> None:
            stirrings.forget()
            self._watch(stirrings)
            self._wake()

        with stirrings:
            self._watch(stirrings)
            loop.add_reader(stirrings, stirred)
            try:
                yield
            finally:
                loop.remove_reader(stirrings)

    def _watch(self, stirrings: DirectoryChanges) -> None:
        """The parent, too: it tells of a directory that is made again."""
        try:
            stirrings.watch((self._directory, self._directory.parent))
        except OSError as error:
            self._polled(error)

    def _polled(self, error: OSError) -> None:
        if not self._told_polled:
            _log.warning("kubelet_dir_polled", directory=str(self._directory), error=error.strerror)
        self._told_polled = True

    def _check(self) -> None:
        """A directory that was mounted into a container stays there when the host's is made anew."""
        try:
            links = self._directory.stat().st_nlink
        except OSError:
            return
        if not links:
            raise K8sRdmaError(
                f"kubeletDir {self._directory}: removed from the host while it is mounted here; start again"
            )
