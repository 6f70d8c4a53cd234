"""The devices that kubelet gave to pods: slots, exclusive RDMA devices, GPUs.

Kubelet allocates devices when it admits a pod, and has the runtime create the sandbox after that: at the time
of an ADD, the allocation is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from k8s_rdma.config.devices import ExactResource, ExclusiveResource, Resource
from k8s_rdma.core.devices.gpu_demand import is_gpu
from k8s_rdma.core.devices.pod_devices import PodDevices, SlotInUse, shared_resource
from k8s_rdma.core.inventory import Gpu
from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma.wire.cdi import SLOT_CLASS, qualified_name

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from k8s_rdma.core.ledger import Pod
    from k8s_rdma.kube.pod_resources import PodResources

    LocateGpus = Callable[[Set[tuple[str, str]]], Awaitable[Mapping[tuple[str, str], Gpu]]]

LOCATE_S = 5.0
"""The longest wait of an ADD for the places of GPUs; a driver that hangs makes reads of its files hang."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDevices:
    """The devices that kubelet allocated to a pod.

    slots: CDI devices that its containers ask for. exclusive: RDMA devices by name, by their resource, in
        order (`core.devices.pod_devices`); without resources that have no devices.
    gpus: the pod's, if they were looked for and the places of all are known.
    gpu_devices: the number of GPUs' devices.
    """

    slots: tuple[SlotInUse, ...] = ()
    exclusive: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gpus: tuple[Gpu, ...] = ()
    gpu_devices: int = 0


NOTHING_HELD = HeldDevices()


class PodDeviceLookup:
    """Looks up the devices of pods, by kubelet's PodResources API."""

    def __init__(
        self,
        kubelet: PodResources | None = None,
        resources: Iterable[Resource] = (),
        locate: LocateGpus | None = None,
    ) -> None:
        """kubelet: None if there is no device plugin. resources: the device plugin's.

        locate: as `linux.gpus.Gpus.by_device`; None if no GPUs are looked for.
        """
        self._kubelet = kubelet
        self._locate = locate
        self._resources = tuple(resource for resource in resources if concerns_pods(resource))
        self._pools = any(isinstance(configured, ExclusiveResource) for configured in self._resources)

    async def devices_of(self, pod: Pod, *, required: bool, near_gpus: bool = False) -> HeldDevices:
        """Look up a pod's devices. Kubelet is not asked if they could not matter.

        required: whether the pod asks for interfaces by annotation; without, a slot is of no use to it.
            K8sRdmaError (`KUBELET_FAILURE`) when kubelet does not tell in time: the ADD may be tried again.
        near_gpus: whether it asks for interfaces near GPUs.
        """
        if self._kubelet is None or not (self._pools or near_gpus or (required and self._resources)):
            return NOTHING_HELD
        found = await self._kubelet.of_pod(pod.namespace, pod.name)
        ours = held_devices(found, self._resources)
        return await self._with_gpus(ours, found) if near_gpus else ours

    async def _with_gpus(self, devices_held: HeldDevices, pod_devices: PodDevices) -> HeldDevices:
        devices = _gpu_devices(pod_devices)
        located: Mapping[tuple[str, str], Gpu] = {}
        if self._locate is not None and devices:
            try:
                async with asyncio.timeout(LOCATE_S):
                    located = await self._locate(devices)
            except TimeoutError as error:
                msg = f"where the pod's GPUs are: no answer in {LOCATE_S:g} s; try again"
                raise K8sRdmaError(msg, reason=Reason.KUBELET_FAILURE) from error
        gpus: dict[Gpu, Gpu] = {}
        for device in sorted(located) if len(located) == len(devices) else ():
            gpus.setdefault(located[device], replace(located[device], device_id=device[1]))
        return replace(devices_held, gpus=tuple(gpus.values()))

    async def exclusive(self) -> Mapping[str, str]:
        """Map exclusive devices to the pods that hold them, `namespace/name`.

        K8sRdmaError as in `devices_of`.
        """
        if self._kubelet is None or not self._pools:
            return {}
        return {
            device: f"{pod.namespace}/{pod.name}"
            for pod in await self._kubelet.all()
            for ids in held_devices(pod, self._resources).exclusive.values()
            for device in ids
        }

    async def all_devices(self) -> Mapping[tuple[str, str], HeldDevices]:
        """Look up the devices of all pods, by namespace and name; K8sRdmaError as in `devices_of`."""
        if self._kubelet is None:
            return {}
        pods = await self._kubelet.all()
        return {(pod.namespace, pod.name): held_devices(pod, self._resources) for pod in pods}

    async def close(self) -> None:
        """Close the connection."""
        if self._kubelet is not None:
            await self._kubelet.close()


def concerns_pods(resource: Resource) -> bool:
    """Report whether it matters to the agent which pod holds a device of the resource."""
    return isinstance(resource, ExactResource | ExclusiveResource)


def held_devices(pod_devices: PodDevices, resources: Iterable[Resource]) -> HeldDevices:
    """Map kubelet's devices to configured resources; MalformedError for an id that is no CDI device name."""
    slots: list[SlotInUse] = []
    exclusive = {}
    for resource in resources:
        slots += _slots(pod_devices, resource)
        if isinstance(resource, ExclusiveResource) and (ids := pod_devices.device_ids(resource.name)):
            exclusive[resource.name] = ids
    gpu_devices = len(_gpu_devices(pod_devices))
    return HeldDevices(slots=tuple(slots), exclusive=exclusive, gpu_devices=gpu_devices)


def _gpu_devices(pod_devices: PodDevices) -> set[tuple[str, str]]:
    """Return resource and id of each device that is a GPU, or a share of one."""
    return {
        (entry.resource, device_id)
        for entry in pod_devices.devices
        if is_gpu(entry.resource)
        for device_id in entry.ids
    }


def _slots(pod_devices: PodDevices, resource: Resource) -> Iterator[SlotInUse]:
    """Return the slots that containers may request from the runtime by a resource."""
    if isinstance(resource, ExactResource):
        yield from _slots_of_resource(pod_devices, resource.name, hints=resource.hints)
    if isinstance(resource, ExclusiveResource):
        if resource.cdi is not False:
            yield from _slots_of_resource(pod_devices, resource.name, pool=resource.name)
        if resource.share:
            shared = shared_resource(resource.name)
            yield from _slots_of_resource(pod_devices, shared, pool=resource.name, hints=resource.hints)


def _slots_of_resource(
    pod_devices: PodDevices, resource: str, pool: str = "", *, hints: bool = False
) -> Iterator[SlotInUse]:
    for device_id in pod_devices.device_ids(resource):
        slot = SlotInUse(resource=resource, id=device_id, pool=pool, hints=hints)
        qualified_name(slot.device, device_class=SLOT_CLASS)  # because it also names a file
        yield slot
