"""Devices that the agent has allocated to pods, by its report."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from k8s_rdma.core.devices.rdma_devices import AllocatedDevice
from k8s_rdma.state_reader import follow_agent

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import NoReturn

    from k8s_rdma.wire.rest import NodeReport
    from k8s_rdma.wire.state import Counters


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReport:
    """Of one report.

    allocated: in no order; the name is empty where the agent does not know it. pfs: addresses of those whose
    VFs it gives, and sets up as it does. held_slots: CDI devices of slots that attachments hold.
    """

    allocated: tuple[AllocatedDevice, ...] = ()
    pfs: frozenset[str] = frozenset()
    held_slots: frozenset[str] = frozenset()


def read_report(report: NodeReport) -> AgentReport:
    """Devices in a report."""
    return AgentReport(
        allocated=tuple(
            AllocatedDevice(
                name=interface.rdma_device,
                pci=interface.pci,
                pf=interface.pf,
                vf=interface.vf,
                pod_uid=allocation.pod.uid,
                pool=interface.pool,
            )
            for allocation in report.allocations
            for interface in allocation.interfaces
        ),
        pfs=frozenset(pf.pci for pf in report.pfs),
        held_slots=frozenset(slot for allocation in report.allocations for slot in allocation.slots),
    )


class AgentLink:
    """What the agent told last, and since when it is silent; `run` keeps it so. A `state_reader.StateReader`.

    report: None while it never told anything. silent_since: by `now`; None while it tells.
    """

    def __init__(self, socket: Path, *, changed: Callable[[], None], now: Callable[[], float]) -> None:
        """changed: called when something is new, in the event loop. now: seconds of a monotonic clock."""
        self._socket = socket
        self._changed = changed
        self._now = now
        self._tried = asyncio.Event()
        self.report: AgentReport | None = None
        self.silent_since: float | None = now()

    async def run(self) -> NoReturn:
        """Follow the agent, again and again, until cancelled."""
        await follow_agent(self._socket, self)

    async def tried(self) -> None:
        """Return once it has told something, or cannot be reached."""
        await self._tried.wait()

    def reported(self, report: NodeReport) -> None:
        """Keep what it says of devices."""
        parsed = read_report(report)
        if (
            report.unreadable and self.report is not None
        ):  # a PF that the agent cannot look at is its all the same
            parsed = replace(parsed, pfs=parsed.pfs | self.report.pfs)
        is_new = self.silent_since is not None or parsed != self.report
        self.report, self.silent_since = parsed, None
        self._tried.set()
        if is_new:
            self._changed()

    def connected(self, sample: Callable[[], None]) -> None:
        """Nothing more is asked of it."""

    def counted(self, counters: Counters) -> None:
        """Nobody asked."""

    def disconnected(self) -> None:
        """From now on what it told last may not be so any more."""
        if self.silent_since is None:
            self.silent_since = self._now()
            self._changed()

    async def away(self, why: str) -> None:  # noqa: ARG002
        """It cannot be reached."""
        self._tried.set()
