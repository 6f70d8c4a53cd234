"""Events on the Node object: which devices are healthy or not any more, and why."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from k8s_rdma.core.ids import NodeName
from k8s_rdma.kube.api import about_node
from k8s_rdma.kube.event_recorder import Events, Outbox, Teller
from k8s_rdma.kube.time import REAL_TIME

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from k8s_rdma.config.devices import DevicePluginConfig
    from k8s_rdma.deviceplugin.telling.changes import HealthChange
    from k8s_rdma.kube.api import EventsApi
    from k8s_rdma.kube.time import Time

    Heard = Callable[[Sequence[HealthChange]], None]

COMPONENT = "k8s-rdma-device-plugin"
HEALTHY, UNHEALTHY = "RdmaDeviceHealthy", "RdmaDeviceUnhealthy"

APART = 4
"""So many devices have an event each; of more that change at once, as with their PF's link, one tells."""

REPEAT_S = 0.0
"""A flapping device is not heard of often (`telling`)."""


class NodeEvents:
    """Tells of health changes when there is time; nothing is told until `run`."""

    def __init__(self, api: EventsApi, node: NodeName, time: Time = REAL_TIME) -> None:
        self._outbox = Outbox(time)
        teller = Teller(component=COMPONENT, node=node, repeat_s=REPEAT_S)
        self._events = Events(api, self._outbox, teller=teller, now=time.now)
        self._about = about_node(node)

    async def run(self) -> None:
        """Write what is to be told, until cancelled."""
        await self._outbox.run()

    def heard(self, changes: Sequence[HealthChange]) -> None:
        """Have these told."""
        for healthy in (False, True):
            alike = [each for each in changes if each.healthy == healthy]
            if len(alike) > APART:
                self._tell(_several(alike), healthy=healthy)
            else:
                for each in alike:
                    self._tell(_sentence(each), healthy=healthy, part=each.device.name)

    def _tell(self, message: str, *, healthy: bool, part: str = "") -> None:
        reason = HEALTHY if healthy else UNHEALTHY
        self._events.tell(self._about, reason, message, warning=not healthy, part=part)


@asynccontextmanager
async def node_events(config: DevicePluginConfig) -> AsyncIterator[Heard]:
    """What is called with changes of health; events come of them where there are credentials and a name.

    MalformedError when the credentials are unusable.
    """
    if config.node is None or not (config.kubeconfig or config.in_cluster):
        yield lambda _: None
        return
    from k8s_rdma.kube.client import connect  # noqa: PLC0415  much of the process' memory

    client = connect(config.kubeconfig, in_cluster=config.in_cluster)
    try:
        events = NodeEvents(client, NodeName(config.node))
        writing = asyncio.create_task(events.run())
        try:
            yield events.heard
        finally:  # no task group: what ends the caller must come to it as it is
            writing.cancel()
            with suppress(asyncio.CancelledError):
                await writing
    finally:
        await client.close()


def _sentence(change: HealthChange) -> str:
    device = change.device
    where = f" (VF {device.vf} of {device.pf_name or device.pf})" if device.vf is not None else ""
    what = "is healthy again" if change.healthy else f"is unhealthy: {change.why}"
    times = f"; it changed {change.changes} times since it was told of last" if change.changes > 1 else ""
    return f"RDMA device {device.name}{where} {what}{times}"


def _several(changes: Sequence[HealthChange]) -> str:
    """Grouped by what is wrong, as that is mostly the same."""
    names: dict[str, list[str]] = {}
    for change in changes:
        names.setdefault(change.why, []).append(change.device.name)
    groups = (f"{', '.join(devices)}{f': {why}' if why else ''}" for why, devices in names.items())
    what = "are healthy again" if changes[0].healthy else "are unhealthy"
    return f"{len(changes)} RDMA devices {what}: {'; '.join(groups)}"
