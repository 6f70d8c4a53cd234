"""Notices that the namespace of an attachment vanished, by its file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from k8s_rdma.linux.changes import Deletions

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from pathlib import Path

    from k8s_rdma.agent.node import Node

_log = structlog.get_logger()


class SandboxWatch:
    """Watches the directories of receipts' namespaces; used on the loop's thread."""

    def __init__(self, *, node: Node, on_host: Callable[[str], Path], vanished: Callable[[], None]) -> None:
        """on_host: translates a namespace's path for this process. vanished: called when one is gone."""
        self._node = node
        self._on_host = on_host
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
        directories = {path.parent for path in self._paths()}
        if self._deletions is not None and self._deletions.watch(directories):
            self._vanished()  # perhaps before it was watched

    def _notified(self, deletions: Deletions) -> None:
        deleted = deletions.drain()
        if deleted is None or not deleted.isdisjoint(self._paths()):
            self._vanished()

    def _paths(self) -> set[Path]:
        return {self._on_host(receipt.netns.path) for receipt in self._node.ledger.receipts.values()}
