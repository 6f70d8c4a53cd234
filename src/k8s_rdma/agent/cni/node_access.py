"""The node as the CNI handlers reach it: one call at a time for each container, all containers at once.

A DEL cancels a waiting ADD of its attachment.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from k8s_rdma.agent.cdi_specs import AttachmentSpecs
from k8s_rdma.agent.node import Node
from k8s_rdma.agent.pending_calls import PendingCalls
from k8s_rdma.agent.worker import Worker
from k8s_rdma.core.ledger import Attachment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from k8s_rdma.core.types import ContainerId


class ContainerLocks:
    """Locks by container; an unused lock is dropped."""

    def __init__(self) -> None:
        """Start without locks."""
        self._locks: dict[ContainerId, asyncio.Lock] = {}
        self._users: dict[ContainerId, int] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    def busy(self, container: ContainerId) -> bool:
        """Report whether a call holds or awaits the container's lock."""
        return container in self._locks

    async def idle(self) -> None:
        """Wait until no lock is in use."""
        await self._idle.wait()

    @asynccontextmanager
    async def all_alone(self, containers: Iterable[ContainerId]) -> AsyncIterator[None]:
        """Hold the locks of several containers."""
        async with AsyncExitStack() as locks:
            for container in containers:
                await locks.enter_async_context(self.alone(container))
            yield

    @asynccontextmanager
    async def alone(self, container: ContainerId) -> AsyncIterator[None]:
        """Hold the container's lock."""
        lock = self._locks.setdefault(container, asyncio.Lock())
        self._users[container] = self._users.get(container, 0) + 1
        self._idle.clear()
        try:
            async with lock:
                yield
        finally:
            self._users[container] -= 1
            if not self._users[container]:
                del self._users[container], self._locks[container]
            if not self._locks:
                self._idle.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAccess:
    """A node with its worker thread and the locks that order the calls of each container.

    device_specs: the CDI files of attachments; used on the worker's thread alone.
    """

    node: Node
    worker: Worker
    device_specs: AttachmentSpecs
    locks: ContainerLocks = field(default_factory=ContainerLocks)
    pending_adds: PendingCalls[Attachment] = field(default_factory=PendingCalls)
