"""Findings of doctor on a cluster whose objects an API server has."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from deviceplugin.offered_pf import offer
from extender.node_server import PF0, pf, report
from k8s_rdma.config.extender import ExtenderConfig
from k8s_rdma.core.inventory import CLAIMS_POOL
from k8s_rdma.doctor.cluster.components import ExtenderFacts
from k8s_rdma.doctor.collectors.cluster import ClusterCollector
from k8s_rdma.doctor.collectors.host import Host
from k8s_rdma.kube.documents import Documents
from k8s_rdma.wire.claims import DRIVER, Offers
from k8s_rdma.wire.rdma_node import encode_status, status_of
from k8s_rdma.wire.resource_slice import slice_specs
from kube.stored_objects import serving_objects

if TYPE_CHECKING:
    from pathlib import Path

    from k8s_rdma.wire.report import PfReport

    Json = dict[str, Any]

LEASES = ExtenderConfig().node_lease_namespace
API = "/apis/resource.k8s.io/v1"
OUR_DRIVER = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}


def found_by_doctor(
    tmp_path: Path,
    *pfs: PfReport,
    pods: tuple[Json, ...] = (),
    claims: tuple[Json, ...] = (),
    lease: Json | None = None,
    node: Json | None = None,
    extender: dict[str, str] | None = None,
    published: Json | None = None,
) -> dict[str, str]:
    """Findings on a cluster with a node w1 of these PFs, of which the first is published.

    lease: differences of its Lease from one that was renewed now. node: its Node object.
    extender: why the extender refuses it. published: differences of its status.
    """
    status = json.loads(encode_status(status_of(report("w1", *pfs)))) | (published or {})
    [spec] = slice_specs(Offers(node="w1", pfs=(offer("f0", pci=PF0),)))
    meta = {"name": "w1"}
    renewed = {"renewTime": datetime.now(UTC).isoformat(), "holderIdentity": status["generation"]}
    objects = {
        "/version": {"gitVersion": "v1.36.2"},
        "/apis/k8s-rdma.io/v1alpha1/rdmanodes": {"items": [{"metadata": meta, "status": status}]},
        f"/apis/coordination.k8s.io/v1/namespaces/{LEASES}/leases": {
            "items": [{"metadata": meta, "spec": {**renewed, **(lease or {})}}]
        },
        "/api/v1/pods": {"items": list(pods)},
        "/api/v1/nodes": {"items": [node] if node else []},
        f"{API}/deviceclasses": {
            "items": [{"metadata": {"name": "rdma"}, "spec": {"selectors": [OUR_DRIVER]}}]
        },
        f"{API}/resourceslices": {
            "items": [{"metadata": meta, "spec": spec | {"pool": spec["pool"] | {"generation": 1}}}]
        },
        f"{API}/resourceclaims": {"items": list(claims)},
    }
    documents: dict[str, bytes | int] = {path: json.dumps(each).encode() for path, each in objects.items()}
    with serving_objects(documents, tmp_path) as kubeconfig, Documents(kubeconfig) as api:
        collector = ClusterCollector(
            api=api,
            host=Host(tmp_path),
            namespaces=("k8s-rdma", "kube-system"),
            ask_extender=lambda: ExtenderFacts(nodes=extender),
        )
        return {found.id: found.found for found in collector.findings()}


def renewed_ago(**span: float) -> str:
    return (datetime.now(UTC) - timedelta(**span)).isoformat()


def for_claims(pci: str, **fields: Any) -> PfReport:
    return pf(pci, vfs=0, pools={CLAIMS_POOL: 4}, **fields)


def pod(name: str, scheduler: str, **spec: Any) -> Json:
    entry = {"name": "net", "resourceClaimName": name}
    spec = {"schedulerName": scheduler, "resourceClaims": [entry], "containers": [], **spec}
    return {"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": spec}
