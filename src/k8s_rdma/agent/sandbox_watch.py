"""Tells when a sandbox that has something of ours vanished: its namespace's file was deleted.

The runtime's DEL normally comes before. Where it does not, nothing else would tell of a namespace without
a VF in it, and of one with VFs only what becomes of those. The kernel tells nothing of files in /proc; that
such a namespace is gone is found by the check that comes now and then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.linux.inotify import Deletions

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from pathlib import Path

    from k8s_rdma.agent.node import Node


class SandboxWatch:
    """Watches the directories in which namespaces of receipts are; used on the loop's thread."""

    def __init__(self, *, node: Node, on_host: Callable[[str], Path], vanished: Callable[[], None]) -> None:
        """on_host: where a namespace's path leads from here. vanished: called when one with a receipt did."""
        self._node = node
        self._on_host = on_host
        self._vanished = vanished
        self._deletions = Deletions()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watch from now on."""
        loop.add_reader(self._deletions, self._told)
        self.follow()

    def stop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watch nothing any more."""
        loop.remove_reader(self._deletions)
        self._deletions.close()

    def follow(self) -> None:
        """Watch what receipts of now are about; to be called when there is a new one."""
        if self._deletions.watch({path.parent for path in self._paths()}):
            self._vanished()  # perhaps before it was watched

    def _told(self) -> None:
        gone = self._deletions.taken()
        if gone is None or not gone.isdisjoint(self._paths()):
            self._vanished()

    def _paths(self) -> set[Path]:
        return {self._on_host(receipt.netns.path) for receipt in self._node.ledger.receipts.values()}
