"""Deployments: the ReplicaSet of item template, the roll-out from old ones to the new one, and the status.

Source (Kubernetes 1.36): `pkg/controller/deployment` (`sync.go`, `rolling.go`, `recreate.go`, `util`). Not
simulated: proportional scaling, pauses, rollbacks, and the progress deadline.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma_demo.cluster.objects import (
    DEPLOYMENTS,
    REPLICA_SETS,
    JsonObject,
    annotations_of,
    condition_of,
    go_json,
    is_terminating,
    labels_of,
    metadata,
    name_of,
    namespace_of,
    spec_of,
    status_of,
)
from k8s_rdma_demo.cluster.replica_sets import controller_reference, replicas_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

HASH_LABEL = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
_SAFE = "bcdfghjklmnpqrstvwxz2456789"
_HASH_LETTERS = 10
_PERCENT = 100


def new_replica_set(deployment: JsonObject, sets: Sequence[JsonObject]) -> JsonObject | None:
    """Return the oldest set of the deployment's present template, if there is one."""
    template = without_hash(spec_of(deployment)["template"])
    by_age = sorted(sets, key=lambda item: str(metadata(item).get("creationTimestamp", "")))
    return next((item for item in by_age if without_hash(spec_of(item)["template"]) == template), None)


def without_hash(template: JsonObject) -> JsonObject:
    """Return a template without the label that its deployment adds."""
    labels = {name: value for name, value in labels_of(template).items() if name != HASH_LABEL}
    return {**template, "metadata": {**metadata(template), "labels": labels}}


def made_replica_set(deployment: JsonObject, revision: int) -> JsonObject:
    """Make the set of the deployment's present template, without replicas."""
    template = spec_of(deployment)["template"]
    letters = _template_hash(template)
    labels = {**labels_of(template), HASH_LABEL: letters}
    selector = spec_of(deployment)["selector"]
    matched = {**(selector.get("matchLabels") or {}), HASH_LABEL: letters}
    return {
        "metadata": {
            "name": f"{name_of(deployment)}-{letters}",
            "namespace": namespace_of(deployment),
            "labels": labels,
            "annotations": {REVISION: str(revision)},
            "ownerReferences": [controller_reference(DEPLOYMENTS.api_version, deployment, DEPLOYMENTS.kind)],
        },
        "spec": {
            "replicas": 0,
            "selector": {**selector, "matchLabels": matched},
            "template": {**template, "metadata": {**metadata(template), "labels": labels}},
        },
    }


def _template_hash(template: JsonObject) -> str:
    """Return letters that stand for a template; those of Kubernetes are of another function."""
    digest = hashlib.sha256(go_json(template, order="deterministic")).digest()
    return "".join(_SAFE[byte % len(_SAFE)] for byte in digest[:_HASH_LETTERS])


def revision_of(replica_set: JsonObject) -> int:
    """Return the revision of a set; 0 without the annotation."""
    return int(annotations_of(replica_set).get(REVISION) or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The pods that a roll-out may add, and those that may be missing meanwhile."""

    surge: int
    unavailable: int

    @classmethod
    def parse(cls, deployment: JsonObject) -> Bounds:
        """Read them; surge is rounded up, missing pods down, and both are never zero."""
        rolling = (spec_of(deployment).get("strategy") or {}).get("rollingUpdate") or {}
        replicas = replicas_of(deployment)
        surge = _part(rolling.get("maxSurge", "25%"), replicas, math.ceil)
        unavailable = _part(rolling.get("maxUnavailable", "25%"), replicas, math.floor)
        return cls(surge=surge, unavailable=min(unavailable or (0 if surge else 1), replicas))


def _part(value: int | str, replicas: int, rounded: Callable[[float], int]) -> int:
    if isinstance(value, int):
        return value
    return rounded(int(value.removesuffix("%")) * replicas / _PERCENT)


def scales(deployment: JsonObject, new: JsonObject, old: Sequence[JsonObject]) -> dict[str, int]:
    """Return the replicas that sets are to have now, by name, if they differ from the present ones.

    old: the deployment's other sets.
    """
    recreates = (spec_of(deployment).get("strategy") or {}).get("type") == "Recreate"
    planned = _recreated(deployment, new, old) if recreates else _rolled(deployment, new, old)
    present = {name_of(item): replicas_of(item) for item in (new, *old)}
    return {name: count for name, count in planned.items() if count != present[name]}


def _recreated(deployment: JsonObject, new: JsonObject, old: Sequence[JsonObject]) -> dict[str, int]:
    planned = {name_of(item): 0 for item in old}
    if not any(replicas_of(item) or _counted(item, "replicas") for item in old):
        planned[name_of(new)] = replicas_of(deployment)
    return planned


def _rolled(deployment: JsonObject, new: JsonObject, old: Sequence[JsonObject]) -> dict[str, int]:
    """Scale the new set up as far as the surge allows, else old ones down as far as pods are available."""
    replicas, bounds = replicas_of(deployment), Bounds.parse(deployment)
    total = sum(map(replicas_of, (new, *old)))
    if replicas_of(new) > replicas:
        return {name_of(new): replicas}
    room = replicas + bounds.surge - total
    if replicas_of(new) < replicas and room > 0:
        return {name_of(new): min(replicas_of(new) + room, replicas)}
    return _scaled_down(old, total, new, replicas - bounds.unavailable)


def _scaled_down(old: Sequence[JsonObject], total: int, new: JsonObject, least: int) -> dict[str, int]:
    """Scale old sets down: first pods that are not available, then available ones beyond the least number."""
    missing_new = replicas_of(new) - _counted(new, "availableReplicas")
    remaining = total - least - missing_new
    if remaining <= 0:
        return {}
    planned: dict[str, int] = {}
    for item in old:
        broken = max(0, replicas_of(item) - _counted(item, "availableReplicas"))
        removed = min(remaining, broken)
        planned[name_of(item)] = replicas_of(item) - removed
        remaining -= removed
    available = sum(_counted(item, "availableReplicas") for item in (new, *old))
    spare = max(0, available - least)
    for item in old:
        removed = min(spare, planned[name_of(item)])
        planned[name_of(item)] -= removed
        spare -= removed
    return planned


def _counted(replica_set: JsonObject, name: str) -> int:
    return int(status_of(replica_set).get(name) or 0)


def outdated(deployment: JsonObject, old: Iterable[JsonObject]) -> list[JsonObject]:
    """Choose the empty sets of former templates to delete: all but as many as the history has."""
    limit = spec_of(deployment).get("revisionHistoryLimit")
    empty = [
        item
        for item in old
        if not replicas_of(item) and not _counted(item, "replicas") and not is_terminating(item)
    ]
    history = 10 if limit is None else int(limit)
    return sorted(empty, key=revision_of)[: max(0, len(empty) - history)]


def status_now(deployment: JsonObject, new: JsonObject, old: Sequence[JsonObject], moment: str) -> JsonObject:
    """Return the deployment's status, of its sets' statuses. moment: the time now."""
    sets = (new, *old)
    replicas = replicas_of(deployment)
    counts = {
        "replicas": sum(_counted(item, "replicas") for item in sets),
        "updatedReplicas": _counted(new, "replicas"),
        "readyReplicas": sum(_counted(item, "readyReplicas") for item in sets),
        "availableReplicas": sum(_counted(item, "availableReplicas") for item in sets),
    }
    counts["unavailableReplicas"] = max(0, sum(map(replicas_of, sets)) - counts["availableReplicas"])
    least = replicas - Bounds.parse(deployment).unavailable
    complete = counts["updatedReplicas"] == counts["availableReplicas"] == counts["replicas"] == replicas
    available = counts["availableReplicas"] >= least
    conditions = (
        ("Available", available, "MinimumReplicasAvailable" if available else "MinimumReplicasUnavailable"),
        ("Progressing", True, "NewReplicaSetAvailable" if complete else "ReplicaSetUpdated"),
    )
    return {
        **{name: count for name, count in counts.items() if count},
        "observedGeneration": metadata(deployment).get("generation", 1),
        "conditions": [_condition(deployment, *condition, moment) for condition in conditions],
    }


def _condition(deployment: JsonObject, kind: str, holds: bool, reason: str, moment: str) -> JsonObject:
    status = "True" if holds else "False"
    former = condition_of(deployment, kind) or {}
    if (former.get("status"), former.get("reason")) == (status, reason):
        return former
    since = former.get("lastTransitionTime") if former.get("status") == status else None
    messages = {
        "MinimumReplicasAvailable": "Deployment has minimum availability.",
        "MinimumReplicasUnavailable": "Deployment does not have minimum availability.",
    }
    return {
        "type": kind,
        "status": status,
        "lastUpdateTime": moment,
        "lastTransitionTime": since or moment,
        "reason": reason,
        "message": messages.get(reason, f"{REPLICA_SETS.kind} of {name_of(deployment)}"),
    }
