"""ResourceClaims (`resource.k8s.io/v1`) as kube-scheduler allocated them, and our configuration in them.

No field of a claim is trusted: before Kubernetes validated quantities, capacities below zero and above 2^63
were accepted, and rounded to amounts that were never requested.

The opaque parameters of a request are an `InterfaceConfig`:

    {"apiVersion": "k8s-rdma.io/v1", "kind": "InterfaceConfig", "maxTxRate": "40G", "name": "rdma0"}

`maxTxRate` is a quantity in bits per second, `enforce` as in the annotation, and so are the options, in
camelCase. Parameters of a DeviceClass are defaults; but its `maxTxRate` is the operator's limit, which a
claim may lower, but neither raise nor remove.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import msgspec

from k8s_rdma.core.claims import AllocatedClaim, ClaimedInterface, beyond_class_cap
from k8s_rdma.core.ledger import ClaimUid, Pod
from k8s_rdma.core.options import claim_parameter, keys_with
from k8s_rdma.core.request import InterfaceRequest
from k8s_rdma.core.types import BITS_PER_MEGABIT, MAX_RATE_MBPS, Enforce, NodeName, PodUid, VfDriver
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.annotation import read_options
from k8s_rdma.wire.annotation_values import Number, Object, choice, kind, refuse, require_own_network, tokens
from k8s_rdma.wire.claims import DRIVER, NO_POD, Name, Prepare, Text
from k8s_rdma.wire.dra_networks import read_macs
from k8s_rdma.wire.extended_resources import POD_CLAIM as EXTENDED_RESOURCES_CLAIM
from k8s_rdma.wire.json import decode
from k8s_rdma.wire.json_faults import describe_unknown, shown
from k8s_rdma.wire.objects.claims import (
    MAX_RESULTS,
    AllocatedDevices,
    AllocationResult,
    ClaimAllocation,
    ClaimConsumer,
    ClaimStatus,
    KubeClaim,
)
from k8s_rdma.wire.objects.meta import WholeMeta
from k8s_rdma.wire.objects.pod import KubePod
from k8s_rdma.wire.pod_spec import quantity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from fractions import Fraction


API_VERSION = "k8s-rdma.io/v1"
KIND = "InterfaceConfig"
BANDWIDTH, VFS = "bandwidth", "vfs"
"""The capacities of a PF; bandwidth in bits per second."""

_RESULTS = "status.allocation.devices.results"

CONFIG_KEYS = {claim_parameter(key): key for key in keys_with(lambda row: row.in_claims)}
"""The options of an `InterfaceConfig`, and their keys in the annotation."""
_SPELLED = {key: parameter for parameter, key in CONFIG_KEYS.items() if parameter != key}
_HEAD, _CAP, _ENFORCE = ("apiVersion", "kind"), "maxTxRate", "enforce"
HEAD_KEYS = (*_HEAD, _CAP, _ENFORCE)
"""The keys of an `InterfaceConfig` besides options."""
_UNIQUE = keys_with(lambda row: row.unique)
_FROM_CLASS = "FromClass"
"""The source of a DeviceClass's parameters in an allocation (`AllocationConfigSourceClass`)."""

UID = re.compile(r"[a-z0-9]([-a-z0-9]{0,62}[a-z0-9])?")
"""UIDs name files."""

MAX_CONSUMERS, MAX_CONFIGS = 256, 64
"""`ResourceClaimReservedForMaxSize`, and twice `DeviceConfigMaxSize`, of class and claim
(k8s.io/api/resource/v1/types.go, Kubernetes 1.36)."""

POD_CLAIM = "resource.kubernetes.io/pod-claim-name"
"""The annotation of a claim that a ResourceClaimTemplate was made into: the pod's name for the claim
(`PodResourceClaimAnnotation` in k8s.io/api/resource/v1/types.go, Kubernetes 1.36)."""

_REQUEST = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(/[a-z0-9]([-a-z0-9]*[a-z0-9])?)?\Z"
"""A request and its alternative of `firstAvailable`, which name CDI devices."""

_POD_GROUPS = ("scheduling.k8s.io", "podgroups")
"""Consumers that share a claim among their pods (Kubernetes' KEP 5729)."""

_pod_decoder = msgspec.json.Decoder(KubePod)


class _Result(AllocationResult, frozen=True, kw_only=True):
    request: Annotated[str, msgspec.Meta(max_length=253, pattern=_REQUEST)]
    driver: str
    pool: str
    device: Text
    share_id: Name | None = msgspec.field(name="shareID", default=None)


class _Opaque(msgspec.Struct, frozen=True):
    driver: str
    parameters: msgspec.Raw


class _Config(msgspec.Struct, frozen=True):
    source: str = ""
    requests: tuple[str, ...] | None = None
    opaque: _Opaque | None = None


class _Devices(AllocatedDevices, frozen=True, kw_only=True):
    results: Annotated[tuple[_Result, ...], msgspec.Meta(max_length=MAX_RESULTS)] | None = None
    config: Annotated[tuple[_Config, ...], msgspec.Meta(max_length=MAX_CONFIGS)] | None = None


class _Allocation(ClaimAllocation, frozen=True, kw_only=True):
    devices: _Devices = _Devices()


class _Status(ClaimStatus, frozen=True, kw_only=True):
    allocation: _Allocation | None = None


class _Claim(KubeClaim, frozen=True, kw_only=True):
    metadata: WholeMeta
    status: _Status = _Status()


_claim_decoder = msgspec.json.Decoder(_Claim)


class PreparedPod(NamedTuple):
    """The claim, and the annotations of its pod."""

    claim: AllocatedClaim
    annotations: Mapping[str, str]


def decode_prepare(prepare: Prepare, node: NodeName) -> PreparedPod:
    """Read an allocated claim with its pod.

    MalformedError names the field that does not fit: `CONFLICT` if the object is not, or not any more, the
    one that kubelet asks for.
    """
    subject = f"claim {prepare.claim.namespace}/{prepare.claim.name}"
    found = _claim(prepare, subject)
    consumers = _pods(found, subject)
    pod = _pod(prepare, found, node, subject)
    pod_claim = _pod_claim(pod, prepare.claim.name)
    macs = read_macs(pod.metadata.annotations or {}, pod_claim)
    return PreparedPod(
        AllocatedClaim(
            uid=ClaimUid(found.metadata.uid),
            namespace=prepare.claim.namespace,
            name=prepare.claim.name,
            pod=Pod(namespace=prepare.claim.namespace, name=pod.metadata.name, uid=PodUid(pod.metadata.uid)),
            pod_claim=pod_claim,
            interfaces=_interfaces(found, node, subject, macs),
            from_template=(found.metadata.annotations or {}).get(POD_CLAIM) == pod_claim,
            consumers=consumers,
        ),
        pod.metadata.annotations or {},
    )


class ClaimResults(NamedTuple):
    """The parts of a claim that name its allocation. results: request, device, share and Mb/s of each."""

    uid: str
    consumers: frozenset[PodUid]
    results: tuple[tuple[str, str, str, int], ...]


def read_allocation(prepare: Prepare) -> ClaimResults:
    """Read these parts alone; MalformedError as `decode_prepare`."""
    subject = f"claim {prepare.claim.namespace}/{prepare.claim.name}"
    found = _claim(prepare, subject)
    devices = found.status.allocation.devices if found.status.allocation is not None else _Devices()
    results = [result for result in devices.results or () if result.driver == DRIVER]
    return ClaimResults(
        uid=found.metadata.uid,
        consumers=_pods(found, subject),
        results=tuple(
            (
                result.request,
                result.device,
                result.share_id or "",
                _bandwidth(result, f"{subject}: {_RESULTS}[{index}]"),
            )
            for index, result in enumerate(results)
        ),
    )


def _bandwidth(result: _Result, path: str) -> int:
    value = (result.consumed_capacity or {}).get(BANDWIDTH, 0)
    return _mbps(_amount(value, f"{path}.consumedCapacity.{BANDWIDTH}"))


def _claim(prepare: Prepare, subject: str) -> _Claim:
    found = decode(prepare.resource, _claim_decoder, subject)
    if found.metadata.uid != prepare.claim.uid or not UID.fullmatch(found.metadata.uid):
        _conflict(subject, f"has UID {shown(found.metadata.uid)}, kubelet prepares {prepare.claim.uid}")
    return found


def _pods(claim: _Claim, subject: str) -> frozenset[PodUid]:
    """Return the pods that the claim is reserved for."""
    consumers, path = claim.status.reserved_for or (), f"{subject}: status.reservedFor"
    if len(consumers) > MAX_CONSUMERS:
        _refuse(path, f"has {len(consumers)} entries; wanted {MAX_CONSUMERS} at most")
    pods = []
    for index, consumer in enumerate(consumers):
        if consumer.api_group or consumer.resource != "pods":
            continue
        if not UID.fullmatch(consumer.uid):
            _refuse(f"{path}[{index}].uid", f"{shown(consumer.uid)} is no UID")
        pods.append(PodUid(consumer.uid))
    return frozenset(pods)


def _pod(prepare: Prepare, claim: _Claim, node: NodeName, subject: str) -> KubePod:
    """Return the pod that the claim is for: one, on this node, with a network of its own."""
    consumer = _consumer(claim, subject)
    if (consumer.api_group, consumer.resource) == _POD_GROUPS:
        why = f"is reserved for PodGroup {shown(consumer.name)}; an RDMA interface is of one pod"
        _conflict(
            subject, f"{why}: write no resourceClaims in PodGroups, and a resourceClaimTemplateName in pods"
        )
    if consumer.api_group or consumer.resource != "pods":
        _conflict(subject, f"is reserved for {shown(consumer.resource)}, which is no pod")
    if bytes(prepare.pod) == bytes(NO_POD):
        _conflict(subject, f"is reserved for pod {shown(consumer.name)}, which does not exist")
    pod = decode(prepare.pod, _pod_decoder, f"pod {consumer.name}")
    if (pod.metadata.name, pod.metadata.uid) != (consumer.name, consumer.uid):
        _conflict(subject, f"is reserved for pod {shown(consumer.name)} of another UID")
    if pod.spec.node_name != node:
        _conflict(subject, f"is of a pod on node {shown(pod.spec.node_name or 'none')}, not on {node}")
    require_own_network(pod.spec.host_network, consumer.name)
    return pod


def _consumer(claim: _Claim, subject: str) -> ClaimConsumer:
    """Return the only pod that the claim is reserved for; of a template's claim the one that owns it.

    Any pod of its namespace may name such a claim, too.
    """
    consumers = claim.status.reserved_for or ()
    owners = {owner.uid for owner in claim.metadata.owner_references or () if owner.kind == "Pod"}
    if owners and consumers:
        consumers = tuple(consumer for consumer in consumers if consumer.uid in owners)
        if not consumers:
            _conflict(subject, "is reserved for pods that it was not made for")
    if len(consumers) != 1:
        why = f"is reserved for {len(consumers)} consumers; an RDMA interface is of one pod"
        _conflict(subject, f"{why}: use a resourceClaimTemplateName")
    return consumers[0]


def _pod_claim(pod: KubePod, claim: str) -> str:
    """Return the pod's name for a claim; ours for the one that kube-scheduler made for extended resources."""
    extended = pod.status.extended_resource_claim_status
    if extended is not None and extended.resource_claim_name == claim:
        return EXTENDED_RESOURCES_CLAIM
    entries = (*(pod.status.resource_claim_statuses or ()), *(pod.spec.resource_claims or ()))
    return next((entry.name for entry in entries if entry.resource_claim_name == claim), claim)


def _interfaces(
    claim: _Claim, node: NodeName, subject: str, macs: Mapping[str, Sequence[str]]
) -> tuple[ClaimedInterface, ...]:
    """Read the interfaces. macs: those that the pod's annotation asks for, by request."""
    allocation = claim.status.allocation
    devices = allocation.devices if allocation is not None else _Devices()
    results = [result for result in devices.results or () if result.driver == DRIVER]
    if not results:
        _conflict(subject, f"has no allocation of {DRIVER}")
    _require_apart(results, subject)
    requested, configs = dict(_requested(claim)), _configs(devices.config or (), subject)
    macs_to_give = _macs_to_give(macs, results, subject)
    interfaces = []
    for index, result in enumerate(results):
        path = f"{subject}: {_RESULTS}[{index}]"
        if result.pool != node:
            _conflict(path, f"pool {shown(result.pool)} is not this node's, {node}")
        if result.admin_access:
            _refuse(path, "adminAccess reserves nothing, and an interface needs a VF")
        bandwidth = _consumed(result, requested, path)
        values: dict[str, object] = {}
        class_values: dict[str, object] = {}
        for parameters in configs:
            if parameters.applies_to(result.request):
                values |= parameters.values
                class_values |= parameters.values if parameters.of_class else {}
        path = f"{subject}: request {result.request}"
        if of_pod := macs_to_give.get(result.request.partition("/")[0]):
            values = _with_mac(values, of_pod.pop(0), path)
        interface, class_cap = _interface(values, bandwidth, path), _cap_of(class_values, path)
        if why := beyond_class_cap(interface.max_tx_rate_mbps, class_cap):
            _refuse(f"{path}.{_CAP}", why)
        interfaces.append(
            ClaimedInterface(
                request=result.request,
                device=result.device,
                share_id=result.share_id or "",
                interface=interface,
                class_cap_mbps=class_cap,
            )
        )
    _require_unique(interfaces, subject)
    return tuple(interfaces)


def _macs_to_give(
    macs: Mapping[str, Sequence[str]], results: Iterable[_Result], subject: str
) -> dict[str, list[str]]:
    """Check the MACs of a pod's annotation against the claim's devices, before they are given out."""
    numbers = Counter(result.request.partition("/")[0] for result in results)
    for request, addresses in macs.items():
        if len(addresses) > numbers[request]:
            why = f"the pod's annotation has {len(addresses)} MACs for its {numbers[request]} devices"
            _refuse(f"{subject}: request {shown(request)}", why)
    return {request: list(addresses) for request, addresses in macs.items()}


def _with_mac(values: Mapping[str, object], mac: str, path: str) -> dict[str, object]:
    """Add the MAC of the pod's annotation to parameters, which may not say another one."""
    own = values.get("mac", mac)
    if own != mac:
        _refuse(
            f"{path}.mac", f"is {shown(str(own))} by its parameters, {shown(mac)} by the pod's annotation"
        )
    return {**values, "mac": mac}


def _require_apart(results: Sequence[_Result], subject: str) -> None:
    """Refuse results of a request and of its alternative: their CDI devices might have one name."""
    requests = {result.request for result in results}
    for index, result in enumerate(results):
        request, slash, _ = result.request.partition("/")
        if slash and request in requests:
            why = f"{result.request} is an alternative of {request}, which has a result"
            _refuse(f"{subject}: {_RESULTS}[{index}].request", why)


def _requested(claim: _Claim) -> Iterable[tuple[str, Mapping[str, str | int]]]:
    """Return the capacities that each request asks for, by its name as in results."""
    for request in claim.spec.devices.requests or ():
        exact = request.exactly or request
        yield request.name, (exact.capacity and exact.capacity.requests) or {}
        for sub in request.first_available or ():
            yield f"{request.name}/{sub.name}", (sub.capacity and sub.capacity.requests) or {}


class _Bandwidth(NamedTuple):
    """The bandwidth that a request asks for, and the bandwidth that its result consumes, as much or more."""

    requested_mbps: int
    consumed_mbps: int


def _consumed(result: _Result, requested: Mapping[str, Mapping[str, str | int]], path: str) -> _Bandwidth:
    """Return the bandwidth that a result consumes, as much as its request asks for, and one VF."""
    if result.request not in requested:
        _refuse(f"{path}.request", f"{shown(result.request)} is none of the claim's")
    consumed = result.consumed_capacity or {}
    amounts, requests = {}, {}
    for capacity in (BANDWIDTH, VFS):
        field = f"{path}.consumedCapacity.{capacity}"
        if capacity not in consumed:
            _refuse(field, "is missing; the API server lacks DRAConsumableCapacity, or the PF was shared out")
        amounts[capacity] = _amount(consumed[capacity], field)
        least = _amount(requested[result.request].get(capacity, 0), f"request {result.request}: {capacity}")
        requests[capacity] = least
        if amounts[capacity] < least:
            requirement = shown(str(requested[result.request].get(capacity, 0)))
            granted = shown(str(consumed[capacity]))
            _refuse(field, f"{granted} is less than the {requirement} that the request asks for")
    if amounts[VFS] != 1:
        _refuse(f"{path}.consumedCapacity.{VFS}", f"{consumed[VFS]}; wanted 1: an interface is one VF")
    mbps = _mbps(amounts[BANDWIDTH])
    if mbps > MAX_RATE_MBPS:
        _refuse(f"{path}.consumedCapacity.{BANDWIDTH}", f"{consumed[BANDWIDTH]} is no rate")
    return _Bandwidth(_mbps(requests[BANDWIDTH]), mbps)


def _mbps(bits_per_s: Fraction) -> int:
    return int(-(-bits_per_s // BITS_PER_MEGABIT))


def _amount(value: str | int, path: str) -> Fraction:
    try:
        amount = quantity(str(value))
    except ValueError:
        _refuse(path, f"{shown(str(value))} is no quantity")
    if amount < 0 or amount.denominator != 1:
        _refuse(path, f"{shown(str(value))}; wanted a whole number that is not negative")
    return amount


class _Parameters(NamedTuple):
    """Parameters for these requests; without any, for all. of_class: whether a DeviceClass has them."""

    requests: tuple[str, ...]
    values: Mapping[str, object]
    of_class: bool

    def applies_to(self, request: str) -> bool:
        """Report whether they are for a request, or for one with this alternative."""
        return not self.requests or not {request, request.partition("/")[0]}.isdisjoint(self.requests)


def _configs(configs: Iterable[_Config], subject: str) -> list[_Parameters]:
    """Return the parameters for our driver: those of the class, then those of the claim, which prevail."""
    return [
        _Parameters(
            config.requests or (),
            _parameters(bytes(config.opaque.parameters), f"{subject}: config[{index}].opaque.parameters"),
            config.source == _FROM_CLASS,
        )
        for index, config in enumerate(configs)
        if config.opaque is not None and config.opaque.driver == DRIVER
    ]


def _parameters(parameters: bytes, path: str) -> dict[str, object]:
    """Read an `InterfaceConfig`: JSON tokens by the annotation's keys. MalformedError names the field."""
    document = tokens(parameters.decode(errors="replace"), path)
    if not isinstance(document, Object):
        refuse(path, f"is {kind(document)}; wanted an object of kind {KIND}")
    values: dict[str, object] = {}
    for key, value in document.pairs:
        field = CONFIG_KEYS.get(key, key if key in HEAD_KEYS else None)
        if field is None:
            refuse(f"{path}.{shown(key)}", describe_unknown(key, (*HEAD_KEYS, *CONFIG_KEYS)))
        if field in values:
            refuse(f"{path}.{key}", "given twice")
        values[field] = value
    for key, required in zip(_HEAD, (API_VERSION, KIND), strict=True):
        if values.pop(key, None) != required:
            refuse(f"{path}.{key}", f"wanted {required}")
    return values


def reservation_mbps(consumed_mbps: int, max_tx_rate_mbps: int) -> int:
    """Return the reservation of an interface: the consumed bandwidth, but at most its cap.

    A PF's least consumption may be above the cap.
    """
    return min(consumed_mbps, max_tx_rate_mbps) if max_tx_rate_mbps else consumed_mbps


def _interface(values: Mapping[str, object], bandwidth: _Bandwidth, path: str) -> InterfaceRequest:
    try:
        options = read_options(values, path, _no_selector)
        enforce = choice(values.get(_ENFORCE, Enforce.AUTO.value), f"{path}.{_ENFORCE}", Enforce)
    except MalformedError as error:  # it names the annotation's keys
        message = re.sub("|".join(_SPELLED), lambda key: _SPELLED[key[0]], error.message)
        raise MalformedError(message, reason=error.reason) from error
    cap = _cap_of(values, path)
    if 0 < cap < bandwidth.requested_mbps:
        why = f"{cap} Mb/s is below the bandwidth of its request, {bandwidth.requested_mbps} Mb/s"
        refuse(f"{path}.{_CAP}", why)
    if enforce is Enforce.SOFTWARE and options.driver is VfDriver.VFIO_PCI:
        refuse(f"{path}.{_ENFORCE}", "software caps network devices, and vfio-pci makes none")
    return InterfaceRequest(
        min_tx_rate_mbps=reservation_mbps(bandwidth.consumed_mbps, cap),
        max_tx_rate_mbps=cap,
        enforce=enforce,
        options=options,
    )


def _no_selector(_document: Object, path: str, _keys: tuple[str, ...]) -> Mapping[str, Any]:
    refuse(path, "is an object")


def _cap_of(values: Mapping[str, object], path: str) -> int:
    return _cap(values[_CAP], f"{path}.{_CAP}") if _CAP in values else 0


def _cap(value: object, path: str) -> int:
    text = value.text if isinstance(value, Number) else value
    if not isinstance(text, str):
        refuse(path, f"is {kind(value)}; wanted bits per second, such as 40G")
    amount = _amount(text, path)
    if amount % BITS_PER_MEGABIT or amount > MAX_RATE_MBPS * BITS_PER_MEGABIT:
        refuse(path, f"{shown(text)} is no whole number of Mb/s; wanted bits per second, such as 40G")
    return int(amount / BITS_PER_MEGABIT)


def _require_unique(interfaces: Iterable[ClaimedInterface], subject: str) -> None:
    owners: dict[tuple[str, str], str] = {}
    for entry in interfaces:
        for key in _UNIQUE:
            value = getattr(entry.interface.options, key)
            if value and (key, value) in owners:
                owner = owners[key, value]
                _refuse(f"{subject}: request {entry.request}.{key}", f"{value} is that of {owner}, too")
            owners[key, value] = entry.request


def _refuse(path: str, why: str) -> NoReturn:
    msg = f"{path}: {why}"
    raise MalformedError(msg)


def _conflict(subject: str, why: str) -> NoReturn:
    msg = f"{subject}: {why}"
    raise MalformedError(msg, reason=Reason.CONFLICT)
