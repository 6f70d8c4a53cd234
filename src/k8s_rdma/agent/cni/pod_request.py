"""The request of a pod, from its annotations, and the part of it that one attachment gives.

A placement that the extender signed with a key that agents accept is authoritative: a pod's owner may edit
the request after the pod was bound, but not the placement. Without a key anybody may have written it, so it
is a hint about where, never about how much.

A pod has one annotation and, with Multus, several attachments: each serves the interfaces that name its
network, and the first one also those that name none.

Exclusive devices that kubelet allocated to a pod are its interfaces; its annotation sets rates only.

Kubelet allocates devices when it admits a pod, and has the runtime create the sandbox after that: at the time
of an ADD, the allocation is known.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NoReturn, TypeVar

from k8s_rdma.config.devices import ExactResource, ExclusiveResource, Resource
from k8s_rdma.core.devices.held_vfs import HeldDevice, of_pf, vfs_by_device
from k8s_rdma.core.devices.near_gpus import gpus_of, is_gpu
from k8s_rdma.core.devices.placement import options_refused
from k8s_rdma.core.devices.pod_devices import PodDevices, SlotInUse, shared_resource
from k8s_rdma.core.inventory import Gpu
from k8s_rdma.core.ledger import Ledger, Pod, PromisedInterface, Receipt
from k8s_rdma.core.namespace_policy import NO_POLICIES, NamespacePolicies, NamespacePolicy, satisfies
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.request import InterfaceRequest, PfPolicy, Request
from k8s_rdma.core.types import NodeName, PodUid, VfDriver
from k8s_rdma.errors import K8sRdmaError, MalformedError, Reason
from k8s_rdma.wire.annotation import (
    ANNOTATION,
    NCCL_ANNOTATION,
    read_memlock,
    read_pod,
    read_topology,
    request_name,
)
from k8s_rdma.wire.cdi import SLOT_CLASS, qualified_name
from k8s_rdma.wire.cni_request import NetConf, refuse
from k8s_rdma.wire.json import shown
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, decode
from k8s_rdma.wire.placement_keys import UNSIGNED, KeySource

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from k8s_rdma.core.kernel import Hardware
    from k8s_rdma.kube.pod_resources import PodResources

    LocateGpus = Callable[[Set[tuple[str, str]]], Awaitable[Mapping[tuple[str, str], Gpu]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDevices:
    """The devices that kubelet allocated to a pod.

    slots: CDI devices that its containers ask for. exclusive: RDMA devices by name, by their resource, in
        order (`core.devices.pod_devices`); without resources that have no devices.
    gpus: where that was asked, and where all of them are is known. gpu_devices: the number of GPUs' devices.
    """

    slots: tuple[SlotInUse, ...] = ()
    exclusive: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gpus: tuple[Gpu, ...] = ()
    gpu_devices: int = 0


NOTHING_HELD = HeldDevices()

LOCATE_S = 5.0
"""The longest wait of an ADD for the places of GPUs; a driver that hangs makes reads of its files hang."""


class PodDeviceLookup:
    """Looks up the devices of pods, by kubelet's PodResources API."""

    def __init__(
        self,
        kubelet: PodResources | None = None,
        resources: Iterable[Resource] = (),
        locate: LocateGpus | None = None,
    ) -> None:
        """kubelet: None where there is no device plugin. resources: the device plugin's.

        locate: as `linux.gpus.Gpus.by_device`; None where no GPUs are looked for.
        """
        self._kubelet = kubelet
        self._locate = locate
        self._resources = tuple(resource for resource in resources if concerns_pods(resource))
        self._pools = any(isinstance(configured, ExclusiveResource) for configured in self._resources)

    async def devices_of(self, pod: Pod, *, required: bool, near_gpus: bool = False) -> HeldDevices:
        """Look up a pod's devices; kubelet is not asked where none could matter.

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
    _require_rates_only(pod_request, devices)
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


def _require_promised(pod_request: PodRequest, devices: Sequence[HeldDevice]) -> None:
    promised = pod_request.promised.devices() if pod_request.promised else {}
    allocated = dict(Counter(device.resource for device in devices))
    if promised and promised != allocated:
        _refuse_devices(
            f"the pod was placed with {_counts(promised)}, and kubelet gave it {_counts(allocated) or 'none'}"
        )


def _require_rates_only(pod_request: PodRequest, devices: Sequence[HeldDevice]) -> None:
    request, annotation = pod_request.request, pod_request.annotation
    count, names = len(request.interfaces), ", ".join(map(str, devices))
    if count != len(devices):
        _refuse_devices(
            f"{annotation}: has {count} interfaces, and the pod holds {len(devices)} devices ({names}): it "
            "must have one for each, or none"
        )
    for index, interface in enumerate(request.interfaces):
        if refused := options_refused(interface.options):
            _refuse_devices(
                f"{annotation}[{index}].{refused[0]}: the pod holds {names}; of these it sets rates only"
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
            f"{pod_request.annotation}[{entry}].network: {shown(network)}, and network {conf.name} is to "
            f"attach its device, {device}"
        )
    msg = (
        f"network {conf.name} is to attach device {device}, which another of the pod's networks has: "
        f"give it {pod_request.annotation}[{entry}].network, so that it is left to this one"
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


def slots_of_pod(
    slots: tuple[SlotInUse, ...], annotations: Mapping[str, str], policy: NamespacePolicy, memlock: int
) -> tuple[SlotInUse, ...]:
    """Return a pod's slots with what its annotations say of them.

    memlock: the bytes that its containers may lock where it does not say. MalformedError
        (`MALFORMED_ANNOTATION`) for what is no amount.
    """
    hints = annotations.get(NCCL_ANNOTATION, "").strip() == "required"
    amount, required = memlock_of_pod(annotations, policy, memlock)
    return tuple(
        replace(slot, hints=slot.hints or hints, memlock=amount, memlock_required=required) for slot in slots
    )


def memlock_of_pod(annotations: Mapping[str, str], policy: NamespacePolicy, memlock: int) -> tuple[int, bool]:
    """Return the bytes that a pod's containers may lock, and whether they have to; errors as above."""
    requested = read_memlock(annotations)
    amount = memlock if requested is None else requested
    if policy.max_memlock is not None:
        amount = min(amount, policy.max_memlock)
    return amount, bool(requested)


NETWORKS_ANNOTATION = "k8s.v1.cni.cncf.io/networks"
"""The annotation of a pod's further attachments (NPWG network custom resource definition, section 4.1), read
by Multus."""

_NAME = re.compile(r"[\w.\-]+")
"""Anything that may be a name in that annotation, a list with commas or of JSON objects."""

_UNPLACED = (
    "the extender did not place this pod: its schedulerName is not the one that asks it, or it requests no "
    "managed resource; correct that in what makes the pod, and make the pod anew"
)
_Interface = TypeVar("_Interface", InterfaceRequest, PlacedInterface)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    """The requested interfaces, their promised placement, and the reason why a placement was ignored.

    promised: None without a placement that counts.
    ignored: one sentence, empty when nothing was ignored.
    annotation: the name of the one that asks, for errors.
    devices: the exclusive devices of a pod that holds some, one for each interface.
    gpus: those of the pod, where it has interfaces that are to be near them.
    claimed: the interfaces that ResourceClaims promise; they are the last ones of the request.
    """

    request: Request
    promised: Placement | None = None
    ignored: str = ""
    annotation: str = ANNOTATION
    devices: tuple[HeldDevice, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    claimed: tuple[PromisedInterface, ...] = ()

    @property
    def annotated(self) -> int:
        """The number of interfaces that the annotation asks for."""
        return len(self.request.interfaces) - len(self.claimed)

    def with_claims(self, promised: tuple[PromisedInterface, ...]) -> PodRequest:
        """Add what the pod's claims promise, behind what its annotation asks for."""
        if not promised:
            return self
        claimed = (interface.placed.as_request() for interface in promised)
        request = replace(self.request, interfaces=(*self.request.interfaces, *claimed))
        return replace(self, request=request, claimed=promised)

    def latest(self, placed: Placement | None, receipts: Iterable[Receipt]) -> PodRequest:
        """Take the rates of a later generation of the placement: annotations of a sandbox may be older.

        placed: the pod's placement as the agent follows it, if it does. receipts: the pod's. K8sRdmaError
        (`CONFLICT`) for an earlier placement than the pod has had here.
        """
        promised = self.promised
        if promised is None:
            return self
        if placed is not None and placed.generation > promised.generation:
            request = replace(placed.request(), memlock=self.request.memlock, topology=self.request.topology)
            return replace(self, request=request, promised=placed)
        latest = max((receipt.generation for receipt in receipts), default=0)
        if promised.generation < latest:
            msg = (
                f"the pod's placement is of generation {promised.generation}, and generation {latest} was "
                "programmed: an earlier one does not count; try again"
            )
            raise K8sRdmaError(msg, reason=Reason.CONFLICT)
        return self

    def with_gpus(self, devices: HeldDevices) -> PodRequest:
        """Add the GPUs that kubelet gave the pod, with an interface for each where one stands for them.

        K8sRdmaError (`KUBELET_FAILURE`) where a placement was made for another number of them, or that is not
        known.
        """
        if not self.request.shape.near_gpus:
            return self
        request = self.request.per_gpu(devices.gpu_devices)
        if self.promised is not None and len(self.promised.request().interfaces) != len(request.interfaces):
            msg = (
                f"{self.annotation}: an interface for each GPU: the pod was placed with "
                f"{len(self.promised.request().interfaces)} interfaces, and kubelet gave it "
                f"{devices.gpu_devices} GPUs"
            )
            raise K8sRdmaError(msg, reason=Reason.DEVICES_DIFFER)
        return replace(self, request=request, gpus=devices.gpus)

    def with_gpus_of_then(self, devices: HeldDevices | None, pod: Pod) -> PodRequest:
        """The request that an earlier ADD served: an interface for each GPU where one stands for them.

        devices: those that the pod has still; None where kubelet does not know it. A placement, although not
        signed, says how many there were. K8sRdmaError (`DEVICES_DIFFER`) where nothing does.
        """
        if all(interface.options.per is None for interface in self.request.interfaces):
            return self
        if self.promised is not None:
            return replace(self, request=_expanded(self.request, self.promised.request()))
        if devices is None or not devices.gpu_devices:
            msg = (
                f"{self.annotation}: an interface for each GPU of pod {pod.full_name}: neither "
                "a placement nor kubelet says how many; what is programmed counts as requested; make the pod "
                "anew"
            )
            raise K8sRdmaError(msg, reason=Reason.DEVICES_DIFFER)
        return replace(self, request=self.request.per_gpu(devices.gpu_devices))

    def part(self, entries: Sequence[int]) -> PodRequest:
        """Select some of the interfaces, by their places in the request."""
        promised, annotated = self.promised, self.annotated
        own = [entry for entry in entries if entry < annotated]
        if promised is not None:
            placed: dict[int, list[PlacedInterface]] = {}
            for index, interface in enumerate(promised.interfaces):
                placed.setdefault(interface.entry_at(index), []).append(interface)
            interfaces = tuple(interface for entry in own for interface in placed[entry])
            promised = replace(promised, interfaces=interfaces) if interfaces else None
        requested = tuple(self.request.interfaces[entry] for entry in entries)
        return replace(
            self,
            request=replace(self.request, interfaces=requested),
            promised=promised,
            devices=tuple(self.devices[entry] for entry in own) if self.devices else (),
            gpus=gpus_of(self.request.interfaces, own, self.gpus) if self.gpus else (),
            claimed=tuple(self.claimed[entry - annotated] for entry in entries if entry >= annotated),
        )

    def permitted(self, policies: NamespacePolicies, namespace: str) -> PodRequest:
        """Restrict the request to the PFs that the namespace may use.

        A placement that counts is judged as well: it may be of an extender that has other policies, or was
        taken over. MalformedError (`NOT_ALLOWED`) names the key and the policy.
        """
        request, promised, policy = (
            policies.permit(namespace, self.request),
            self.promised,
            policies.policy_for(namespace),
        )
        if promised is not None:
            interfaces = (
                replace(interface, options=policy.narrowed(interface.options))
                for interface in promised.interfaces
            )
            promised = replace(promised, interfaces=tuple(interfaces))
        return replace(self, request=request, promised=promised)

    def with_defaults(self, vlan: int, driver: VfDriver) -> PodRequest:
        """Apply the network's defaults: a VLAN to interfaces that name none, a driver to all.

        vlan: 0 for none. driver: KERNEL for whatever they ask for.
        """
        if not vlan and driver is VfDriver.KERNEL:
            return self
        promised = self.promised
        if promised is not None:
            interfaces = tuple(_with_defaults(interface, vlan, driver) for interface in promised.interfaces)
            promised = replace(promised, interfaces=interfaces)
        with_all_defaults = tuple(
            _with_defaults(requested, vlan, driver) for requested in self.request.interfaces
        )
        claimed = tuple(
            replace(interface, placed=_with_defaults(interface.placed, vlan, driver))
            for interface in self.claimed
        )
        request = replace(self.request, interfaces=with_all_defaults)
        return replace(self, request=request, promised=promised, claimed=claimed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The rules for requests of pods.

    keys: verify placements. strict: whether unknown keys in a request refuse it. allow_unplaced: whether a
        pod without a placement gets interfaces; None: only without keys.
    policies: returns the current namespace policies.
    memlock: the bytes that containers with a slot may lock where their pod does not say.
    """

    keys: KeySource = UNSIGNED
    strict: bool = True
    allow_unplaced: bool | None = None
    policies: Callable[[], NamespacePolicies] = lambda: NO_POLICIES
    memlock: int = 0

    @property
    def needs_placement(self) -> bool:
        """Report whether a pod that the extender did not place is refused."""
        return self.keys() is not None if self.allow_unplaced is None else not self.allow_unplaced


def read_pod_request(
    annotations: Mapping[str, str], *, uid: PodUid, node: NodeName, policy: Policy
) -> PodRequest:
    """Read a pod's annotations.

    MalformedError when the request cannot be granted; K8sRdmaError (`STALE_PLACEMENT`) when it asks for
    interfaces without a placement that counts, and needs one.
    """
    found = _read(annotations, uid, node, policy)
    if found.request and found.promised is None and policy.needs_placement:
        msg = f"the pod's placement does not count: {found.ignored}" if found.ignored else _UNPLACED
        raise K8sRdmaError(msg, reason=Reason.STALE_PLACEMENT)
    return found


def requested_interfaces(
    annotations: Mapping[str, str], *, uid: PodUid, node: NodeName, policy: Policy
) -> tuple[InterfaceRequest, ...]:
    """Read the interfaces that a pod's annotations ask for, placed or not; MalformedError as above."""
    return _read(annotations, uid, node, policy).request.interfaces


def _read(annotations: Mapping[str, str], uid: PodUid, node: NodeName, policy: Policy) -> PodRequest:
    promised, ignored, name = None, "", request_name(annotations)
    if text := annotations.get(PLACEMENT_ANNOTATION):
        keys = policy.keys()
        try:
            promised = decode(text, uid=uid, node=node, keys=keys)
        except MalformedError as error:
            ignored = str(error)
        if promised is not None and keys is not None:
            request = replace(
                promised.request(), memlock=read_memlock(annotations), topology=read_topology(annotations)
            )
            return PodRequest(request=request, promised=promised, annotation=name)
    request = read_pod(annotations, strict=policy.strict).request
    # The policy is not compared here: it applies where the placement is used.
    if promised is not None:
        promised = replace(promised, generation=0)  # anybody may have counted it
        served = promised.request()
        if not satisfies(served, _expanded(request, served)):
            ignored = f"{PLACEMENT_ANNOTATION}: not signed, and its rates are not those of {name}"
            promised = None
    return PodRequest(request=request, promised=promised, ignored=ignored, annotation=name)


def _expanded(request: Request, like: Request) -> Request:
    """The request with as many interfaces per GPU as another one has, where one stands for them."""
    per = sum(interface.options.per is not None for interface in request.interfaces)
    return request.per_gpu((len(like.interfaces) - len(request.interfaces)) // per + 1) if per else request


def _with_defaults(interface: _Interface, vlan: int, driver: VfDriver) -> _Interface:
    options = interface.options
    if vlan and options.vlan is None:
        options = replace(options, vlan=vlan)
    if driver is not VfDriver.KERNEL:
        options = replace(options, driver=driver)
    return replace(interface, options=options)


def interfaces_of_network(
    request: Request, *, own: Set[str], attached: Set[int], annotations: Mapping[str, str]
) -> tuple[int, ...]:
    """Select the attachment's part of a request, as indices.

    own: networks of this attachment. attached: entries that other attachments of the sandbox serve.
        MalformedError (`MALFORMED_ANNOTATION`) for an interface of a network that no attachment can be of.
    """
    part = []
    for index, interface in enumerate(request.interfaces):
        network = interface.options.network
        if network and network not in own:
            if not annotations.get(NETWORKS_ANNOTATION):
                _refuse(f"{request_name(annotations)}[{index}]", network, own)
        elif index not in attached:
            part.append(index)
    return tuple(part)


def unknown_networks(request: Request, *, own: Set[str], annotations: Mapping[str, str]) -> dict[int, str]:
    """Find networks, by index, that neither this attachment nor the pod's further ones name.

    Nothing is refused for it: a network's name may differ from its definition's.
    """
    listed = set(_NAME.findall(annotations.get(NETWORKS_ANNOTATION, "")))
    named = {index: interface.options.network for index, interface in enumerate(request.interfaces)}
    return {index: name for index, name in named.items() if name and name not in own | listed}


def _refuse(entry: str, network: str, own: Set[str]) -> None:
    msg = (
        f"{entry}.network: {shown(network)} is not {' nor '.join(sorted(own))}, and the pod "
        f"has no annotation {NETWORKS_ANNOTATION} that attaches it to others"
    )
    raise MalformedError(msg, reason=Reason.MALFORMED_ANNOTATION)
