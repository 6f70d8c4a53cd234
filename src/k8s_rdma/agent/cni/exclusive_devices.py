"""Exclusive devices that kubelet allocated to a pod are its interfaces; its annotation sets rates only.

Kubelet allocates devices when it admits a pod, and has the runtime create the sandbox after that: at the time
of an ADD, the allocation is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NoReturn

from k8s_rdma.config.devices import ExactResource, ExclusiveResource, Resource
from k8s_rdma.core.devices.held_vfs import HeldDevice, of_pf, vfs_by_device
from k8s_rdma.core.devices.placement import options_refused
from k8s_rdma.core.devices.pod_devices import PodDevices, SlotInUse, shared_resource
from k8s_rdma.core.request import InterfaceRequest, PfPolicy, Request
from k8s_rdma.core.types import VfDriver
from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma.wire.annotation_values import ANNOTATION
from k8s_rdma.wire.cdi import SLOT_CLASS, qualified_name
from k8s_rdma.wire.cni_request import NetConf, refuse
from k8s_rdma.wire.json import shown

if TYPE_CHECKING:
    from k8s_rdma.agent.cni.pod_request import PodRequest
    from k8s_rdma.core.kernel import Hardware
    from k8s_rdma.core.ledger import Ledger, Pod
    from k8s_rdma.kube.pod_resources import PodResources


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDevices:
    """The devices that kubelet allocated to a pod.

    slots: CDI devices that its containers ask for. exclusive: RDMA devices by name, by their resource, in
        order (`core.devices.pod_devices`); without resources of which there are none.
    """

    slots: tuple[SlotInUse, ...] = ()
    exclusive: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


NOTHING_HELD = HeldDevices()


class PodDeviceLookup:
    """Looks up the devices of pods, by kubelet's PodResources API."""

    def __init__(self, kubelet: PodResources | None = None, resources: Iterable[Resource] = ()) -> None:
        """kubelet: None where there is no device plugin. resources: the device plugin's."""
        self._kubelet = kubelet
        self._resources = tuple(resource for resource in resources if concerns_pods(resource))
        self._pools = any(isinstance(configured, ExclusiveResource) for configured in self._resources)

    async def devices_of(self, pod: Pod, *, required: bool) -> HeldDevices:
        """Look up a pod's devices; kubelet is not asked where none could matter.

        required: whether the pod asks for interfaces by annotation; without, a slot is of no use to it.
            K8sRdmaError (`KUBELET_FAILURE`) when kubelet does not tell in time: the ADD may be tried again.
        """
        if self._kubelet is None or not (self._pools or (required and self._resources)):
            return NOTHING_HELD
        return held_devices(await self._kubelet.of_pod(pod.namespace, pod.name), self._resources)

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
        if self._kubelet is None or not self._resources:
            return {}
        pods = await self._kubelet.all()
        return {(pod.namespace, pod.name): held_devices(pod, self._resources) for pod in pods}

    async def close(self) -> None:
        """Close the connection."""
        if self._kubelet is not None:
            await self._kubelet.close()


def add_device_interfaces(
    pod_request: PodRequest, devices_by_resource: Mapping[str, Sequence[str]], hardware: Hardware
) -> PodRequest:
    """Turn the devices that a pod holds into interfaces of its request, in the order of their resources.

    devices_by_resource: ids by exclusive resource. A PF's device becomes no interface; containers may use it
        all the same. K8sRdmaError (`DEVICES_DIFFER`) when the annotation does not match these devices, or
        asks for more than rates.
    """
    devices = tuple(
        HeldDevice(resource, device)
        for resource in sorted(devices_by_resource)
        for device in devices_by_resource[resource]
        if not of_pf(device, hardware)
    )
    _require_promised(pod_request, devices)
    if not devices:
        return pod_request
    if not pod_request.request:
        return replace(pod_request, request=Request((InterfaceRequest(),) * len(devices)), devices=devices)
    _require_rates_only(pod_request.request, devices)
    return replace(pod_request, devices=devices)


def select_network(
    pod_request: PodRequest, entries: tuple[int, ...], conf: NetConf, hardware: Hardware, ledger: Ledger
) -> tuple[int, ...]:
    """Narrow an attachment's interfaces to the one whose device its network configuration names, if any.

    entries: by their places in the request. K8sRdmaError: `UNKNOWN_DEVICE` for a device that the pod does not
    hold, `ALREADY_ATTACHED` or `DEVICES_DIFFER` for one that is another network's.
    """
    if pod_request.devices and conf.driver is not VfDriver.KERNEL:
        refuse("dpdk", "the pod holds RDMA devices, which their VFs would not have under that driver")
    if not conf.device_id:
        return entries
    index = _device_index(conf.device_id, pod_request.devices, hardware, ledger)
    if index is None:
        holds = ", ".join(map(str, pod_request.devices)) or "no device of an exclusive resource"
        msg = f"network configuration: deviceID: {shown(conf.device_id)}: the pod holds {holds}"
        raise K8sRdmaError(msg, reason=Reason.UNKNOWN_DEVICE)
    if index not in entries:
        _refuse_other_network(index, pod_request, conf)
    return (index,)


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
    return HeldDevices(slots=tuple(slots), exclusive=exclusive)


def _require_promised(pod_request: PodRequest, devices: Sequence[HeldDevice]) -> None:
    promised = pod_request.promised.devices() if pod_request.promised else {}
    allocated = dict(Counter(device.resource for device in devices))
    if promised and promised != allocated:
        _refuse_devices(
            f"the pod was placed with {_counts(promised)}, and kubelet gave it {_counts(allocated) or 'none'}"
        )


def _require_rates_only(request: Request, devices: Sequence[HeldDevice]) -> None:
    count, names = len(request.interfaces), ", ".join(map(str, devices))
    if count != len(devices):
        _refuse_devices(
            f"{ANNOTATION}: has {count} interfaces, and the pod holds {len(devices)} devices ({names}): it "
            "must have one for each, or none"
        )
    for index, interface in enumerate(request.interfaces):
        if refused := options_refused(interface.options):
            _refuse_devices(
                f"{ANNOTATION}[{index}].{refused[0]}: the pod holds {names}; of these it sets rates only"
            )
    if request.policy is not PfPolicy.ANY:
        _refuse_devices(f"policy {request.policy}: the pod holds {names}, which kubelet chose")


def _device_index(
    device_id: str, devices: Sequence[HeldDevice], hardware: Hardware, ledger: Ledger
) -> int | None:
    """Find the place of a device in a list, by either of a device's names."""
    vfs = vfs_by_device(hardware, ledger)
    named = vfs.get(device_id)
    for index, device in enumerate(devices):
        if device.id == device_id or (named is not None and vfs.get(device.id) == named):
            return index
    return None


def _refuse_other_network(entry: int, pod_request: PodRequest, conf: NetConf) -> NoReturn:
    device, network = pod_request.devices[entry], pod_request.request.interfaces[entry].options.network
    if network and network not in conf.own_networks:
        _refuse_devices(
            f"{ANNOTATION}[{entry}].network: {shown(network)}, and network {conf.name} is to attach its "
            f"device, {device}"
        )
    msg = (
        f"network {conf.name} is to attach device {device}, which another of the pod's networks has: "
        f"give it {ANNOTATION}[{entry}].network, so that it is left to this one"
    )
    raise K8sRdmaError(msg, reason=Reason.ALREADY_ATTACHED)


def _counts(devices: Mapping[str, int]) -> str:
    return " and ".join(f"{number} of {resource}" for resource, number in sorted(devices.items()))


def _refuse_devices(why: str) -> NoReturn:
    raise K8sRdmaError(why, reason=Reason.DEVICES_DIFFER)


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
        qualified_name(slot.device, device_class=SLOT_CLASS)  # refused where it is none: it names a file, too
        yield slot
