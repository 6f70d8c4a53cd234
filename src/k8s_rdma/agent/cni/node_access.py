"""The node as the CNI handlers reach it: one call at a time for each container, all containers at once.

An ADD that waits is cancelled by a DEL of its attachment.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from k8s_rdma.agent.cdi_specs import AttachmentSpecs
from k8s_rdma.agent.node import Node
from k8s_rdma.agent.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from k8s_rdma.core.ids import ContainerId
    from k8s_rdma.core.ledger import Attachment


class ContainerLocks:
    """Who is being worked on, and who waits for it; keeps nothing of those that are done."""

    def __init__(self) -> None:
        """Nobody is busy."""
        self._locks: dict[ContainerId, asyncio.Lock] = {}
        self._users: dict[ContainerId, int] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    def busy(self, container: ContainerId) -> bool:
        """Whether someone works on this container or waits to."""
        return container in self._locks

    async def idle(self) -> None:
        """Wait until nobody is worked on."""
        await self._idle.wait()

    @asynccontextmanager
    async def alone(self, container: ContainerId) -> AsyncIterator[None]:
        """Wait for this container's turn, and hold off others."""
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


@dataclass(eq=False, slots=True)
class PendingAdd:
    """An ADD that has not ended. cancelled: a DEL of its attachment has come since."""

    cancelled: bool = False


class PendingAdds:
    """ADDs from their arrival to their end, by attachment.

    The runtime may have given one up and called DEL while its executable still waits, or where nobody can see
    yet that it does not. An ADD that gave something after that DEL would have given it to nobody.
    """

    def __init__(self) -> None:
        """None is pending."""
        self._pending: dict[Attachment, list[PendingAdd]] = {}

    @contextmanager
    def register(self, attachment: Attachment) -> Iterator[PendingAdd]:
        """Have an ADD be pending for a while."""
        add = PendingAdd()
        self._pending.setdefault(attachment, []).append(add)
        try:
            yield add
        finally:
            self._pending[attachment].remove(add)
            if not self._pending[attachment]:
                del self._pending[attachment]

    def cancel(self, attachment: Attachment) -> None:
        """Have the pending ADDs of an attachment give nothing, and take back what they gave."""
        for add in self._pending.get(attachment, ()):
            add.cancelled = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAccess:
    """A node, and what orders its changes: the worker's thread, and the calls of each container.

    device_specs: CDI files of the devices that pods have; used on the worker's thread alone.
    """

    node: Node
    worker: Worker
    device_specs: AttachmentSpecs
    locks: ContainerLocks = field(default_factory=ContainerLocks)
    pending_adds: PendingAdds = field(default_factory=PendingAdds)
