"""Admission of pods: the device manager allocates devices before a pod starts and prepares each container.

Source: `devicesToAllocate` in `pkg/kubelet/cm/devicemanager/manager.go`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random

from k8s_rdma.core.devices.pod_devices import AllocateResponse, Choice, DeviceSpec, Mount
from k8s_rdma_demo.kubelet.plugins import ListedDevices, PluginClient, PluginError
from k8s_rdma_demo.kubelet.pods import (
    AdmissionError,
    ContainerKind,
    DeviceAllocation,
    DeviceAllocations,
    DeviceContainer,
    DevicePod,
    PanicError,
    PreparationError,
)

_NO_NUMA_NODE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A container's request for devices of a resource.

    reusable: devices of the pod's earlier init containers. in_use: devices of all containers.
    """

    resource: str
    size: int
    reusable: frozenset[str]
    in_use: frozenset[str]


async def select_devices(
    need: Need, listed: ListedDevices, plugin: PluginClient, random: Random
) -> tuple[str, ...]:
    """Select an init container's devices, then those the plugin prefers, then any; AdmissionError."""
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
        chosen += [device for device in dict.fromkeys(preferred) if device in available - set(chosen)][
            :missing
        ]
    remaining = shuffled(available - set(chosen), random)
    return tuple(chosen + remaining[: need.size - len(chosen)])


def shuffled(ids: Iterable[str], random: Random) -> list[str]:
    """Shuffle the ids; the same random state gives the same order."""
    drawn = sorted(ids)
    random.shuffle(drawn)
    return drawn


@dataclass(slots=True, kw_only=True)
class Admission:
    """Admits one pod after the other, like kubelet's main loop. save: called after an allocation."""

    allocations: DeviceAllocations
    listed: Mapping[str, ListedDevices]
    plugins: Mapping[str, PluginClient]
    random: Random
    save: Callable[[], None]
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def admit(self, pod: DevicePod, running: frozenset[str]) -> None:
        """Admit a pod, as `DeviceManager.admit` does."""
        async with self._turn:
            reusable: dict[str, set[str]] = {}
            for container in pod.containers:
                if container.name not in running:
                    await self._allocate(pod, container, reusable)
                self._reuse(pod, container, reusable)

    async def prepare(self, pod: DevicePod, container: DeviceContainer) -> AllocateResponse:
        """Prepare a container, as `DeviceManager.prepare` does."""
        for resource in self._plugin_limits(container):
            await self._pre_start(pod, container, resource)
        return merged(
            allocation.response
            for allocation in self.allocations.of_container(pod.uid, container.name).values()
        )

    def _plugin_limits(self, container: DeviceContainer) -> dict[str, int]:
        """Return the limits of plugins' resources, stopped plugins included."""
        plugins = set(self.listed) | self.allocations.resources()
        return {name: size for name, size in container.limits.items() if size and name in plugins}

    async def _allocate(
        self, pod: DevicePod, container: DeviceContainer, reusable: Mapping[str, set[str]]
    ) -> None:
        for resource, size in self._plugin_limits(container).items():
            self._check(pod, container, resource, size)
            if self.allocations.get(pod.uid, container.name, resource) is not None:
                continue
            need = Need(
                resource=resource,
                size=size,
                reusable=frozenset(reusable.get(resource, ())),
                in_use=frozenset(self.allocations.in_use(resource)),
            )
            plugin = self._plugin(resource)
            ids = await select_devices(need, self.listed[resource], plugin, self.random)
            try:
                response = await plugin.allocate(ids)
            except PluginError as error:
                raise AdmissionError(error.message) from error
            allocation = DeviceAllocation(ids=ids, numa=self._by_numa_node(resource, ids), response=response)
            self.allocations.insert(pod.uid, container.name, resource, allocation)
            self.save()

    def _check(self, pod: DevicePod, container: DeviceContainer, resource: str, size: int) -> None:
        allocation = self.allocations.get(pod.uid, container.name, resource)
        if allocation is not None and len(allocation.ids) != size:
            raise AdmissionError(
                f'pod "{pod.uid}" container "{container.name}" changed request for resource "{resource}" '
                f"from {len(allocation.ids)} to {size}"
            )
        if resource not in self.listed:
            raise AdmissionError(f"cannot allocate unregistered device {resource}")
        healthy = self.listed[resource].healthy
        if not healthy:
            raise AdmissionError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        if allocation is not None and not healthy.issuperset(allocation.ids):
            raise AdmissionError(
                "previously allocated devices are no longer healthy; cannot allocate unhealthy devices "
                f"{resource}"
            )

    def _plugin(self, resource: str) -> PluginClient:
        if resource not in self.plugins:
            raise AdmissionError(f"endpoint {resource} has been stopped")
        return self.plugins[resource]

    def _by_numa_node(self, resource: str, ids: tuple[str, ...]) -> dict[int, tuple[str, ...]]:
        """Group devices by NUMA node; PanicError for one listed no more, as of kubelet 1.36, unlike 1.28."""
        nodes: dict[int, tuple[str, ...]] = {}
        for device_id in ids:
            device = self.listed[resource].devices.get(device_id)
            if device is None:
                raise PanicError(
                    f"{device_id} of {resource} vanished from ListAndWatch while it was allocated"
                )
            for node in device.numa_nodes or (_NO_NUMA_NODE,):
                nodes[node] = (*nodes.get(node, ()), device_id)
        return nodes

    def _reuse(self, pod: DevicePod, container: DeviceContainer, reusable: dict[str, set[str]]) -> None:
        """Leave the devices of an init container that runs to its end to those that follow."""
        for resource, allocation in self.allocations.of_container(pod.uid, container.name).items():
            if container.kind is ContainerKind.INIT:
                reusable.setdefault(resource, set()).update(allocation.ids)
            else:
                reusable.get(resource, set()).difference_update(allocation.ids)

    async def _pre_start(self, pod: DevicePod, container: DeviceContainer, resource: str) -> None:
        if resource not in self.listed:
            raise PreparationError(f"endpoint not found in cache for a registered resource: {resource}")
        if not self.listed[resource].options.pre_start_required:
            return
        allocation = self.allocations.get(pod.uid, container.name, resource)
        if allocation is None:
            raise PreparationError(
                f"no devices found allocated in local cache for pod {pod.uid}, container {container.name}, "
                f"resource {resource}"
            )
        try:
            await self._plugin(resource).pre_start(allocation.ids)
        except (PluginError, AdmissionError) as error:
            message = f"device plugin PreStartContainer rpc failed with err: {error}"
            raise PreparationError(message) from error


def merged(parts: Iterable[AllocateResponse]) -> AllocateResponse:
    """Merge the plugins' responses for a container; of contradicting entries the first one wins."""
    envs: dict[str, str] = {}
    annotations: dict[str, str] = {}
    devices: dict[str, DeviceSpec] = {}
    mounts: dict[str, Mount] = {}
    cdi_devices: dict[str, None] = {}
    for part in parts:
        envs = {**part.envs, **envs}
        annotations = {**part.annotations, **annotations}
        devices = {entry.path: entry for entry in part.devices} | devices
        mounts = {mount.path: mount for mount in part.mounts} | mounts
        cdi_devices |= dict.fromkeys(part.cdi_devices)
    return AllocateResponse(
        envs=envs,
        annotations=annotations,
        devices=tuple(devices.values()),
        mounts=tuple(mounts.values()),
        cdi_devices=tuple(cdi_devices),
    )
