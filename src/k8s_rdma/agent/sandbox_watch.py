"""Notices that the namespace of an attachment vanished, by its file."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.linux.changes import Deletions

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from k8s_rdma.agent.node import Node

_log = structlog.get_logger()

MOST_PLACES = 1024
"""The namespaces whose files are remembered: to name those of 25 takes as long as to move a VF."""


class SandboxWatch:
    """Watches the directories of receipts' namespaces; used on the loop's thread."""

    def __init__(self, *, node: Node, on_host: Callable[[str], Path], vanished: Callable[[], None]) -> None:
        """on_host: translates a namespace's path for this process. vanished: called when one is gone."""
        self._node = node
        self._place = lru_cache(MOST_PLACES)(partial(_place, on_host))
        self._vanished = vanished
        self._deletions: Deletions | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to watch; if other programs of root have all inotify instances, only the check remains."""
        try:
            self._deletions = Deletions()
        except OSError as error:
            _log.warning("sandboxes_polled", error=error.strerror)
            return
        loop.add_reader(self._deletions, self._notified, self._deletions)
        self.follow()

    def stop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Stop watching."""
        if self._deletions is not None:
            loop.remove_reader(self._deletions)
            self._deletions.close()

    def follow(self) -> None:
        """Watch the directories of all current receipts; to be called when there is a new one."""
        directories = {directory for _, directory in self._places()}
        if self._deletions is not None and self._deletions.watch(directories):
            self._vanished()  # perhaps before it was watched

    def _notified(self, deletions: Deletions) -> None:
        deleted = deletions.drain()
        if deleted is None or any(file in deleted for file, _ in self._places()):
            self._vanished()

    def _places(self) -> Iterator[tuple[Path, Path]]:
        """The files of current receipts' namespaces, each with its directory."""
        return (self._place(receipt.netns.path) for receipt in self._node.ledger.receipts.values())


def _place(on_host: Callable[[str], Path], netns: str) -> tuple[Path, Path]:
    file = on_host(netns)
    return file, file.parent
