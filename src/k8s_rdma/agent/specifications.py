"""What container runtimes are told of devices, kept true although nobody calls."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.agent.device_files import DeviceFiles
from k8s_rdma.agent.node import Node
from k8s_rdma.agent.shared_files import SharedFiles
from k8s_rdma.agent.worker import Worker
from k8s_rdma.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Callable

_log = structlog.get_logger()

DECLARED_SOON_S = 30.0
"""An agent that is started anew leaves what the one before published for so long: the device plugin connects
again within a second or so, and containers may be made meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Specifications:
    """Those of attachments and those that the device plugin declares; files are the worker's.

    alone: whether all files of ours in the directory are this agent's. What cannot be written or removed is
    logged: nobody must go without interfaces for it.
    """

    node: Node
    worker: Worker
    devices: DeviceFiles
    shared: SharedFiles
    alone: bool

    async def restore(self) -> None:
        """Have all be as they should be, with the device nodes of now."""
        if self.alone:
            await self._logged(lambda: self.devices.restore(self.node.ledger))
        await self._logged(self.shared.restore)

    async def run(self) -> None:
        """Once a plugin has had time to declare what it shares, remove what nobody declares."""
        await asyncio.sleep(DECLARED_SOON_S)
        if self.alone:
            await self._logged(self.shared.remove_undeclared)

    async def _logged(self, work: Callable[[], None]) -> None:
        try:
            await self.worker.run(work)
        except KernelError as error:
            _log.warning("device_files_not_restored", error=error.message)
