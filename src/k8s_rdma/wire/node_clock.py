"""Clock of a node, compared with the API server's by the Node object that kubelet keeps.

kubelet writes the time of its heartbeat by its own clock, every 5 minutes at least, and the API server notes
by its clock when it took that write (`metadata.managedFields`). An agent dates its Lease by the same clock
as kubelet. Source: Kubernetes' documentation, "Server-Side Apply", "Managed fields"; kubelet's
`nodeStatusReportFrequency`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from k8s_rdma.wire.objects.meta import ManagedFieldsEntry, ObjectMeta
from k8s_rdma.wire.objects.node import KubeNode

if TYPE_CHECKING:
    from datetime import datetime

MOST_SKEW_S = 5.0
"""Differences up to this are no skew: times of objects are whole seconds, and writes take some."""

_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))

_READY = 'k:{"type":"Ready"}'

_entry = msgspec.json.Decoder(ManagedFieldsEntry)


class _Metadata(ObjectMeta, frozen=True, kw_only=True):
    managed_fields: tuple[msgspec.Raw, ...] | None = None


class _Node(KubeNode, frozen=True, kw_only=True):
    metadata: _Metadata


_node = msgspec.json.Decoder(_Node)


def clock_skew_s(node: dict[str, Any]) -> float | None:
    """Return the seconds by which a node's clock is ahead of the API server's, negative if it is behind.

    The result is unknown (None) if somebody else wrote the heartbeat of the Node object, or cleared its
    author.
    """
    try:
        found = _node.decode(msgspec.json.encode(node))
    except (msgspec.MsgspecError, TypeError, RecursionError):
        return None
    heartbeats = [
        condition.last_heartbeat_time
        for condition in found.status.conditions or ()
        if condition.type == "Ready" and condition.last_heartbeat_time
    ]
    taken_at = [time for entry in found.metadata.managed_fields or () if (time := _heartbeat_taken_at(entry))]
    if len(heartbeats) != 1 or len(taken_at) != 1:
        return None
    skew_s = (heartbeats[0] - taken_at[0]).total_seconds()
    return skew_s if abs(skew_s) > MOST_SKEW_S else 0.0


def _heartbeat_taken_at(data: msgspec.Raw) -> datetime | None:
    """Return the time of the entry, if it is of the writer of the heartbeat."""
    try:
        entry = _entry.decode(data)
    except msgspec.MsgspecError:  # fields of other depths
        return None
    conditions = entry.fields_v1.get("f:status", {}).get("f:conditions", {})
    ready = conditions.get(_READY)
    return entry.time if isinstance(ready, dict) and "f:lastHeartbeatTime" in ready else None


def skew_text(skew_s: float) -> str:
    """Describe a skew in a clause, rounded to units that people compare."""
    seconds = abs(skew_s)
    unit, length = next(
        (unit, length)
        for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
        if seconds >= length
    )
    return f"{seconds / length:.3g} {unit} {'ahead of' if skew_s > 0 else 'behind'} the API server's"
