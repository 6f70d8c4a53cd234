"""Link to the agent that has it write the CDI specifications of shared resources (`wire.resource_names`)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.core.devices.pod_devices import shared_device
from k8s_rdma.core.devices.rdma_devices import CharacterDevice, DeviceInventory
from k8s_rdma.deviceplugin.modes import to_publish
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.resource_names import MAX_LINE_BYTES, Declared, Written, decode_written, encode_line

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter, TimerHandle
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from k8s_rdma.deviceplugin.mode import Mode
    from k8s_rdma.deviceplugin.resource import InventorySource

_log = structlog.get_logger()

GRACE_S = 10.0
"""Time for which specifications count after the agent is gone: it keeps them when it restarts."""

ANSWER_S = 10.0
"""Time for an answer; the agent reads a few files and writes one."""

FIRST_ANSWER_S = 2.0
"""Time at the start without an offer, so that kubelet does not see unhealthy devices first."""

RETRY_S = 1.0
"""Delay until the agent is tried again, or asked again for a specification that it could not write."""


class SharedLink:
    """The inventory with the CDI devices of shared resources that the agent has written.

    `run` keeps a connection to the agent: a specification counts while it lasts. Without a resource that is
    shared by CDI nothing is done. A `resource.InventorySource`.
    """

    def __init__(
        self,
        socket: Path,
        devices: InventorySource,
        modes: Sequence[Mode],
        *,
        changed: Callable[[], None],
        grace_s: float = GRACE_S,
    ) -> None:
        """Declare the shared resources of modes. changed: called when the written specifications change."""
        self._socket = socket
        self._devices = devices
        self._modes = modes
        self._changed = changed
        self._grace_s = grace_s
        self._inventory = self._base = DeviceInventory()
        self._published: frozenset[str] = frozenset()
        self._desired = to_publish(modes, self._base)
        self._nodes: frozenset[CharacterDevice] = frozenset()
        self._desired_changed = asyncio.Event()
        self._attempted = asyncio.Event()
        self._expiry: TimerHandle | None = None
        self._failed: Mapping[str, str] = {}
        self._problem = ""

    @property
    def inventory(self) -> DeviceInventory:
        """Current inventory; the same object while nothing differs."""
        if self._devices.inventory is not self._base or self._inventory.published != self._published:
            self._base = self._devices.inventory
            self._inventory = replace(self._base, published=self._published)
        return self._inventory

    def update(self) -> None:
        """Declare again if devices or their nodes have changed; the agent then reads the nodes again."""
        inventory = self._devices.inventory
        desired = to_publish(self._modes, inventory)
        nodes = frozenset(
            node for names in desired.values() for name in names for node in inventory.devices[name].nodes
        )
        if (desired, nodes) != (self._desired, self._nodes):
            self._desired, self._nodes = desired, nodes
            self._desired_changed.set()

    async def wait_for_attempt(self) -> None:
        """Return once the agent has answered or cannot be reached, or after `FIRST_ANSWER_S`."""
        if self._desired:
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_ANSWER_S):
                    await self._attempted.wait()

    async def run(self) -> None:
        """Keep the declaration up to date until cancelled."""
        try:
            while self._desired:
                try:
                    await self._declare()
                except (OSError, EOFError, ValueError, TimeoutError, MalformedError) as error:
                    self._disconnected(error)
                await asyncio.sleep(RETRY_S)
        finally:
            self._stop_expiry()

    async def _declare(self) -> None:
        """Declare on one connection until it fails."""
        incoming, writer = await asyncio.open_unix_connection(self._socket, limit=MAX_LINE_BYTES)
        try:
            while True:
                self._desired_changed.clear()
                self._answered(await _call(incoming, writer, Declared(resources=dict(self._desired))))
                await self._wait_for_change(incoming)
        finally:
            writer.close()

    async def _wait_for_change(self, incoming: StreamReader) -> None:
        """Return when a declaration is due; EOFError when the agent closes the connection."""
        ended = asyncio.ensure_future(incoming.read(1))
        change = asyncio.ensure_future(self._desired_changed.wait())
        try:
            await asyncio.wait(
                (ended, change),
                timeout=RETRY_S if self._failed else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if ended.done():
                raise EOFError(
                    "it ended the connection" if not ended.result() else "it sent data without a request"
                )
        finally:
            for task in (ended, change):
                task.cancel()
            await asyncio.gather(ended, change, return_exceptions=True)

    def _answered(self, written: Written) -> None:
        self._stop_expiry()
        if written.failed and written.failed != self._failed:
            _log.warning("shared_devices_not_written", resources=written.failed)
        self._failed = written.failed
        self._problem = ""
        self._publish(frozenset(map(shared_device, written.resources)))
        self._attempted.set()

    def _disconnected(self, error: Exception) -> None:
        self._attempted.set()
        problem = str(error) or "it does not answer"
        if problem != self._problem:
            _log.warning("shared_devices_untold", socket=str(self._socket), why=problem)
        self._problem = problem
        if self._expiry is None and self._published:
            self._expiry = asyncio.get_running_loop().call_later(self._grace_s, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        self._publish(frozenset())

    def _stop_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def _publish(self, published: frozenset[str]) -> None:
        if published != self._published:
            self._published = published
            self._changed()


async def _call(incoming: StreamReader, writer: StreamWriter, declared: Declared) -> Written:
    async with asyncio.timeout(ANSWER_S):
        writer.write(encode_line(declared))
        await writer.drain()
        line = await incoming.readline()
    if not line.endswith(b"\n"):
        raise EOFError("it ended the connection")
    return decode_written(line)
