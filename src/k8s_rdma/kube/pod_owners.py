"""Pods by the workload that owns them, by their own metadata: no owner is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from k8s_rdma.core.recommendation import WorkloadName
from k8s_rdma.kube.bounded_http import MAX_PODS_BYTES
from k8s_rdma.kube.documents import segment
from k8s_rdma.wire.annotation import requests_interfaces
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.kube.documents import Documents

_HASH_LABEL = "pod-template-hash"
_JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedPod:
    """A pod that may have interfaces, by annotation or by ResourceClaim.

    node: empty while it is not bound.
    claims, claim_statuses: as its `spec.resourceClaims` and `status.resourceClaimStatuses`.
    """

    namespace: str
    name: str
    uid: str
    node: str
    workload: WorkloadName
    annotations: Mapping[str, str] = field(default_factory=dict)
    claims: tuple[Mapping[str, Any], ...] = ()
    claim_statuses: tuple[Mapping[str, Any], ...] = ()

    @property
    def asks_by_annotation(self) -> bool:
        """Report whether it asks for interfaces by annotation."""
        return requests_interfaces(self.annotations)


def owned_pods(api: Documents, namespace: str | None) -> Iterator[OwnedPod]:
    """List pods that may have interfaces, of a namespace or of all. ApiRefusedError and the like."""
    path = f"/api/v1/namespaces/{segment(namespace)}/pods" if namespace else "/api/v1/pods"
    for document in api.items(path, max_bytes=MAX_PODS_BYTES):
        found = owned_pod(document)
        if found.asks_by_annotation or found.claims or PLACEMENT_ANNOTATION in found.annotations:
            yield found


def owned_pod(document: Mapping[str, Any]) -> OwnedPod:
    """Take the relevant fields of a pod; fields of another form count as absent."""
    meta, spec = _mapping(document.get("metadata")), _mapping(document.get("spec"))
    annotations = _mapping(meta.get("annotations"))
    return OwnedPod(
        namespace=str(meta.get("namespace") or ""),
        name=str(meta.get("name") or ""),
        uid=str(meta.get("uid") or ""),
        node=str(spec.get("nodeName") or ""),
        workload=workload_name(meta),
        annotations={key: text for key, text in annotations.items() if isinstance(text, str)},
        claims=_mappings(spec.get("resourceClaims")),
        claim_statuses=_mappings(_mapping(document.get("status")).get("resourceClaimStatuses")),
    )


def workload_name(meta: Mapping[str, Any]) -> WorkloadName:
    """Name a pod's workload: its controller, a Deployment or a JobSet if that is one's part, or itself."""
    namespace, labels = str(meta.get("namespace") or ""), _mapping(meta.get("labels"))
    for owner in _mappings(meta.get("ownerReferences")):
        if owner.get("controller") is True:
            kind, name = str(owner.get("kind") or ""), str(owner.get("name") or "")
            suffix = f"-{labels.get(_HASH_LABEL)}"
            if kind == "ReplicaSet" and name.endswith(suffix):
                return WorkloadName(namespace, "Deployment", name.removesuffix(suffix))
            if kind == "Job" and isinstance(jobset := labels.get(_JOBSET_LABEL), str):
                return WorkloadName(namespace, "JobSet", jobset)
            return WorkloadName(namespace, kind, name)
    return WorkloadName(namespace, "Pod", str(meta.get("name") or ""))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _mappings(value: object) -> tuple[Mapping[str, Any], ...]:
    return tuple(entry for entry in value if isinstance(entry, dict)) if isinstance(value, list) else ()
