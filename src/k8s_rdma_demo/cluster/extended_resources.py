"""Extended resources of DeviceClasses in the stand-ins: the claim that kube-scheduler makes for a pod.

A node whose `status.allocatable` has the resource serves it by a device plugin; on others the pod gets a
claim. Init containers with such resources are not simulated.

Source (Kubernetes 1.36): `pkg/scheduler/framework/plugins/dynamicresources/extendeddynamicresources.go`,
`k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache`.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from k8s_rdma.wire.pod_spec import quantity
from k8s_rdma_demo.cluster.claim_allocator import AllocationError
from k8s_rdma_demo.cluster.objects import (
    JsonObject,
    metadata,
    name_of,
    namespace_of,
    spec_of,
    status_of,
    uid_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_MARK = "resource.kubernetes.io/extended-resource-claim"
_PREFIX = "deviceclass.resource.kubernetes.io/"


def claimed_resources(pod: JsonObject, node: JsonObject, classes: Iterable[JsonObject]) -> Mapping[str, str]:
    """Return a pod's extended resources that a node serves by claim, with their DeviceClasses."""
    allocatable = status_of(node).get("allocatable") or {}
    requested = {
        name
        for container in _containers(pod)
        for name, amount in _requests(container).items()
        if quantity(str(amount)) and not quantity(str(allocatable.get(name, "0")))
    }
    names = _class_names(classes)
    return {resource: names[resource] for resource in sorted(requested & names.keys())}


def claim_for(pod: JsonObject, resources: Mapping[str, str]) -> JsonObject:
    """Make the claim for these resources, which has no name yet; AllocationError for init containers."""
    requests = [
        {"name": name, "exactly": {"deviceClassName": resources[resource], "count": count}}
        for _, resource, name, count in _device_requests(pod, resources)
    ]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": name_of(pod), "uid": uid_of(pod), "controller": True}
    return {
        "metadata": {
            "namespace": namespace_of(pod),
            "generateName": f"{name_of(pod)}-extended-resources-",
            "uid": str(uuid.uuid4()),
            "annotations": {_MARK: "true"},
            "ownerReferences": [owner],
        },
        "spec": {"devices": {"requests": requests}},
    }


def claim_status(pod: JsonObject, claim: JsonObject, resources: Mapping[str, str]) -> JsonObject:
    """Return the pod's `status.extendedResourceClaimStatus` for a claim that was made."""
    mappings = [
        {"containerName": container, "resourceName": resource, "requestName": name}
        for container, resource, name, _ in _device_requests(pod, resources)
    ]
    return {"resourceClaimName": name_of(claim), "requestMappings": mappings}


def is_for_resources(claim: JsonObject) -> bool:
    """Report whether kube-scheduler made a claim for extended resources."""
    return (metadata(claim).get("annotations") or {}).get(_MARK) == "true"


def _device_requests(pod: JsonObject, resources: Mapping[str, str]) -> Iterator[tuple[str, str, str, int]]:
    """Yield container, resource, name of the claim's request, and number of devices."""
    inits = len(spec_of(pod).get("initContainers") or ())
    for index, container in enumerate(_containers(pod)):
        requests = _requests(container)
        for position, resource in enumerate(sorted(requests)):
            count = int(quantity(str(requests[resource])))
            if resource not in resources or not count:
                continue
            if index < inits:
                raise AllocationError(f"{resource} in an init container is not simulated")
            yield container["name"], resource, f"container-{index}-request-{position}", count


def _containers(pod: JsonObject) -> list[JsonObject]:
    return [*(spec_of(pod).get("initContainers") or ()), *(spec_of(pod).get("containers") or ())]


def _requests(container: JsonObject) -> JsonObject:
    found: JsonObject = (container.get("resources") or {}).get("requests") or {}
    return found


def _class_names(classes: Iterable[JsonObject]) -> dict[str, str]:
    """DeviceClasses by resource; of several with one resource the newest, then the first by name, has it."""
    found = sorted(classes, key=name_of, reverse=True)
    found.sort(key=lambda device_class: str(metadata(device_class).get("creationTimestamp") or ""))
    names: dict[str, str] = {}
    for device_class in found:
        names[f"{_PREFIX}{name_of(device_class)}"] = name_of(device_class)
        if resource := spec_of(device_class).get("extendedResourceName"):
            names[resource] = name_of(device_class)
    return names
