"""Collects versions from the API server and our processes, and the API server's definition of RdmaNode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from k8s_rdma.config.devices import MOUNT_RESOURCE
from k8s_rdma.doctor.cluster.components import KeyUsage
from k8s_rdma.doctor.cluster.objects import CRD_NAME, CrdFacts
from k8s_rdma.doctor.cluster.versions import NodeVersions, tag_of
from k8s_rdma.kube.api import ApiRefusedError
from k8s_rdma.wire.rdma_node import GROUP, KIND, VERSION, RdmaNodeStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.core import Sample

    from k8s_rdma.kube.documents import Documents

_OBJECT = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{CRD_NAME}"
_SCHEMAS = f"/openapi/v3/apis/{GROUP}/{VERSION}"
_GROUP_VERSION_KIND = "x-kubernetes-group-version-kind"
_FORBIDDEN = 403


def crd_facts(api: Documents, *, needed: bool | None) -> CrdFacts:
    """Facts of the CRD object; without access to it, of the API server's schemas, which anyone may read."""
    expected = frozenset(field.encode_name for field in msgspec.structs.fields(RdmaNodeStatus))
    try:
        found = api.get(_OBJECT)
    except ApiRefusedError as refused:
        if refused.status != _FORBIDDEN:
            raise
        found = _as_object(api.get(_SCHEMAS))
    return CrdFacts(found=found, expected=expected, needed=needed)


def _as_object(schemas: dict[str, Any] | None) -> dict[str, Any] | None:
    """The part of the definition that the schemas of the served version show."""
    for schema in ((schemas or {}).get("components") or {}).get("schemas", {}).values():
        if any(entry.get("kind") == KIND for entry in schema.get(_GROUP_VERSION_KIND) or ()):
            version = {"name": VERSION, "served": True, "schema": {"openAPIV3Schema": schema}}
            return {"spec": {"versions": [version]}}
    return None


UNFINISHED = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
"""Pods that are no leftovers: of evicted ones kubelet leaves the objects."""
OURS = {"labelSelector": "app.kubernetes.io/name=k8s-rdma", **UNFINISHED}
"""Query for the chart's pods that have not finished."""
_IMAGE = "k8s-rdma"
_MOUNTS = f"{MOUNT_RESOURCE.partition('/')[0]}/"
"""The resource's two names; `rdma-sriov/vf` is the older one."""


def api_version(api: Documents) -> str:
    """The API server's. K8sRdmaError where it cannot be asked."""
    return str((api.get("/version") or {}).get("gitVersion", "unknown"))


def nodes_of(api: Documents, name: str = "") -> tuple[NodeVersions, ...]:
    """All nodes', or those of one; none where there is no such node.

    By a list in either case, as agents may list nodes and not get them.
    """
    query = {"fieldSelector": f"metadata.name={name}"} if name else {}
    return tuple(map(versions_of, api.items("/api/v1/nodes", query)))


def of_images(pods: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """The tags of our image in pods, by `namespace/pod`."""
    for pod in pods:
        name = f"{pod['metadata'].get('namespace', '')}/{pod['metadata']['name']}"
        for container in pod["spec"]["containers"]:
            if _IMAGE in (image := str(container["image"])).rpartition("/")[2]:
                yield name, tag_of(image)


def in_metrics(text: str) -> str:
    """The version in a process's metrics; empty for older processes without it."""
    infos = (sample for sample in _samples(text) if sample.name.endswith("_build_info"))
    return next((sample.labels.get("version", "") for sample in infos), "")


def key_usage_in_metrics(text: str) -> tuple[KeyUsage, ...]:
    """Bound pods by the key that signed their placements, in the extender's metrics."""
    return tuple(
        KeyUsage(int(sample.value), *(sample.labels.get(name, "") for name in ("key", "algorithm", "use")))
        for sample in _samples(text)
        if sample.name == "k8s_rdma_extender_pods_signed"
    )


def _samples(text: str) -> list[Sample]:
    """The samples of an exposition; none of what is no exposition."""
    try:
        return [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    except ValueError:
        return []


def mounts_of(nodes: Iterable[dict[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Resources of RIT's device plugin, all of `/dev/infiniband`, with the Nodes that offer them."""
    found: dict[str, tuple[str, ...]] = {}
    for node in nodes:
        for resource, count in ((node.get("status") or {}).get("allocatable") or {}).items():
            if resource.startswith(_MOUNTS) and str(count) != "0":
                found[resource] = (*found.get(resource, ()), str(node["metadata"]["name"]))
    return found


def versions_of(node: dict[str, Any]) -> NodeVersions:
    """The versions of kubelet and runtime in a Node's status."""
    info = (node.get("status") or {}).get("nodeInfo") or {}
    return NodeVersions(
        node=str(node["metadata"]["name"]),
        kubelet=str(info.get("kubeletVersion", "")),
        runtime=str(info.get("containerRuntimeVersion", "")),
    )
