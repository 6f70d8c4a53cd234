"""Mode `mount`: `/dev/infiniband` for whoever asks, or what is in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.devices.rdma_devices import INFINIBAND, RDMA_CM, device_variables
from k8s_rdma.deviceplugin.mode import DeviceSpec, Given
from k8s_rdma.deviceplugin.modes.counted import Counted
from k8s_rdma.deviceplugin.modes.nodes import at_home, named, rdma_cm, specs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from k8s_rdma.config.devices import MountResource
    from k8s_rdma.core.devices.rdma_devices import DevicesSeen
    from k8s_rdma.deviceplugin.mode import Choice, OfferedDevice


class MountMode:
    """Healthy as long as there is anything to give."""

    prefers = False

    def __init__(self, config: MountResource) -> None:
        """As configured."""
        self.resource = config.name
        self._scope = config.scope
        self._hints = config.hints
        self._devices = Counted(config.name, config.count, config.most_per_container)

    def offer(self, seen: DevicesSeen) -> tuple[OfferedDevice, ...]:
        """All of them."""
        return self._devices.offer(self._unhealthy(seen))

    def allocate(self, ids: Sequence[str], seen: DevicesSeen) -> Given:
        """The directory with permissions `rwm`, or single character devices with `rw`."""
        self._devices.refuse_wrong(ids, self._unhealthy(seen))
        return Given(envs=self._variables(seen), devices=self._specs(seen))

    def prefer(self, choice: Choice, _seen: DevicesSeen) -> tuple[str, ...]:
        """Those of the lowest numbers."""
        return self._devices.prefer(choice)

    def _unhealthy(self, seen: DevicesSeen) -> str:
        match self._scope:
            case "directory":
                return "" if seen.directory else f"there is no {INFINIBAND}"
            case "rdma-cm-only":
                return "" if seen.rdma_cm else f"there is no {RDMA_CM}"
        return "" if any(each.nodes for each in at_home(seen)) else "no RDMA device has a character device"

    def _specs(self, seen: DevicesSeen) -> tuple[DeviceSpec, ...]:
        match self._scope:
            case "directory":
                return (DeviceSpec(path=INFINIBAND, permissions="rwm"),)
            case "rdma-cm-only":
                return rdma_cm(seen)
        return (*specs(at_home(seen)), *rdma_cm(seen))

    def _variables(self, seen: DevicesSeen) -> Mapping[str, str]:
        """Of single devices, and of the directory where hints are asked for: it has them all."""
        if self._scope == "rdma-cm-only" or (self._scope == "directory" and not self._hints):
            return {}
        return device_variables(
            self.resource, [named(each) for each in at_home(seen) if each.nodes], hints=self._hints
        )
