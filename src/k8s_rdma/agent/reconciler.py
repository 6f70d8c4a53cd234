"""The agent's reconciler: scans again after a change, ends attachments that no call will end, restores caps.

The runtime's DEL normally comes first. If it does not, no event reports the end of a namespace without
VFs, and of one with VFs only the VFs' return. The kernel has no notification for files in /proc; the periodic
check finds that such a namespace is gone.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.core.backoff import Backoff
from k8s_rdma.process import wait_for_first

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from k8s_rdma.agent.cdi_specs import CdiSpecs
    from k8s_rdma.agent.cni.service import CniCommands
    from k8s_rdma.agent.report import Reporter

_log = structlog.get_logger()

SETTLE_S = 0.5
"""Hardware changes come in bursts, most of them the agent's own: one scan follows each burst, late enough not
to delay the next call of the burst."""

REST_FACTOR = 10
"""The pause before a scan, in durations of the last one: a scan holds the kernel's RTNL lock for 1-2 ms a VF
on some drivers, and on a busy node, where links of other pods come and go, changes do not end."""

QUIET_S = 5.0
"""The longest wait of a due scan for a moment without calls."""

RECONCILE_S = 10.0
"""The interval of checks for vanished sandboxes (each namespace's file, no netlink), and of retries for
attachments that could not be ended."""
FIRST_RETRY_S = 1.0

LAST_RETRY_S = 30.0
"""A failed or incomplete scan is repeated without a change, too: the end of its cause may go unnoticed."""


class Reconciler:
    """Keeps observation and ledger up to date; the kernel is not polled while all is well.

    hardware_changed: to be set, on the loop's thread, when something observable changed.
    sandbox_vanished: to be set there when a sandbox with a receipt may have vanished.
    """

    def __init__(
        self,
        *,
        commands: CniCommands,
        specifications: CdiSpecs,
        reporter: Reporter,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        reconcile_s: float = RECONCILE_S,
    ) -> None:
        """Wait for `recover`.

        specifications: restored after each scan, since device nodes may change with the hardware.
        pause: as `asyncio.sleep`. reconcile_s: see `RECONCILE_S`.
        """
        self._node = specifications.node
        self._commands = commands
        self._worker = specifications.worker
        self._reporter = reporter
        self._specifications = specifications
        self._pause = pause
        self._reconcile_s = reconcile_s
        self._backoff = Backoff(FIRST_RETRY_S, LAST_RETRY_S)
        self._retry_s = FIRST_RETRY_S
        self.hardware_changed = asyncio.Event()
        self.sandbox_vanished = asyncio.Event()
        self._retry = asyncio.Event()

    async def recover(self) -> None:
        """Undo or complete calls that a crash or a reboot interrupted, before any socket is served."""
        if await self._commands.delete.reconcile():
            await self._worker.run(self._node.refresh)
        await self._commands.caps.restore()
        await self._specifications.restore()

    async def run(self) -> None:
        """Reconcile until cancelled.

        Attachments of vanished sandboxes are ended at once, also during the pause before a scan; and no scan
        waits for an attachment to end, as other plugins may take their time.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._scan_forever())
            for cause in (self.sandbox_vanished, self._retry):
                tasks.create_task(self._end_after(cause))

    async def _end_after(self, cause: asyncio.Event) -> None:
        """End the attachments that no call will end, whenever there is a cause."""
        while True:
            await cause.wait()
            cause.clear()
            if await self._commands.delete.reconcile():
                await self._reporter.publish()

    async def _scan_forever(self) -> None:
        while True:
            changed = await self._changed_within(self._patience_s())
            if changed:
                await self._pause(max(SETTLE_S, REST_FACTOR * self._node.scanner.last_s))
            due = changed or self._node.scanner.incomplete
            if due:
                await self._scan()
                await self._reporter.publish()
            elif await self._worker.run(self._node.review_failures):
                await self._reporter.publish()
            else:
                await self._reporter.publish_problems()
            self._retry.set()

    def _patience_s(self) -> float:
        return self._retry_s if self._node.scanner.incomplete else self._reconcile_s

    async def _changed_within(self, timeout_s: float) -> bool:
        await wait_for_first(self.hardware_changed.wait(), self._pause(timeout_s))
        return self.hardware_changed.is_set()

    async def _scan(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(QUIET_S):
                await self._commands.locks.idle()
        self.hardware_changed.clear()
        await self._worker.run(self._look)
        scanner = self._node.scanner
        if scanner.incomplete:
            self._retry_s = self._backoff.fail()
            unreadable = [f"{item.subject}: {item.why}" for item in self._node.hardware.unreadable]
            _log.warning("observe_failed", error=scanner.error, unreadable=unreadable)
        else:
            self._backoff.reset()
            self._retry_s = FIRST_RETRY_S

    def _look(self) -> None:
        """Scan the hardware, and restore the specifications that depend on it; on the worker."""
        self._node.refresh()
        self._specifications.restore_files()
