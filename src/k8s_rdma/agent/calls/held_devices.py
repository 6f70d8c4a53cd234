"""What a pod holds of the device plugin's resources, by kubelet's word, asked when its ADD comes.

Kubelet gives devices when it admits a pod, and has the runtime make a sandbox after that: when there is an
ADD, there is an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from k8s_rdma.config.devices import ExactResource, ExclusiveResource
from k8s_rdma.core.devices.pod_devices import SlotHeld, shared_resource
from k8s_rdma.wire.cdi import SLOT_CLASS, qualified_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from k8s_rdma.config.devices import Resource
    from k8s_rdma.core.devices.pod_devices import PodDevices
    from k8s_rdma.core.ledger import Pod
    from k8s_rdma.kube.pod_resources import PodResources


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDevices:
    """What kubelet gave a pod.

    slots: CDI devices that its containers ask for. exclusive: RDMA devices by name, by their resource, in
        order (`core.devices.pod_devices`); without resources of which there are none.
    """

    slots: tuple[SlotHeld, ...] = ()
    exclusive: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


NOTHING_HELD = HeldDevices()


class Holdings:
    """Who knows what pods hold: kubelet, by its PodResources API."""

    def __init__(self, kubelet: PodResources | None = None, resources: Iterable[Resource] = ()) -> None:
        """kubelet: None where there is no device plugin. resources: as that is configured."""
        self._kubelet = kubelet
        self._resources = tuple(each for each in resources if concerns_pods(each))
        self._pools = any(isinstance(each, ExclusiveResource) for each in self._resources)

    async def of(self, pod: Pod, *, asks: bool) -> HeldDevices:
        """What a pod holds; nobody is asked where that could be nothing that matters.

        asks: whether it asks for interfaces by annotation; a slot is of no use to one that does not.
        K8sRdmaError (`KUBELET_FAILURE`) when kubelet does not tell in time: the ADD may be tried again.
        """
        if self._kubelet is None or not (self._pools or (asks and self._resources)):
            return NOTHING_HELD
        return held_devices(await self._kubelet.of_pod(pod.namespace, pod.name), self._resources)

    async def exclusive(self) -> Mapping[str, str]:
        """Which exclusive devices pods hold, and the pods, `namespace/name`. K8sRdmaError as `of`."""
        if self._kubelet is None or not self._pools:
            return {}
        return {
            device: f"{pod.namespace}/{pod.name}"
            for pod in await self._kubelet.all()
            for ids in held_devices(pod, self._resources).exclusive.values()
            for device in ids
        }

    async def of_all(self) -> Mapping[tuple[str, str], HeldDevices]:
        """What every pod holds, by namespace and name; K8sRdmaError as `of`."""
        if self._kubelet is None or not self._resources:
            return {}
        pods = await self._kubelet.all()
        return {(each.namespace, each.name): held_devices(each, self._resources) for each in pods}

    async def close(self) -> None:
        """End the connection."""
        if self._kubelet is not None:
            await self._kubelet.close()


def concerns_pods(resource: Resource) -> bool:
    """Whether it matters to the agent which pod holds a device of it."""
    return isinstance(resource, ExactResource | ExclusiveResource)


def held_devices(held: PodDevices, resources: Iterable[Resource]) -> HeldDevices:
    """What kubelet told, in words of the configuration; MalformedError for an id that names no CDI device."""
    slots: list[SlotHeld] = []
    exclusive = {}
    for resource in resources:
        slots += _slots(held, resource)
        if isinstance(resource, ExclusiveResource) and (ids := held.of(resource.name)):
            exclusive[resource.name] = ids
    return HeldDevices(slots=tuple(slots), exclusive=exclusive)


def _slots(held: PodDevices, resource: Resource) -> Iterator[SlotHeld]:
    """Those that containers may ask the runtime for; of an exclusive one also where they might not."""
    if isinstance(resource, ExactResource):
        yield from _each(held, resource.name, hints=resource.hints)
    if isinstance(resource, ExclusiveResource):
        if resource.cdi is not False:
            yield from _each(held, resource.name, pool=resource.name)
        if resource.share:
            shared = shared_resource(resource.name)
            yield from _each(held, shared, pool=resource.name, hints=resource.hints)


def _each(held: PodDevices, resource: str, pool: str = "", *, hints: bool = False) -> Iterator[SlotHeld]:
    for each in held.of(resource):
        slot = SlotHeld(resource=resource, id=each, pool=pool, hints=hints)
        qualified_name(slot.device, device_class=SLOT_CLASS)  # refused where it is none: it names a file, too
        yield slot
