"""Which devices a container gets.

Source: `devicesToAllocate` in `pkg/kubelet/cm/devicemanager/manager.go`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.core.devices.device_plugin_api import Choice
from k8s_rdma.sim.kubelet.plugins import PluginError
from k8s_rdma.sim.kubelet.pods import AdmissionError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

    from k8s_rdma.sim.kubelet.plugins import Listed, PluginClient


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a container lacks of a resource.

    reusable: what an earlier init container of the pod had. in_use: what anybody has.
    """

    resource: str
    size: int
    reusable: frozenset[str]
    in_use: frozenset[str]


async def choose(need: Need, listed: Listed, plugin: PluginClient, random: Random) -> tuple[str, ...]:
    """Devices of an init container first, then what the plugin prefers, then any; AdmissionError."""
    chosen = shuffled(need.reusable, random)[: need.size]
    if len(chosen) == need.size:
        return tuple(chosen)
    available = listed.healthy - need.in_use
    missing = need.size - len(chosen)
    if len(available) < missing:
        raise AdmissionError(
            f"requested number of devices unavailable for {need.resource}. Requested: {missing}, "
            f"Available: {len(available)}"
        )
    if plugin.options.preferred_allocation:
        choice = Choice(
            available=tuple(shuffled(available | set(chosen), random)),
            must_include=tuple(shuffled(chosen, random)),
            size=need.size,
        )
        try:
            preferred = await plugin.preferred(choice)
        except PluginError as error:
            message = f"device plugin GetPreferredAllocation rpc failed with err: {error}"
            raise AdmissionError(message) from error
        chosen += [each for each in dict.fromkeys(preferred) if each in available - set(chosen)][:missing]
    rest = shuffled(available - set(chosen), random)
    return tuple(chosen + rest[: need.size - len(chosen)])


def shuffled(ids: Iterable[str], random: Random) -> list[str]:
    """In an order that is drawn, the same for the same draws."""
    drawn = sorted(ids)
    random.shuffle(drawn)
    return drawn
