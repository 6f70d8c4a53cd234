"""Extended resources of DeviceClasses (KEP-5004): kube-scheduler itself makes a ResourceClaim for them.

It does so when it binds the pod. The claim of a pending pod is made here, as for nodes whose device plugins
do not offer the resource. Sources, Kubernetes 1.36: `createRequestsAndMappings`,
pkg/scheduler/framework/plugins/dynamicresources/extendeddynamicresources.go; `updateResourceName2class`,
k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.json_faults import shown
from k8s_rdma.wire.objects.claims import DeviceClass
from k8s_rdma.wire.objects.pod import KubePod
from k8s_rdma.wire.pod_spec import quantity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from k8s_rdma.wire.objects.pod import ContainerDemand, PodSpecDemand

EXTENDED_RESOURCES = "<extended-resources>"
"""The pod's name of the claim, kube-scheduler's own: no entry of `spec.resourceClaims` can have it."""

POD_CLAIM = "extended-resources"
"""The name of that claim in containers: its own ends at random, so that no program could expect it."""

_CLASS_PREFIX = "deviceclass.resource.kubernetes.io/"


def has_extended_resources(pod: Mapping[str, Any]) -> bool:
    """Report whether a pod requests resources that DeviceClasses may have; MalformedError names the field."""
    spec = _read_pod(pod)
    containers = (*(spec.init_containers or ()), *(spec.containers or ()))
    return any("/" in name for container in containers for name in _requests(container))


def requested_resources(pod: Mapping[str, Any]) -> frozenset[str]:
    """Return a pod's extended resources, by limits or requests; MalformedError names the field."""
    spec = _read_pod(pod)
    containers = (*(spec.init_containers or ()), *(spec.containers or ()))
    return frozenset(name for container in containers for name in _names(container) if "/" in name)


def is_of_class(resource: str, classes: Iterable[Mapping[str, Any]]) -> bool:
    """Report whether one of these DeviceClasses has an extended resource, or any has it by its own name."""
    return resource.startswith(_CLASS_PREFIX) or resource in _class_names(classes)


def claim_spec(pod: Mapping[str, Any], classes: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Make the `spec` of the claim for a pod's extended resources, if a DeviceClass has any of them.

    MalformedError names the field.
    """
    spec = _read_pod(pod)
    inits = tuple(spec.init_containers or ())
    containers = (*inits, *(spec.containers or ()))
    requested = {name for container in containers for name in _requests(container)}
    requests = [
        {"name": name, "exactly": {"deviceClassName": class_name, "count": count}}
        for resource, class_name in _class_names(classes).items()
        if resource in requested
        for name, count in _device_requests(containers, len(inits), resource)
    ]
    return {"devices": {"requests": sorted(requests, key=_request_name)}} if requests else None


def _read_pod(pod: Mapping[str, Any]) -> PodSpecDemand:
    try:
        return msgspec.convert(pod, KubePod).spec
    except msgspec.ValidationError as error:
        msg = f"pod: {error}"
        raise MalformedError(msg) from error


def _class_names(classes: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """DeviceClasses by extended resource; of those that name the same one, the newest has it."""
    names: dict[str, str] = {}
    try:
        found = msgspec.convert(list(classes), list[DeviceClass])
    except msgspec.ValidationError as error:
        msg = f"deviceclasses: {error}"
        raise MalformedError(msg) from error
    found.sort(key=lambda device_class: device_class.metadata.name, reverse=True)
    found.sort(key=lambda device_class: device_class.metadata.creation_timestamp or "")
    for device_class in found:
        names[f"{_CLASS_PREFIX}{device_class.metadata.name}"] = device_class.metadata.name
        if device_class.spec.extended_resource_name:
            names[device_class.spec.extended_resource_name] = device_class.metadata.name
    return names


def _device_requests(
    containers: Sequence[ContainerDemand], inits: int, resource: str
) -> Iterator[tuple[str, int]]:
    """Yield the requests for a resource, by name, with their count of devices.

    Each container that runs with the others has devices of its own. The other init containers use those of
    later containers, and share one request for the further devices that they need.

    inits: the number of init containers.
    """
    own: dict[int, int] = {}
    beyond: dict[int, int] = {}
    for index, container in reversed(list(enumerate(containers))):
        amount = _amount(container, resource)
        if index >= inits or container.restart_policy == "Always":
            own[index] = amount
        else:
            beyond[index] = amount - sum(own.values())
    if beyond:
        largest = max(sorted(beyond), key=beyond.__getitem__)
        own[largest] = beyond[largest]
    for index, count in own.items():
        if count > 0:
            yield f"container-{index}-request-{sorted(_requests(containers[index])).index(resource)}", count


def _amount(container: ContainerDemand, resource: str) -> int:
    text = _requests(container).get(resource, "0")
    try:
        amount = quantity(text)
    except ValueError as error:
        msg = f"pod: resources.requests[{shown(resource)}]: {shown(text)} is no quantity"
        raise MalformedError(msg) from error
    return int(amount) if amount.denominator == 1 else 0


def _names(container: ContainerDemand) -> Iterator[str]:
    if container.resources:
        yield from container.resources.limits or ()
        yield from container.resources.requests or ()


def _requests(container: ContainerDemand) -> Mapping[str, str]:
    return (container.resources and container.resources.requests) or {}


def _request_name(request: Mapping[str, Any]) -> str:
    return str(request["name"])
