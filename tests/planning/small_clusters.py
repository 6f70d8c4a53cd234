"""Clusters small enough to know answers about them without the code, and workloads for them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from extender.node_server import pf, report
from k8s_rdma.planning import manifest_workloads
from k8s_rdma.planning.planned_cluster import PlannedCluster
from k8s_rdma.planning.snapshot import NodeRecord, PodRecord, Snapshot
from k8s_rdma.wire.rdma_node import status_of

if TYPE_CHECKING:
    from k8s_rdma.planning.planned_cluster import Workload
    from k8s_rdma.wire.report import PfReport


def read_workloads(*arguments: Any, **more: Any) -> tuple[Workload, ...]:
    return manifest_workloads.read_workloads(*arguments, **more).workloads


def asks(*rates: int) -> dict[str, str]:
    return {"rdma_interfaces_required": json.dumps([{"min_tx_rate": rate} for rate in rates])}


def manifest(*rates: int, kind: str = "Deployment", **spec: Any) -> str:
    template = {"metadata": {"annotations": asks(*rates)}, "spec": spec.pop("pod", {})}
    template["metadata"]["labels"] = spec.pop("labels", {})
    document = {
        "kind": kind,
        "metadata": {"name": "web", "namespace": "team"},
        "spec": {**spec, "template": template},
    }
    return json.dumps(document)


ZONE_B = {"key": "zone", "operator": "In", "values": ["b"]}


def affinity(**term: Any) -> dict[str, Any]:
    required = {"nodeSelectorTerms": [term]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def planned(*nodes: NodeRecord, **more: Any) -> PlannedCluster:
    return PlannedCluster.from_snapshot(Snapshot(version=1, nodes=nodes, **more))


def node(name: str, *pfs: PfReport, held: Any = None, **more: Any) -> NodeRecord:
    return NodeRecord(name=name, status=status_of(report(name, *(pfs or (pf(),)), held=held)), **more)


def holder(name: str, node: str, *rates: int, **more: Any) -> PodRecord:
    return PodRecord(namespace="team", name=name, uid=name, node=node, annotations=asks(*rates), **more)


TWO_NODES = (node("w1"), node("w2", held={"a": 6_000}))
"""10 Gb/s and 4 VFs each; 4 Gb/s are free on the second."""
