"""Nodes that are not ready, or whose kubelet is silent: their taints, and the pods that these end.

Taints for new pods come at once. Taints that end running pods come to one node of a zone after the other, and
not at all while no node of the cluster is ready, because that is rather the fault of the network.

Source (Kubernetes 1.36.2): `pkg/controller/nodelifecycle/node_lifecycle_controller.go`,
`pkg/controller/tainteviction/taint_eviction.go`. A node that never had a Lease is not watched, because most
nodes in tests have only a name.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from enum import Enum, auto, unique
from typing import TYPE_CHECKING

from k8s_rdma_demo.cluster.objects import (
    JsonObject,
    condition_of,
    is_terminating,
    metadata,
    node_name_of,
    parse_timestamp,
    spec_of,
    timestamp,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NOT_READY, UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"
NODE_LEASES = "kube-node-lease"
_NO_SCHEDULE, _NO_EXECUTE = "NoSchedule", "NoExecute"
_OURS = frozenset({NOT_READY, UNREACHABLE})

EVICTION_RATE, SECONDARY_RATE = 0.1, 0.01
"""Nodes of a zone a second (`--node-eviction-rate`, `--secondary-node-eviction-rate`)."""

LARGE_ZONE = 50
"""`--large-cluster-size-threshold`: up to so many nodes, the secondary rate is 0."""

UNHEALTHY_PART = 0.55
"""`--unhealthy-zone-threshold`."""

_MOST_LOST = 2
"""Nodes that a zone may lose and still be normal, however few it has."""

_ZONE = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone")
_EXCLUDED = "node.kubernetes.io/exclude-disruption"


@unique
class ZoneState(Enum):
    """The state of a zone."""

    NORMAL = auto()
    PARTIAL_DISRUPTION = auto()
    FULL_DISRUPTION = auto()


@unique
class Eviction(Enum):
    """Decisions about the taint that ends the pods of a lost node.

    DUE: it is added. DEFERRED: it is not added yet, and stays if it is there. STOPPED: it is removed.
    """

    DUE = auto()
    DEFERRED = auto()
    STOPPED = auto()


def zone_of(node: JsonObject) -> str:
    """Return the zone of a node, by its labels (`GetZoneKey`); empty without them."""
    labels = metadata(node).get("labels") or {}
    return ":".join(filter(None, (labels.get(key) for key in _ZONE)))


def zone_state(ready_nodes: int, lost_nodes: int) -> ZoneState:
    """Return the state of a zone with so many nodes that are ready, and that are not (`ComputeZoneState`)."""
    if not ready_nodes and lost_nodes:
        return ZoneState.FULL_DISRUPTION
    if lost_nodes > _MOST_LOST and lost_nodes / (lost_nodes + ready_nodes) >= UNHEALTHY_PART:
        return ZoneState.PARTIAL_DISRUPTION
    return ZoneState.NORMAL


def eviction_rates(nodes: Iterable[JsonObject]) -> Mapping[str, float] | None:
    """Return the number of nodes of each zone whose pods may be ended, a second.

    No result if evictions are stopped, because all zones are in full disruption (`handleDisruption`).
    """
    are_ready: dict[str, list[bool]] = defaultdict(list)
    for node in nodes:
        if _EXCLUDED not in (metadata(node).get("labels") or {}):
            is_ready = (condition_of(node, "Ready") or {}).get("status") == "True"
            are_ready[zone_of(node)].append(is_ready)
    states = {zone: zone_state(sum(flags), len(flags) - sum(flags)) for zone, flags in are_ready.items()}
    if states and all(state is ZoneState.FULL_DISRUPTION for state in states.values()):
        return None
    reduced = {zone: SECONDARY_RATE if len(flags) > LARGE_ZONE else 0.0 for zone, flags in are_ready.items()}
    return {
        zone: reduced[zone] if state is ZoneState.PARTIAL_DISRUPTION else EVICTION_RATE
        for zone, state in states.items()
    }


def silent_condition(node: JsonObject, moment: str) -> JsonObject | None:
    """Return the condition Ready of a node whose kubelet is silent, unless it has that already."""
    ready = condition_of(node, "Ready") or {}
    if ready.get("status") == "Unknown":
        return None
    return {
        **ready,
        "type": "Ready",
        "status": "Unknown",
        "lastTransitionTime": moment,
        "reason": "NodeStatusUnknown",
        "message": "Kubelet stopped posting node status.",
    }


def due_taints(node: JsonObject, moment: str, eviction: Eviction) -> list[JsonObject] | None:
    """Return the taints that the node's condition Ready asks for, beside others, unless it has them.

    A taint that it has already keeps the time at which it was added. One that ends pods is swapped for that
    of another condition at once. A node that was never ready or unready has no such taint.
    """
    status = (condition_of(node, "Ready") or {"status": "True"}).get("status")
    key = {"True": "", "Unknown": UNREACHABLE}.get(str(status), NOT_READY)
    present: list[JsonObject] = spec_of(node).get("taints") or []
    added = {(taint["key"], taint["effect"]): taint for taint in present}
    taints = [taint for taint in present if taint["key"] not in _OURS]
    has_effect = eviction is Eviction.DUE or (eviction is Eviction.DEFERRED and ends_pods(node))
    effects = (_NO_SCHEDULE, _NO_EXECUTE) if has_effect else (_NO_SCHEDULE,)
    for effect in effects if key else ():
        taint = added.get((key, effect)) or {"key": key, "effect": effect, "timeAdded": moment}
        taints.append(taint)
    return None if taints == present else taints


def ends_pods(node: JsonObject) -> bool:
    """Report whether the node has a taint of its condition that ends pods."""
    return any(
        taint["key"] in _OURS and taint["effect"] == _NO_EXECUTE
        for taint in spec_of(node).get("taints") or ()
    )


def eviction_time(pod: JsonObject, node: JsonObject) -> datetime | None:
    """Return the moment from which the node's taints end a pod, if they do.

    A taint that the pod does not tolerate ends it at once, and others after the shortest `tolerationSeconds`.
    """
    if is_terminating(pod) or not node_name_of(pod):
        return None
    ends: list[datetime] = []
    for taint in spec_of(node).get("taints") or ():
        if taint["effect"] != _NO_EXECUTE or not taint.get("timeAdded"):
            continue
        added = parse_timestamp(taint["timeAdded"])
        tolerating = [item for item in spec_of(pod).get("tolerations") or () if _tolerates(item, taint)]
        if not tolerating:
            ends.append(added)
            continue
        seconds = [
            item["tolerationSeconds"] for item in tolerating if item.get("tolerationSeconds") is not None
        ]
        if seconds:
            ends.append(added + timedelta(seconds=max(0, min(seconds))))
    return min(ends, default=None)


def _tolerates(toleration: JsonObject, taint: JsonObject) -> bool:
    about = toleration.get("key", "") in {"", taint["key"]}
    effect = toleration.get("effect", "") in {"", taint["effect"]}
    exists = toleration.get("operator", "Equal") == "Exists"
    return about and effect and (exists or toleration.get("value", "") == taint.get("value", ""))


def not_ready_status(pod: JsonObject, now: datetime) -> JsonObject | None:
    """Return the status patch of a pod whose node is not ready, unless the pod is not ready already."""
    ready = condition_of(pod, "Ready")
    if ready is None or ready.get("status") == "False":
        return None
    condition = {
        "type": "Ready",
        "status": "False",
        "lastTransitionTime": timestamp(now),
        "reason": "NodeNotReady",
        "message": "Node is not ready",
    }
    return {"conditions": [condition]}
