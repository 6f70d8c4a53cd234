"""Node objects whose heartbeat the API server took at another time than the node's clock says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any


def skewed_node(name: str, skew_s: float, age_s: float = 0.0) -> dict[str, Any]:
    """A node whose clock is ahead by so much. age_s: since kubelet's last write."""
    taken_at = datetime.now(UTC) - timedelta(seconds=age_s)
    heartbeat = taken_at + timedelta(seconds=skew_s)
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": heartbeat.isoformat()}
    entry = {
        "manager": "kubelet",
        "operation": "Update",
        "subresource": "status",
        "time": taken_at.isoformat(),
        "fieldsV1": {"f:status": {"f:conditions": {'k:{"type":"Ready"}': {"f:lastHeartbeatTime": {}}}}},
    }
    labels = {"time": taken_at.isoformat(), "fieldsV1": {"f:metadata": {"f:labels": {"f:rack": {}}}}}
    return {
        "metadata": {"name": name, "managedFields": [labels, entry]},
        "spec": {},
        "status": {"conditions": [ready]},
    }
