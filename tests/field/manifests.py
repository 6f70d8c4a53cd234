"""Manifests of pods that ask for interfaces."""

from __future__ import annotations

import json
from typing import Any

from k8s_rdma.planning.manifest_workloads import read_workloads

Json = dict[str, Any]
ASKS = {"rdma_interfaces_required": '[{"min_tx_rate": 100}]'}
CONTAINERS = [{"name": "main", "image": "registry.invalid/c:1"}]
PLAIN: Json = {"spec": {"containers": CONTAINERS}}
POD: Json = {"metadata": {"annotations": ASKS}, **PLAIN}


def thing(api: str, kind: str, spec: Json, **metadata: Any) -> Json:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "x", **metadata}, "spec": spec}


def counts(*documents: Json) -> dict[str, int]:
    found = read_workloads("\n---\n".join(map(json.dumps, documents)))
    return {each.name: each.count for each in found.workloads}


def lws(scheduling: Json | None, *, leads: bool = True, replicas: int = 4, size: int = 2) -> Json:
    """A LeaderWorkerSet as its own documentation has it."""
    templates = {"workerTemplate": POD, **({"leaderTemplate": POD} if leads else {})}
    spec: Json = {"replicas": replicas, "leaderWorkerTemplate": {"size": size, **templates}}
    if scheduling is not None:
        spec["scheduling"] = scheduling
    return thing("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", spec)
