"""The grant of a pod: the interfaces that it may have by annotation, by exclusive devices and by claims.

A placement that the extender signed with a key that agents accept is authoritative: a pod's owner may edit
the request after the pod was bound, but not the placement. Without a key the placement is a hint about PFs,
and never about rates, because anyone may have written it.

Exclusive devices that kubelet allocated to a pod are its interfaces; its annotation sets rates only.

`read_grant` has the part by annotation, which says whether kubelet's devices matter. `resolve` adds these and
the prepared claims. ADD, CHECK, the rebuild of a ledger and the preparation of claims use both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn, TypeVar

from k8s_rdma.core.devices.held_vfs import HeldDevice, of_pf
from k8s_rdma.core.devices.near_gpus import gpus_of
from k8s_rdma.core.devices.placement import options_refused
from k8s_rdma.core.inventory import Gpu
from k8s_rdma.core.ledger import Pod, PreparedInterface, Receipt
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
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, decode
from k8s_rdma.wire.placement_keys import UNSIGNED, KeySource

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from k8s_rdma.agent.cni.kubelet_devices import HeldDevices
    from k8s_rdma.core.devices.pod_devices import SlotInUse
    from k8s_rdma.core.kernel import Hardware

    LocateGpus = Callable[[Set[tuple[str, str]]], Awaitable[Mapping[tuple[str, str], Gpu]]]


_UNPLACED = (
    "the extender did not place this pod: its schedulerName is not the one that asks it, or it requests no "
    "managed resource; correct that in what makes the pod, and make the pod anew"
)
_Interface = TypeVar("_Interface", InterfaceRequest, PlacedInterface)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The interfaces that a pod may have, their placement, and the reason why a placement was ignored.

    promised: None without a placement that counts.
    ignored: one sentence; empty if no placement was ignored.
    annotation: the name of the one that asks, for errors.
    devices: the exclusive devices of a pod that holds some, one for each interface.
    gpus: those of the pod, if it has interfaces that are to be near them.
    claimed: the interfaces that are prepared for ResourceClaims; they are the last ones of the request.
    """

    request: Request
    promised: Placement | None = None
    ignored: str = ""
    annotation: str = ANNOTATION
    devices: tuple[HeldDevice, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    claimed: tuple[PreparedInterface, ...] = ()

    @property
    def annotated(self) -> int:
        """The number of interfaces that the annotation asks for."""
        return len(self.request.interfaces) - len(self.claimed)

    def with_claims(self, claimed: tuple[PreparedInterface, ...]) -> Grant:
        """Add the interfaces that are prepared for the pod's claims, after those by annotation."""
        if not claimed:
            return self
        requests = (interface.placed.as_request() for interface in claimed)
        request = replace(self.request, interfaces=(*self.request.interfaces, *requests))
        return replace(self, request=request, claimed=claimed)

    def latest(self, placed: Placement | None, receipts: Iterable[Receipt]) -> Grant:
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

    def with_gpus(self, devices: HeldDevices) -> Grant:
        """Add the GPUs that kubelet gave the pod. An interface with `per` becomes one for each GPU.

        K8sRdmaError (`DEVICES_DIFFER`) if the placement was made for another number of GPUs.
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

    def with_gpus_of_then(self, devices: HeldDevices | None, pod: Pod) -> Grant:
        """Return the request that an earlier ADD served. An interface with `per` becomes one for each GPU.

        A placement says how many GPUs there were, even if it is not signed.

        devices: those that the pod still has; None if kubelet does not know the pod. K8sRdmaError
            (`DEVICES_DIFFER`) if neither a placement nor `devices` says how many there were.
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

    def part(self, entries: Sequence[int]) -> Grant:
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

    def permitted(self, policies: NamespacePolicies, namespace: str) -> Grant:
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

    def with_defaults(self, vlan: int, driver: VfDriver) -> Grant:
        """Apply the network's defaults: a VLAN to interfaces that name none, a driver to all.

        vlan: 0 for no VLAN. driver: KERNEL for the drivers that the interfaces ask for.
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
    memlock: the bytes that containers with a slot may lock if their pod does not say.
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


def read_grant(
    annotations: Mapping[str, str],
    *,
    uid: PodUid,
    node: NodeName,
    policy: Policy,
    must_be_placed: bool = True,
) -> Grant:
    """Read the part of a grant that a pod's annotations ask for.

    must_be_placed: whether the policy's demand for a placement counts.
    MalformedError when the request cannot be granted; K8sRdmaError (`STALE_PLACEMENT`) when it asks for
    interfaces without a placement that counts, and needs one.
    """
    found = _read(annotations, uid, node, policy)
    if must_be_placed and found.request and found.promised is None and policy.needs_placement:
        msg = f"the pod's placement does not count: {found.ignored}" if found.ignored else _UNPLACED
        raise K8sRdmaError(msg, reason=Reason.STALE_PLACEMENT)
    return found


def resolve(
    requested: Grant,
    *,
    devices: HeldDevices | None,
    claims: tuple[PreparedInterface, ...],
    hardware: Hardware,
) -> Grant:
    """Return the interfaces that a pod may have: those of `requested`, with its devices and its claims.

    devices: those that kubelet gave the pod; None if that is unknown. K8sRdmaError (`DEVICES_DIFFER`) if they
        do not fit its annotation or its placement.
    """
    if devices is not None:
        requested = _with_devices(requested.with_gpus(devices), devices.exclusive, hardware)
    return requested.with_claims(claims)


def _read(annotations: Mapping[str, str], uid: PodUid, node: NodeName, policy: Policy) -> Grant:
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
            return Grant(request=request, promised=promised, annotation=name)
    request = read_pod(annotations, strict=policy.strict).request
    # The policy is not compared here, because it applies when the placement is used.
    if promised is not None:
        promised = replace(promised, generation=0)  # because anyone may have counted it
        served = promised.request()
        if not satisfies(served, _expanded(request, served)):
            ignored = f"{PLACEMENT_ANNOTATION}: not signed, and its rates are not those of {name}"
            promised = None
    return Grant(request=request, promised=promised, ignored=ignored, annotation=name)


def _expanded(request: Request, like: Request) -> Request:
    """Return the request with as many interfaces for each `per` as another request has."""
    per = sum(interface.options.per is not None for interface in request.interfaces)
    return request.per_gpu((len(like.interfaces) - len(request.interfaces)) // per + 1) if per else request


def _with_defaults(interface: _Interface, vlan: int, driver: VfDriver) -> _Interface:
    options = interface.options
    if vlan and options.vlan is None:
        options = replace(options, vlan=vlan)
    if driver is not VfDriver.KERNEL:
        options = replace(options, driver=driver)
    return replace(interface, options=options)


def _with_devices(
    grant: Grant, devices_by_resource: Mapping[str, Sequence[str]], hardware: Hardware
) -> Grant:
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
    _require_promised(grant, devices)
    if not devices:
        return grant
    if not grant.request:
        return replace(grant, request=Request((InterfaceRequest(),) * len(devices)), devices=devices)
    _require_rates_only(grant, devices)
    return replace(grant, devices=devices)


def _require_promised(grant: Grant, devices: Sequence[HeldDevice]) -> None:
    promised = grant.promised.devices() if grant.promised else {}
    allocated = dict(Counter(device.resource for device in devices))
    if promised and promised != allocated:
        refuse_devices(
            f"the pod was placed with {_counts(promised)}, and kubelet gave it {_counts(allocated) or 'none'}"
        )


def _require_rates_only(grant: Grant, devices: Sequence[HeldDevice]) -> None:
    request, annotation = grant.request, grant.annotation
    count, names = len(request.interfaces), ", ".join(map(str, devices))
    if count != len(devices):
        refuse_devices(
            f"{annotation}: has {count} interfaces, and the pod holds {len(devices)} devices ({names}): it "
            "must have one for each, or none"
        )
    for index, interface in enumerate(request.interfaces):
        if refused := options_refused(interface.options):
            refuse_devices(
                f"{annotation}[{index}].{refused[0]}: the pod holds {names}; of these it sets rates only"
            )
    if request.policy is not PfPolicy.ANY:
        refuse_devices(f"policy {request.policy}: the pod holds {names}, which kubelet chose")


def _counts(devices: Mapping[str, int]) -> str:
    return " and ".join(f"{number} of {resource}" for resource, number in sorted(devices.items()))


def refuse_devices(why: str) -> NoReturn:
    """Raise K8sRdmaError (`DEVICES_DIFFER`)."""
    raise K8sRdmaError(why, reason=Reason.DEVICES_DIFFER)


def slots_of_pod(
    slots: tuple[SlotInUse, ...], annotations: Mapping[str, str], policy: NamespacePolicy, memlock: int
) -> tuple[SlotInUse, ...]:
    """Return a pod's slots with the properties that its annotations give them.

    memlock: the bytes that its containers may lock if it does not say. MalformedError
        (`MALFORMED_ANNOTATION`) for a text that is no amount.
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
