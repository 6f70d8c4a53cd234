"""Objects of the API server that several collectors read: Nodes, pods, and the age of annotations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from k8s_rdma.config.devices import MOUNT_RESOURCE
from k8s_rdma.doctor.cluster.versions import NodeVersions, tag_of
from k8s_rdma.wire.objects.meta import ManagedFieldsEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from k8s_rdma.kube.documents import Documents

UNFINISHED = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
"""Pods that are no leftovers; for example, kubelet leaves the objects of evicted pods."""

OURS = {"labelSelector": "app.kubernetes.io/name=k8s-rdma", **UNFINISHED}
"""Query for the chart's pods that have not finished."""

_IMAGE = "k8s-rdma"
_MOUNTS = f"{MOUNT_RESOURCE.partition('/')[0]}/"
"""The resource's two names; `rdma-sriov/vf` is the older one."""


def full_name(obj: Mapping[str, Any]) -> str:
    """Return `namespace/name` of an object."""
    return f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"


def api_version(api: Documents) -> str:
    """Return the API server's version. K8sRdmaError if it cannot be queried."""
    return str((api.get("/version") or {}).get("gitVersion", "unknown"))


def nodes_of(api: Documents, name: str = "") -> tuple[NodeVersions, ...]:
    """Return the versions of all nodes, or of one; empty if the node does not exist.

    Nodes are listed in either case, because agents may list nodes and not get them.
    """
    query = {"fieldSelector": f"metadata.name={name}"} if name else {}
    return tuple(map(versions_of, api.items("/api/v1/nodes", query)))


def of_images(pods: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the tags of our image in pods, by `namespace/pod`."""
    for pod in pods:
        for container in pod["spec"]["containers"]:
            if _IMAGE in (image := str(container["image"])).rpartition("/")[2]:
                yield full_name(pod), tag_of(image)


def mounts_of(nodes: Iterable[dict[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Return resources of RIT's device plugin, all of `/dev/infiniband`, with the Nodes that offer them."""
    return offered(nodes, lambda resource: resource.startswith(_MOUNTS))


def offered(nodes: Iterable[dict[str, Any]], selects: Callable[[str], bool]) -> dict[str, tuple[str, ...]]:
    """Return the selected resources that Nodes have, with the names of these."""
    found: dict[str, tuple[str, ...]] = {}
    for node in nodes:
        for resource, count in ((node.get("status") or {}).get("allocatable") or {}).items():
            if selects(resource) and str(count) != "0":
                found[resource] = (*found.get(resource, ()), str(node["metadata"]["name"]))
    return found


def versions_of(node: dict[str, Any]) -> NodeVersions:
    """Return the versions of kubelet and runtime in a Node's status."""
    info = (node.get("status") or {}).get("nodeInfo") or {}
    return NodeVersions(
        node=str(node["metadata"]["name"]),
        kubelet=str(info.get("kubeletVersion", "")),
        runtime=str(info.get("containerRuntimeVersion", "")),
    )


def age_of_write_s(api: Documents, metadata: Mapping[str, Any], annotation: str) -> float | None:
    """Return the seconds since the writer of an annotation last wrote to the pod, if the API shows it."""
    try:
        entries = msgspec.convert(metadata.get("managedFields") or (), tuple[ManagedFieldsEntry, ...])
    except msgspec.ValidationError:
        return None
    times = [
        entry.time
        for entry in entries
        if entry.time and f"f:{annotation}" in entry.fields_v1.get("f:metadata", {}).get("f:annotations", {})
    ]
    return (api.now() - max(times)).total_seconds() if times else None
