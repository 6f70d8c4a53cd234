"""Keeps what is seen of the node's RDMA devices: the host's look and the agent's report, judged together."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

import structlog

from k8s_rdma.core.devices.rdma_devices import DevicesSeen
from k8s_rdma.deviceplugin.kubelet.published import Published
from k8s_rdma.deviceplugin.seeing.agent_link import AgentLink
from k8s_rdma.deviceplugin.seeing.health import Agent
from k8s_rdma.deviceplugin.seeing.watching import Host, Watching
from k8s_rdma.deviceplugin.telling.changes import Telling

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

    from k8s_rdma.config.devices import DevicePluginConfig
    from k8s_rdma.deviceplugin.seeing.watching import Looks
    from k8s_rdma.deviceplugin.telling.changes import HealthChange

_log = structlog.get_logger()

AGENT_S = 3.0
"""How long the first look waits for an agent that takes connections: else pods' devices would be missing."""

RETRY_S = 1.0
"""After a look that could not see everything."""

LATER_S = 0.5
"""After a change everything is looked at once more: a driver may set its port's state after its netdev's."""


class Looking:
    """What is seen now; inside the context it is kept up to date. All that blocks is done in a thread.

    heard: called in the event loop with each change of health that people are to be told of.
    """

    def __init__(
        self,
        config: DevicePluginConfig,
        *,
        host: Host | None = None,
        heard: Callable[[Sequence[HealthChange]], None] = lambda _: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing was seen. now: seconds of a monotonic clock."""
        self._run_dir = Path(config.run_dir)
        self._rescan_s = config.rescan_s or None
        self._host = host or Host()
        self._heard = heard
        self._now = now
        self._telling = Telling()
        self._looked_at = now()
        self._asked = False
        self._seen = Published(DevicesSeen())
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opened:
            loop = asyncio.get_running_loop()
            self._wake = asyncio.Event()

            def wake() -> None:
                loop.call_soon_threadsafe(self._wake.set)

            self._agent = AgentLink(self._run_dir / "state.sock", changed=self._wake.set, now=self._now)
            self._watching = opened.enter_context(Watching(self._host, changed=wake))
            self._thread = opened.enter_context(ThreadPoolExecutor(1, thread_name_prefix="looking"))
            tasks = await opened.enter_async_context(asyncio.TaskGroup())
            opened.callback(tasks.create_task(self._agent.run()).cancel)
            with suppress(TimeoutError):
                async with asyncio.timeout(AGENT_S):
                    await self._agent.tried()
            await self._look(anew=True)
            opened.callback(tasks.create_task(self._keep_looking()).cancel)
            self._open = opened.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    @property
    def seen(self) -> DevicesSeen:
        """What is seen now."""
        return self._seen.value

    async def other_than(self, known: DevicesSeen) -> DevicesSeen:
        """What is seen, as soon as it is another object than what is known."""
        return await self._seen.other_than(known)

    @property
    def succeeded(self) -> bool:
        """Whether the host was ever looked at; else it is unknown which devices there are."""
        return self._watching.succeeded

    @property
    def looks(self) -> Looks:
        """At the hardware so far."""
        return self._watching.looks

    @property
    def look_age_s(self) -> float:
        """Time since the last look at the hardware, for which there may have been no reason."""
        return self._now() - self._looked_at

    def look_again(self) -> None:
        """Look at everything, whether or not there is a sign of a change."""
        self._asked = True
        self._wake.set()

    @property
    def health_changes(self) -> Mapping[tuple[str, bool], int]:
        """How often each device became healthy, or not any more."""
        return self._telling.counts

    async def _keep_looking(self) -> NoReturn:
        rescan_at = self._after(self._rescan_s)
        later_at: float | None = None
        while True:
            await self._something(self._earliest(rescan_at, later_at))
            now = self._now()
            rescan, later = _is_due(rescan_at, now), _is_due(later_at, now)
            rescan_at = self._after(self._rescan_s) if rescan else rescan_at
            before = self.seen
            asked, self._asked = self._asked, False
            await self._look(anew=rescan or later or asked)
            later_at = None if later else later_at
            if self.seen is not before and not later:
                later_at = self._after(LATER_S)

    async def _look(self, *, anew: bool) -> None:
        self._wake.clear()
        agent = Agent(told=self._agent.told, silent_since=self._agent.silent_since)
        loop = asyncio.get_running_loop()
        before = self.looks
        seen = await loop.run_in_executor(
            self._thread, partial(self._watching.seen, agent, self._now(), anew=anew)
        )
        if self.looks != before:
            self._looked_at = self._now()
        self._log_unreadable(seen)
        self._seen.publish(seen)
        changes = self._telling.changes(seen, self._now())
        for change in changes:
            _log_change(change)
        if changes:
            self._heard(changes)

    def _log_unreadable(self, seen: DevicesSeen) -> None:
        new = [each for each in seen.unreadable if each not in self.seen.unreadable]
        for why in new:
            _log.warning("devices_unreadable", why=why)

    async def _something(self, until: float | None) -> None:
        """Wait for a sign of a change, or that time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None if until is None else max(0.0, until - self._now())):
                await self._wake.wait()

    def _earliest(self, *others: float | None) -> float | None:
        retry_at = self._after(RETRY_S if self._watching.due else None)
        times = (retry_at, self._watching.due_at(), self._telling.due_at(), *others)
        return min((each for each in times if each is not None), default=None)

    def _after(self, seconds: float | None) -> float | None:
        return None if seconds is None else self._now() + seconds


def _is_due(at: float | None, now: float) -> bool:
    return at is not None and at <= now


def _log_change(change: HealthChange) -> None:
    device = change.device
    where = {"device": device.name, "pf": device.pf_name or device.pf, "pci": device.pci}
    if change.healthy:
        _log.info("device_healthy", **where, changes=change.changes)
    else:
        _log.warning("device_unhealthy", **where, why=change.why, changes=change.changes)
