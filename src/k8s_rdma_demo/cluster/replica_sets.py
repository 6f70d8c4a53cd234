"""ReplicaSets: which pods are a set's own, how many it lacks or has too many, and its status.

Source (Kubernetes 1.36): `pkg/controller/replicaset`, `pkg/controller/controller_ref_manager.go`,
`pkg/controller/controller_utils.go` (`ActivePodsWithRanks`). Not simulated: `minReadySeconds`, slow start,
pods' deletion cost, and the rank by replicas on the same node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma_demo.cluster.objects import (
    REPLICA_SETS,
    JsonObject,
    condition_of,
    is_finished,
    is_terminating,
    labels_of,
    metadata,
    name_of,
    namespace_of,
    node_name_of,
    spec_of,
    status_of,
    uid_of,
)
from k8s_rdma_demo.cluster.selection import selects

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def controller_of(obj: JsonObject) -> JsonObject | None:
    """Return the owner reference of the object's controller, if it has one."""
    references = metadata(obj).get("ownerReferences") or ()
    return next((reference for reference in references if reference.get("controller")), None)


def controller_reference(api_version: str, owner: JsonObject, kind: str) -> JsonObject:
    """Return the owner reference of an object's controller."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": name_of(owner),
        "uid": uid_of(owner),
        "controller": True,
        "blockOwnerDeletion": True,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Objects that an owner controls by its selector. adopted: those that it takes. released: leaves."""

    owned: tuple[JsonObject, ...]
    adopted: tuple[JsonObject, ...]
    released: tuple[JsonObject, ...]


def claim(owner: JsonObject, candidates: Iterable[JsonObject]) -> Claim:
    """Divide the objects of the owner's namespace: those that it has, adopts and releases.

    An object with another controller is left alone. One that is being deleted is not adopted, and an owner
    that is being deleted does not adopt.
    """
    selector = spec_of(owner)["selector"]
    owned: list[JsonObject] = []
    adopted: list[JsonObject] = []
    released: list[JsonObject] = []
    for candidate in candidates:
        if namespace_of(candidate) != namespace_of(owner):
            continue
        reference, matches = controller_of(candidate), selects(selector, labels_of(candidate))
        if reference is not None and reference["uid"] == uid_of(owner):
            (owned if matches else released).append(candidate)
        elif reference is None and matches and not is_terminating(candidate) and not is_terminating(owner):
            adopted.append(candidate)
    return Claim(owned=tuple(owned), adopted=tuple(adopted), released=tuple(released))


def is_active(pod: JsonObject) -> bool:
    """Report whether a pod counts as a replica: it has not ended, and is not being deleted."""
    return not is_finished(pod) and not is_terminating(pod)


def is_ready(pod: JsonObject) -> bool:
    """Report whether a pod's condition Ready is true."""
    return (condition_of(pod, "Ready") or {}).get("status") == "True"


def replicas_of(owner: JsonObject) -> int:
    """Return the replicas of a specification; 1 if unset."""
    replicas = spec_of(owner).get("replicas")
    return 1 if replicas is None else int(replicas)


def surplus(pods: Sequence[JsonObject], count: int) -> list[JsonObject]:
    """Choose the pods to delete: those that run least, then the newest."""
    by_age = sorted(pods, key=lambda pod: str(metadata(pod).get("creationTimestamp", "")), reverse=True)
    return sorted(by_age, key=_rank)[:count]


def _rank(pod: JsonObject) -> tuple[bool, int, bool]:
    phases = {"Pending": 0, "Unknown": 1, "Running": 2}
    return bool(node_name_of(pod)), phases.get(str(status_of(pod).get("phase")), 2), is_ready(pod)


def new_pod(replica_set: JsonObject) -> JsonObject:
    """Make a pod of the set's template."""
    template = spec_of(replica_set)["template"]
    copied = {name: value for name, value in metadata(template).items() if name in {"labels", "annotations"}}
    reference = controller_reference(REPLICA_SETS.api_version, replica_set, REPLICA_SETS.kind)
    meta = {
        **copied,
        "generateName": f"{name_of(replica_set)}-",
        "namespace": namespace_of(replica_set),
        "ownerReferences": [reference],
    }
    return {"metadata": meta, "spec": spec_of(template)}


def status_now(replica_set: JsonObject, pods: Sequence[JsonObject]) -> JsonObject:
    """Return the set's status, of its active pods."""
    labels = labels_of(spec_of(replica_set)["template"])
    ready = sum(map(is_ready, pods))
    counts = {
        "replicas": len(pods),
        "fullyLabeledReplicas": sum(labels.items() <= labels_of(pod).items() for pod in pods),
        "readyReplicas": ready,
        "availableReplicas": ready,
    }
    shown = {name: count for name, count in counts.items() if count or name == "replicas"}
    return {**shown, "observedGeneration": metadata(replica_set).get("generation", 1)}
