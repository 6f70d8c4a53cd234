"""ResourceClaimTemplates (`resource.k8s.io/v1`) for pods that ask for interfaces by annotation.

An interface is a request for a device of a class, with its reservation as capacity, and an `InterfaceConfig`
(`wire.resource_claim`) for everything that kube-scheduler does not count. Requests are in the order in which
kube-scheduler finds room fastest: it takes them one by one and tries all combinations, so the largest come
first, and those that are alike beside each other.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from k8s_rdma.core.options import NO_OPTIONS
from k8s_rdma.core.request import InterfaceRequest, PfPolicy, Request, Topology
from k8s_rdma.core.types import Enforce, PfSelector
from k8s_rdma.wire.annotation import (
    ANNOTATION,
    ANNOTATION_ALIAS,
    CONTAINERS_ANNOTATION,
    DEFAULT_CONTAINER_ANNOTATION,
    POLICY_ANNOTATION,
    TOPOLOGY_ANNOTATION,
    format_options,
)
from k8s_rdma.wire.annotation_values import refuse
from k8s_rdma.wire.claims import DRIVER
from k8s_rdma.wire.resource_claim import API_VERSION, BANDWIDTH, CONFIG_KEYS, KIND
from k8s_rdma.wire.resource_slice import quantity_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

DEVICE_CLASS = "rdma"
"""The DeviceClass that the chart makes."""

MAX_INTERFACES_PER_CLAIM = 30
"""A claim has at most 32 requests and 32 allocation results (k8s.io/api/resource/v1/types.go, 1.36)."""

_ATTRIBUTES = f"device.attributes['{DRIVER}']"
_PF, _NUMA_NODE = f"{DRIVER}/pf", f"{DRIVER}/numaNode"
_CONFIG_NAMES = {key: name for name, key in CONFIG_KEYS.items()}
_CONSTRAINTS = {
    PfPolicy.SAME_PF: {"matchAttribute": _PF},
    PfPolicy.SPREAD_PFS: {"distinctAttribute": _PF},
    PfPolicy.SAME_NUMA: {"matchAttribute": _NUMA_NODE},
}
_NEAR = {Topology.SAME_PCIE_SWITCH: "pcieRoot", Topology.SAME_NUMA: "numaNode", Topology.PREFER: "pcieRoot"}
_REPLACED = (ANNOTATION, ANNOTATION_ALIAS, POLICY_ANNOTATION, TOPOLOGY_ANNOTATION, CONTAINERS_ANNOTATION)
"""Annotations that claims make superfluous. `k8s-rdma.io/memlock` still counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateNames:
    """Names of the generated objects.

    name: of the only template; of several, followed by a number.
    namespace: of the templates; empty for the one that they are applied in.
    pod_claim: as name, of the claims in the pod's `spec.resourceClaims`.
    """

    name: str
    namespace: str = ""
    device_class: str = DEVICE_CLASS
    pod_claim: str = "rdma"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimTemplate:
    """A template, and the name of its claim in the pod's `spec.resourceClaims`."""

    name: str
    pod_claim: str
    document: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimTemplates:
    """The templates for a pod, and a sentence for each difference to its annotation."""

    templates: tuple[ClaimTemplate, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _DeviceRequest:
    """A request for `count` interfaces, each on another PF. name: of the first entry of the annotation."""

    name: str
    interface: InterfaceRequest
    count: int = 1


def claim_templates(request: Request, names: TemplateNames) -> ClaimTemplates:
    """Build the templates of a pod's request; an empty result if it has no interfaces.

    MalformedError (`MALFORMED_ANNOTATION`) names a request that a claim cannot express, and the alternative.
    """
    _check(request)
    order = _order(request)
    claims = list(_claims(_device_requests(request, order)))
    numbers = [f"-{index:0{len(str(len(claims)))}}" for index in range(1, len(claims) + 1)]
    suffixes = [""] if len(claims) == 1 else numbers
    constraints = _constraints(request)
    templates = [
        ClaimTemplate(
            name=names.name + suffix,
            pod_claim=names.pod_claim + suffix,
            document=_template(names, suffix, _devices(claim, names.device_class, constraints)),
        )
        for suffix, claim in zip(suffixes, claims, strict=True)
    ]
    return ClaimTemplates(templates=tuple(templates), warnings=tuple(_warnings(request, order)))


def _order(request: Request) -> list[int]:
    """Return the interfaces by kind, largest reservation first, and equal ones beside each other."""
    firsts: dict[InterfaceRequest, int] = {}
    for index, interface in enumerate(request.interfaces):
        firsts.setdefault(interface, index)
    indices = range(len(request.interfaces))
    return sorted(indices, key=lambda i: (request.shape.kind_at[i], firsts[request.interfaces[i]]))


def _check(request: Request) -> None:
    count = len(request.interfaces)
    for index, interface in enumerate(request.interfaces):
        for key in ("near", "per"):
            if getattr(interface.options, key) is not None:
                attribute = f"resource.kubernetes.io/{_NEAR[request.topology]}"
                refuse(
                    f"{ANNOTATION}: interface {index}: {key}",
                    "a claim does not know the pod's GPUs: write a claim that requests GPU and interface, "
                    f"with the constraint matchAttribute: {attribute}; examples/claims/eight-rails.yaml has "
                    "one",
                )
    if request.policy is not PfPolicy.ANY and count > MAX_INTERFACES_PER_CLAIM:
        refuse(
            POLICY_ANNOTATION,
            f"{request.policy} of {count} interfaces: constraints hold within a claim, which has at most "
            f"{MAX_INTERFACES_PER_CLAIM}; use fewer interfaces, or leave the policy out",
        )


def _device_requests(request: Request, order: Sequence[int]) -> list[_DeviceRequest]:
    """Interfaces that are equal and on different PFs are one request: `count` means different devices."""
    requests: list[_DeviceRequest] = []
    spread = request.policy is PfPolicy.SPREAD_PFS
    for index in order:
        interface = request.interfaces[index]
        if spread and requests and requests[-1].interface == interface:
            requests[-1] = replace(requests[-1], count=requests[-1].count + 1)
        else:
            requests.append(_DeviceRequest(name=f"interface-{index}", interface=interface))
    return requests


def _claims(requests: Iterable[_DeviceRequest]) -> Iterator[list[_DeviceRequest]]:
    claim: list[_DeviceRequest] = []
    for entry in requests:
        if sum(earlier.count for earlier in claim) + entry.count > MAX_INTERFACES_PER_CLAIM:
            yield claim
            claim = []
        claim.append(entry)
    if claim:
        yield claim


def _constraints(request: Request) -> list[dict[str, str]]:
    constraint = _CONSTRAINTS.get(request.policy) if len(request.interfaces) > 1 else None
    return [constraint] if constraint is not None else []


def _template(names: TemplateNames, suffix: str, devices: dict[str, Any]) -> dict[str, Any]:
    namespace = {"namespace": names.namespace} if names.namespace else {}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": names.name + suffix, **namespace},
        "spec": {"spec": {"devices": devices}},
    }


def _devices(
    requests: Sequence[_DeviceRequest], device_class: str, constraints: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
    """Return the claim's `spec.devices`. Devices that one request counts differ without a constraint."""
    devices: dict[str, Any] = {"requests": [_request(entry, device_class) for entry in requests]}
    necessary = [entry for entry in constraints if len(requests) > 1 or "matchAttribute" in entry]
    if necessary:
        devices["constraints"] = [dict(entry) for entry in necessary]
    if configs := _configs(requests):
        devices["config"] = configs
    return devices


def _request(entry: _DeviceRequest, device_class: str) -> dict[str, Any]:
    exact: dict[str, Any] = {"deviceClassName": device_class}
    if entry.count > 1:
        exact["count"] = entry.count
    if entry.interface.min_tx_rate_mbps:
        bandwidth = quantity_of(entry.interface.min_tx_rate_mbps)
        exact["capacity"] = {"requests": {BANDWIDTH: bandwidth}}
    if selectors := list(_selectors(entry.interface)):
        exact["selectors"] = [{"cel": {"expression": expression}} for expression in selectors]
    return {"name": entry.name, "exactly": exact}


def _selectors(interface: InterfaceRequest) -> Iterator[str]:
    """CEL expressions for the PF; it must meet them all."""
    options = interface.options
    if options.pf is not None:
        yield from _pf_selectors(options.pf)
    if options.link_type is not None:
        yield f"{_ATTRIBUTES}.linkType == '{options.link_type}'"
    if options.mtu is not None:
        yield f"{_ATTRIBUTES}.mtu >= {options.mtu}"
    if interface.enforce is Enforce.HARDWARE:
        rates = {"minRate": interface.min_tx_rate_mbps, "maxRate": interface.max_tx_rate_mbps}
        yield from (f"{_ATTRIBUTES}.{key} == 'hardware'" for key, rate in rates.items() if rate)


def _pf_selectors(selector: PfSelector) -> Iterator[str]:
    addresses = "device.attributes['resource.kubernetes.io'].pciBusID"
    for attribute, values in (
        (f"{_ATTRIBUTES}.pf", selector.names),
        (addresses, selector.pcis),
        (f"{_ATTRIBUTES}.driver", selector.drivers),
    ):
        if len(values) == 1:
            yield f"{attribute} == {_text(min(values))}"
        elif values:
            yield f"{attribute} in [{', '.join(map(_text, sorted(values)))}]"
    if selector.vendors:
        vendors = [
            f"{_ATTRIBUTES}.vendor == '{vendor}'"
            if ":" in vendor
            else f"{_ATTRIBUTES}.vendor.startsWith('{vendor}')"
            for vendor in sorted(selector.vendors)
        ]
        yield " || ".join(vendors)


def _text(value: str) -> str:
    """Return a CEL string."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _configs(requests: Iterable[_DeviceRequest]) -> list[dict[str, Any]]:
    """Return the parameters that are not empty, once for all requests that have the same."""
    names: dict[bytes, list[str]] = {}
    for entry in requests:
        if parameters := interface_config(entry.interface):
            names.setdefault(msgspec.json.encode(parameters), []).append(entry.name)
    return [
        {
            "requests": same,
            "opaque": {"driver": DRIVER, "parameters": msgspec.json.decode(parameters)},
        }
        for parameters, same in names.items()
    ]


def interface_config(interface: InterfaceRequest) -> dict[str, Any]:
    """Build an interface's parameters, as `read_interface_config` reads them; empty for defaults only."""
    config: dict[str, Any] = {}
    if interface.max_tx_rate_mbps:
        config["maxTxRate"] = quantity_of(interface.max_tx_rate_mbps)
    if interface.enforce is not Enforce.AUTO:
        config["enforce"] = interface.enforce
    if interface.options != NO_OPTIONS:
        options = format_options(interface.options)
        config |= {_CONFIG_NAMES[key]: value for key, value in options.items() if key in _CONFIG_NAMES}
    return {"apiVersion": API_VERSION, "kind": KIND, **config} if config else {}


def _warnings(request: Request, order: Sequence[int]) -> Iterator[str]:
    names = [request.interfaces[index].options.name for index in order]
    if list(order) != sorted(order) and not all(names):
        yield (
            "interfaces get their names in the order of the requests, largest reservation first; set name "
            "where a program needs a certain one"
        )
    if request.policy is PfPolicy.SAME_NUMA:
        yield (
            f"{POLICY_ANNOTATION}: same-numa: a PF without a NUMA node takes none of these interfaces; "
            "the annotation takes it as a node of its own"
        )


def with_claims(pod: Mapping[str, Any], templates: Sequence[ClaimTemplate], slot: str) -> dict[str, Any]:
    """Have a pod, or the pod in a template, ask by claims instead of by annotation.

    The containers that `k8s-rdma.io/containers` names get the devices, by default the pod's program
    (`kubectl.kubernetes.io/default-container`) or the first. They lose their request for the resource `slot`,
    by which containers of pods with the annotation get devices.
    MalformedError names a field that such a pod cannot have.
    """
    changed = copy.deepcopy(dict(pod))
    spec = changed.get("spec") or {}
    annotations = (changed.get("metadata") or {}).get("annotations") or {}
    existing = spec.get("resourceClaims") or []
    duplicates = {entry.get("name") for entry in existing} & {template.pod_claim for template in templates}
    if duplicates:
        refuse("spec.resourceClaims", f"{min(duplicates)} is there already; choose --pod-claim")
    spec["resourceClaims"] = [
        *existing,
        *({"name": template.pod_claim, "resourceClaimTemplateName": template.name} for template in templates),
    ]
    for container in _device_containers(spec, annotations):
        _add_claims(container, [template.pod_claim for template in templates], slot)
    for key in _REPLACED:
        annotations.pop(key, None)
    if not annotations and "metadata" in changed:
        changed["metadata"].pop("annotations", None)
    return changed


def _device_containers(spec: Mapping[str, Any], annotations: Mapping[str, str]) -> list[dict[str, Any]]:
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    existing = {container.get("name"): container for container in containers}
    text = annotations.get(CONTAINERS_ANNOTATION)
    if text is None:
        program = existing.get(annotations.get(DEFAULT_CONTAINER_ANNOTATION))
        return containers[:1] if program is None else [program]
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in existing:
            refuse(CONTAINERS_ANNOTATION, f"{name} is no container of this pod")
    return [existing[name] for name in names]


def _add_claims(container: dict[str, Any], names: Iterable[str], slot: str) -> None:
    resources = container.get("resources") or {}
    for amounts in ("requests", "limits"):
        if slot in (resources.get(amounts) or {}):
            del resources[amounts][slot]
            if not resources[amounts]:
                del resources[amounts]
    resources["claims"] = [*(resources.get("claims") or ()), *({"name": name} for name in names)]
    container["resources"] = resources
