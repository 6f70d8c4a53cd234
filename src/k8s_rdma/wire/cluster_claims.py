"""ResourceSlices, ResourceClaims and pods (`resource.k8s.io/v1`) as kube-scheduler reads them for our driver.

CEL selectors are judged if they are comparisons of attributes joined by `&&` and `||`, as `k8s-rdma claim`
writes them.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

import msgspec

from k8s_rdma.core.claim_fit import ClaimNode, ClaimPf, ClaimsRequest
from k8s_rdma.core.devices.requests import (
    AttributeComparison,
    CelSelector,
    Constraint,
    DeviceRequest,
    DeviceTaint,
    Toleration,
)
from k8s_rdma.core.pf_use import NOTHING_USED, Used
from k8s_rdma.core.types import BITS_PER_MEGABIT, MAX_RATE_MBPS, NodeName
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.claims import DRIVER
from k8s_rdma.wire.extended_resources import EXTENDED_RESOURCES
from k8s_rdma.wire.json_faults import shown
from k8s_rdma.wire.objects.claims import (
    MAX_RESULTS,
    AllocationResult,
    ClaimConsumer,
    ClaimRequest,
    DeviceClass,
    DeviceSelector,
    KubeClaim,
)
from k8s_rdma.wire.objects.pod import KubePod
from k8s_rdma.wire.pod_spec import quantity
from k8s_rdma.wire.stored_slice import Device, SliceSpec
from k8s_rdma.wire.views import AllocatedClaimView, AllocatedPf

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from fractions import Fraction

    from k8s_rdma.core.devices.requests import Attribute


API = "/apis/resource.k8s.io/v1"
BUS_ID = "resource.kubernetes.io/pciBusID"
SLICES_QUERY = {"fieldSelector": f"spec.driver={DRIVER}"}

_MAX_LEVELS = 12
"""The deepest field that is read: `spec.devices.requests[].firstAvailable[].selectors[].cel.expression`."""

_MAX_INTERFACES = 512
_MAX_VFS = 1 << 16
_BANDWIDTH, _VFS = "bandwidth", "vfs"

T = TypeVar("T")

_quantity = lru_cache(maxsize=4096)(quantity)

_DRIVER = "driver"
"""The device's driver among attributes, which are qualified."""

_STRING = r"'(?:[^'\\\n]|\\['\\])*'|\"(?:[^\"\\\n]|\\[\"\\])*\""
_LITERAL = rf"{_STRING}|-?[0-9]{{1,18}}\b|true\b|false\b"
_TERM = re.compile(
    rf"""\s*(?:device\.driver|device\.attributes\[(?P<domain>{_STRING})\]\.(?P<name>[A-Za-z_]\w*))
    (?:\s*(?P<operator>==|!=|>=|<=|>|<)\s*(?P<value>{_LITERAL})
    |\s+in\s*\[(?P<values>\s*(?:{_LITERAL})(?:\s*,\s*(?:{_LITERAL}))*\s*)\]
    |\.startsWith\(\s*(?P<prefix>{_STRING})\s*\))\s*""",
    re.VERBOSE,
)
_LITERALS = re.compile(_LITERAL)


class _ListedSpec(SliceSpec, frozen=True, rename="camel"):
    driver: str = ""
    node_name: str = ""


class _Slice(msgspec.Struct, frozen=True):
    spec: _ListedSpec


class ClaimOfPod(NamedTuple):
    """A claim of a pod. claim: the ResourceClaim's name, empty while it is not generated of its template."""

    name: str
    claim: str
    template: str = ""


class Consumption(NamedTuple):
    """The use by allocated claims, by pool and device; their pods by pool; claims that cannot be read."""

    used: Mapping[tuple[str, str], Used]
    pods: Mapping[str, int]
    unread: tuple[str, ...] = ()


NOTHING_CONSUMED = Consumption({}, {})


def pod_claims(pod: Mapping[str, Any]) -> tuple[ClaimOfPod, ...]:
    """List the claims of a pod, including that of its extended resources; MalformedError names the field."""
    found = _read(pod, KubePod, "pod")
    generated = {
        entry.name: entry.resource_claim_name for entry in found.status.resource_claim_statuses or ()
    }
    extended = found.status.extended_resource_claim_status
    of_resources = extended.resource_claim_name if extended is not None else None
    listed = (
        ClaimOfPod(
            name=entry.name,
            claim=entry.resource_claim_name or generated.get(entry.name) or "",
            template=entry.resource_claim_template_name or "",
        )
        for entry in found.spec.resource_claims or ()
        # A template's claim with a status that has no name was not needed.
        if entry.resource_claim_name or generated.get(entry.name, "") is not None
    )
    return (*listed, *([ClaimOfPod(EXTENDED_RESOURCES, of_resources)] if of_resources else ()))


def consumption(claims: Iterable[Mapping[str, Any]]) -> Consumption:
    """Add up the capacity that claims consume of our driver's devices."""
    used: dict[tuple[str, str], Used] = {}
    pods: dict[str, set[str]] = {}
    unread = []
    for document in claims:
        try:
            claim = _read(document, KubeClaim, _subject(document))
            results = _results(claim, _subject(document))
        except MalformedError as error:
            unread.append(error.message)
            continue
        for result, additional in results:
            key = result.pool, result.device
            used[key] = used.get(key, NOTHING_USED) + additional
            pods.setdefault(result.pool, set()).update(pod.uid for pod in claim.status.reserved_for or ())
    return Consumption(used, {pool: len(uids) for pool, uids in pods.items()}, tuple(unread))


def _subject(document: Mapping[str, Any]) -> str:
    meta = document.get("metadata") or {}
    return f"resourceclaim {meta.get('namespace')}/{meta.get('name')}"


def _results(claim: KubeClaim, subject: str) -> list[tuple[AllocationResult, Used]]:
    allocation = claim.status.allocation
    return [
        (result, _consumed(result, f"{subject}: status.allocation.devices.results[{index}]"))
        for index, result in enumerate((allocation.devices.results if allocation else None) or ())
        if result.driver == DRIVER and not result.admin_access
    ]


def _consumed(result: AllocationResult, path: str) -> Used:
    amounts = result.consumed_capacity or {}
    mbps, vfs = (
        _amount(amounts.get(key, "0"), f"{path}.consumedCapacity.{key}") for key in (_BANDWIDTH, _VFS)
    )
    return Used(vfs=int(vfs), mbps=_mbps(mbps))


def _amount(value: str | int, path: str) -> Fraction:
    text = str(value)
    try:
        amount = _quantity(text)
    except ValueError:
        _refuse(path, f"{shown(text)} is no quantity")
    if amount < 0:
        _refuse(path, f"{shown(text)} is negative")
    return amount


def _mbps(bits_per_s: Fraction) -> int:
    return int(-(-bits_per_s // BITS_PER_MEGABIT))


def claim_nodes(slices: Iterable[Mapping[str, Any]], consumed: Consumption) -> tuple[ClaimNode, ...]:
    """Read the nodes and PFs of our driver's ResourceSlices.

    As for kube-scheduler, slices of a pool's older generation do not count, and a
    pool that lacks a slice is not used.
    """
    pools: dict[str, list[_ListedSpec]] = {}
    problems: dict[str, str] = {}
    for document in slices:
        spec = document.get("spec") or {}
        if spec.get("driver") != DRIVER:
            continue
        try:
            found = _read(document, _Slice, "its ResourceSlice").spec
        except MalformedError as error:
            problems[str(spec.get("nodeName"))] = error.message
        else:
            pools.setdefault(found.node_name, []).append(found)
    unread = tuple(ClaimNode(node=NodeName(node), problem=why) for node, why in problems.items())
    read = (
        _claim_node(NodeName(node), specs, consumed) for node, specs in pools.items() if node not in problems
    )
    return tuple(sorted((*unread, *read), key=lambda node: node.node))


def _claim_node(node: NodeName, specs: Sequence[_ListedSpec], consumed: Consumption) -> ClaimNode:
    newest = max(spec.pool.generation for spec in specs)
    current = [spec for spec in specs if spec.pool.generation == newest]
    expected = current[0].pool.resource_slice_count
    if len(current) != expected:
        return ClaimNode(node=node, problem=f"{len(current)} of its {expected} ResourceSlices exist")
    try:
        pfs = tuple(
            _claim_pf(device, consumed.used.get((spec.pool.name, device.name), NOTHING_USED))
            for spec in current
            for device in spec.devices
        )
    except MalformedError as error:
        return ClaimNode(node=node, problem=f"its ResourceSlice: {error.message}")
    return ClaimNode(node=node, pfs=pfs, pods=consumed.pods.get(current[0].pool.name, 0))


def _claim_pf(device: Device, used: Used) -> ClaimPf:
    path = f"device {shown(device.name)}: capacity"
    bandwidth, vfs = (
        _amount(device.capacity[key].value, f"{path}.{key}") if key in device.capacity else 0
        for key in (_BANDWIDTH, _VFS)
    )
    return ClaimPf(
        name=device.name,
        mbps=min(int(bandwidth // BITS_PER_MEGABIT), MAX_RATE_MBPS),
        least_mbps=_least_mbps(device, path),
        vfs=min(int(vfs), _MAX_VFS),
        used=used,
        attributes={_DRIVER: DRIVER, **dict(_attributes(device))},
        taints=tuple(DeviceTaint(taint.key, taint.value, taint.effect) for taint in device.taints),
    )


def _least_mbps(device: Device, path: str) -> int:
    """Return the start of the valid range of a device's bandwidth."""
    policy = device.capacity[_BANDWIDTH].request_policy if _BANDWIDTH in device.capacity else None
    valid_range = (policy or {}).get("validRange") or {}
    least = valid_range.get("min", "0") if isinstance(valid_range, dict) else "0"
    return _mbps(_amount(str(least), f"{path}.{_BANDWIDTH}.requestPolicy.validRange.min"))


def _attributes(device: Device) -> Iterator[tuple[str, Attribute]]:
    for key, value in device.attributes.items():
        found = next((value[kind] for kind in ("string", "int", "bool") if kind in value), None)
        if isinstance(found, str | int):
            yield _qualified(key), found
        elif isinstance(numbers := value.get("ints"), list):  # of an API with DRAListTypeAttributes
            yield _qualified(key), frozenset(number for number in numbers if isinstance(number, int))


def _qualified(attribute: str) -> str:
    return attribute if "/" in attribute else f"{DRIVER}/{attribute}"


class OurClasses(NamedTuple):
    """DeviceClasses by name: selectors of those that may be of our driver, None for those that cannot."""

    selectors: Mapping[str, tuple[CelSelector, ...] | None]

    def selectors_of(self, request: ClaimRequest, path: str) -> tuple[CelSelector, ...] | None:
        """Return the class's selectors; MalformedError if there is no such class."""
        if request.device_class_name not in self.selectors:
            _refuse(path, f"there is no DeviceClass {shown(request.device_class_name)}")
        return self.selectors[request.device_class_name]


def class_names(claims: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the DeviceClasses that claims name; MalformedError names the field."""
    found = (_read(document, KubeClaim, _subject(document)) for document in claims)
    return frozenset(
        alternative.device_class_name
        for claim in found
        for request in claim.spec.devices.requests or ()
        for alternative in _alternatives(request)
    )


def our_classes(classes: Mapping[str, Mapping[str, Any] | None]) -> OurClasses:
    """Read DeviceClasses by name, None for those that do not exist."""
    return OurClasses(
        {
            name: _class_selectors(_read(document, DeviceClass, f"deviceclass {name}"))
            for name, document in classes.items()
            if document is not None
        }
    )


def _class_selectors(class_: DeviceClass) -> tuple[CelSelector, ...] | None:
    written = class_.spec.selectors or ()
    selectors = tuple(map(_selector, written))
    names_us = any(DRIVER in selector.cel.expression for selector in written)
    if not names_us or not all(
        selector.accepts({_DRIVER: DRIVER}) for selector in selectors if _is_of_driver(selector)
    ):
        return None
    return selectors


def _is_of_driver(selector: CelSelector) -> bool:
    """Report whether a selector compares only the driver."""
    return selector.alternatives is not None and all(
        comparison.attribute == _DRIVER for comparisons in selector.alternatives for comparison in comparisons
    )


class Claims(NamedTuple):
    """The claims of a pod.

    request: its requests to our driver.
    allocated: its allocated devices of our driver, by its names of claims.
    foreign: its requests for devices of other drivers.
    unjudged: selectors that are taken to accept every PF.
    """

    request: ClaimsRequest
    allocated: Mapping[str, AllocatedClaimView]
    foreign: tuple[str, ...]
    unjudged: tuple[str, ...]


def read_claims(claims: Mapping[str, Mapping[str, Any]], classes: OurClasses, pod_uid: str = "") -> Claims:
    """Read the requests of a pod.

    MalformedError names the field, also of a request that no PF of ours can satisfy.

    claims: ResourceClaims, or the `spec` of a template for one that is not generated, by the pod's names.
    """
    requests: list[tuple[DeviceRequest, ...]] = []
    constraints: list[Constraint] = []
    foreign: list[str] = []
    allocated: dict[str, AllocatedClaimView] = {}
    for name, document in claims.items():
        claim = _read(document, KubeClaim, f"claim {name}")
        if claim.status.allocation is not None:
            if results := _results(claim, f"claim {name}"):
                allocated[name] = _allocated(results, claim.status.reserved_for or (), pod_uid)
            continue
        ours = []
        for request in claim.spec.devices.requests or ():
            path = f"claim {name}: request {shown(request.name)}"
            found = tuple(_device_requests(name, request, classes, path))
            if found:
                ours.append(found)
            if len(found) < len(_alternatives(request)):
                foreign.append(f"{name}/{request.name}")
        devices = sum(max(alternative.count for alternative in request) for request in ours)
        if devices > MAX_RESULTS:
            why = f"asks for {devices} devices; a claim has at most {MAX_RESULTS}"
            _refuse(f"claim {name}", why)
        requests += ours
        constraints += _constraints(name, claim) if ours else ()
    total = sum(max(alternative.count for alternative in request) for request in requests)
    if total > _MAX_INTERFACES:
        _refuse("the pod's claims", f"ask for {total} interfaces; at most {_MAX_INTERFACES} are judged")
    unjudged = (
        selector.expression
        for alternatives in requests
        for request in alternatives
        for selector in request.selectors
        if selector.alternatives is None
    )
    nodes = {name: frozenset(map(NodeName, claim.nodes)) for name, claim in allocated.items()}
    return Claims(
        ClaimsRequest(requests=tuple(requests), constraints=tuple(constraints), allocated=nodes),
        allocated,
        tuple(foreign),
        tuple(dict.fromkeys(unjudged)),
    )


def _allocated(
    results: Sequence[tuple[AllocationResult, Used]], consumers: Iterable[ClaimConsumer], pod_uid: str
) -> AllocatedClaimView:
    used: dict[str, Used] = {}
    for result, additional in results:
        used[result.device] = used.get(result.device, NOTHING_USED) + additional
    return AllocatedClaimView(
        nodes=tuple(sorted({result.pool for result, _ in results})),
        pfs=tuple(
            AllocatedPf(name=name, interfaces=amount.vfs, reserved_mbps=amount.mbps)
            for name, amount in used.items()
        ),
        other_pods=tuple(pod.name for pod in consumers if pod.uid != pod_uid),
    )


def _alternatives(request: ClaimRequest) -> tuple[ClaimRequest, ...]:
    return request.first_available or (request.exactly or ClaimRequest(),)


def _device_requests(
    claim: str, request: ClaimRequest, classes: OurClasses, path: str
) -> Iterator[DeviceRequest]:
    for alternative in _alternatives(request):
        selectors = classes.selectors_of(alternative, path)
        if selectors is None:
            continue
        name = f"{request.name}/{alternative.name}" if request.first_available else request.name
        yield _device_request(claim, name, alternative, selectors)


def _device_request(
    claim: str, name: str, request: ClaimRequest, selectors: tuple[CelSelector, ...]
) -> DeviceRequest:
    path = f"claim {claim}: request {shown(name)}"
    if request.allocation_mode != "ExactCount":
        _refuse(f"{path}: allocationMode", f"{shown(request.allocation_mode)}; an interface takes ExactCount")
    if request.admin_access:
        _refuse(f"{path}: adminAccess", "reserves nothing, and an interface needs a VF")
    if not 1 <= request.count <= MAX_RESULTS:
        _refuse(f"{path}: count", f"{request.count}; a claim has 1 to {MAX_RESULTS} devices")
    amounts = (request.capacity and request.capacity.requests) or {}
    if unknown := sorted(amounts.keys() - {_BANDWIDTH, _VFS}):
        _refuse(f"{path}: capacity", f"no PF has {shown(unknown[0])}; write bandwidth, in bits per second")
    if _amount(amounts.get(_VFS, "1"), f"{path}: {_VFS}") > 1:
        _refuse(f"{path}: {_VFS}", f"{shown(str(amounts[_VFS]))}; an interface is one VF")
    mbps = _mbps(_amount(amounts.get(_BANDWIDTH, "0"), f"{path}: {_BANDWIDTH}"))
    if mbps > MAX_RATE_MBPS:
        _refuse(f"{path}: {_BANDWIDTH}", f"{shown(str(amounts[_BANDWIDTH]))} is no rate")
    return DeviceRequest(
        claim=claim,
        name=name,
        mbps=mbps,
        count=request.count,
        selectors=(*selectors, *map(_selector, request.selectors or ())),
        tolerations=tuple(
            Toleration(key=entry.key, operator=entry.operator, value=entry.value, effect=entry.effect)
            for entry in request.tolerations or ()
        ),
    )


def _constraints(name: str, claim: KubeClaim) -> Iterator[Constraint]:
    for constraint in claim.spec.devices.constraints or ():
        attribute = constraint.match_attribute or constraint.distinct_attribute
        if attribute:
            yield Constraint(
                claim=name,
                attribute=attribute,
                distinct=constraint.match_attribute is None,
                requests=frozenset(constraint.requests or ()),
            )


def _selector(selector: DeviceSelector) -> CelSelector:
    """Read a CEL expression: alternatives of comparisons, or None if it is anything else."""
    expression, position = selector.cel.expression, 0
    alternatives: list[list[AttributeComparison]] = [[]]
    while found := _TERM.match(expression, position):
        alternatives[-1].append(_comparison(found))
        position = found.end()
        if position == len(expression):
            return CelSelector(shown(expression), tuple(map(tuple, alternatives)))
        joint = expression[position : position + 2]
        if joint not in ("&&", "||"):
            break
        if joint == "||":
            alternatives.append([])
        position += len(joint)
    return CelSelector(shown(expression))


def _comparison(found: re.Match[str]) -> AttributeComparison:
    domain = found["domain"]
    attribute = f"{_value(domain)}/{found['name']}" if domain else _DRIVER
    if found["prefix"]:
        return AttributeComparison(attribute, "startsWith", (_value(found["prefix"]),))
    if found["values"]:
        values = tuple(map(_value, _LITERALS.findall(found["values"])))
        return AttributeComparison(attribute, "in", values)
    return AttributeComparison(attribute, found["operator"], (_value(found["value"]),))


def _value(literal: str) -> Attribute:
    if literal[0] in "'\"":
        return re.sub(r"\\(.)", r"\1", literal[1:-1])
    return literal == "true" if literal in ("true", "false") else int(literal)


def _read(document: Mapping[str, Any], kind: type[T], subject: str) -> T:
    with suppress(msgspec.ValidationError):
        return msgspec.convert(document, kind)
    try:
        return msgspec.convert(_without_nulls(document), kind)
    except msgspec.ValidationError as error:
        msg = f"{subject}: {error}"
        raise MalformedError(msg) from error


def _without_nulls(value: Any, levels: int = _MAX_LEVELS) -> Any:
    """Remove nulls, which equal absent fields, as deep as fields are read."""
    if not levels:
        return value
    if isinstance(value, dict):
        return {key: _without_nulls(item, levels - 1) for key, item in value.items() if item is not None}
    return [_without_nulls(item, levels - 1) for item in value] if isinstance(value, list) else value


def _refuse(path: str, why: str) -> NoReturn:
    msg = f"{path}: {why}"
    raise MalformedError(msg)
