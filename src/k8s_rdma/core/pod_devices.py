"""Which devices of device plugins kubelet has given to a pod."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerDevices:
    """Of one resource and one container; ids as the resource's plugin listed them."""

    container: str
    resource: str
    ids: tuple[str, ...]
    numa_nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodDevices:
    """Of all containers of a pod; kubelet's API knows no UIDs."""

    namespace: str
    name: str
    devices: tuple[ContainerDevices, ...] = ()

    def of(self, resource: str) -> tuple[str, ...]:
        """The devices of one resource, in order, none twice (an init container's go to a later one)."""
        ids = [each for held in self.devices if held.resource == resource for each in held.ids]
        return tuple(dict.fromkeys(ids))
