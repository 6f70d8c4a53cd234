"""Modes of resources, a module for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.config.devices import (
    DevicePluginConfig,
    ExactResource,
    ExclusiveResource,
    MountResource,
    Resource,
)
from k8s_rdma.core.devices.pod_devices import shared_resource
from k8s_rdma.deviceplugin.mode import Mode, PoolMembers
from k8s_rdma.deviceplugin.modes.counted import MountMode, SharedMode, SlotsMode
from k8s_rdma.deviceplugin.modes.exclusive import ExclusiveMode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from k8s_rdma.core.devices.rdma_devices import DeviceInventory


def mode_of(resource: Resource, members: PoolMembers | None = None) -> Mode:
    """Build the mode of a resource. members: of all exclusive resources; by default of this one alone."""
    match resource:
        case ExactResource():
            return SlotsMode(resource.name, resource.count, resource.max_per_container)
        case MountResource():
            return MountMode(resource)
        case ExclusiveResource():
            return ExclusiveMode(resource, members or PoolMembers([resource.pool()]))
        case _:
            return SharedMode(resource)


def modes_of(config: DevicePluginConfig) -> tuple[Mode, ...]:
    """Build the modes of all resources for kubelet, in the order of `DevicePluginConfig.resource_names`."""
    members = PoolMembers(config.pools())
    shares = (
        SlotsMode(shared_resource(resource.name), resource.share)
        for resource in config.resources
        if isinstance(resource, ExclusiveResource) and resource.share
    )
    return (*(mode_of(resource, members) for resource in config.resources), *shares)


def to_publish(modes: Iterable[Mode], inventory: DeviceInventory) -> Mapping[str, tuple[str, ...]]:
    """Return the RDMA devices of each shared resource for which the agent writes a CDI specification."""
    return {
        mode.resource: mode.to_publish(inventory)
        for mode in modes
        if isinstance(mode, SharedMode) and mode.by_cdi
    }
