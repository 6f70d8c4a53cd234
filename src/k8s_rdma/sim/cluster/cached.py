"""Objects as kube-scheduler keeps them, and so sends them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.sim.cluster.objects import metadata

if TYPE_CHECKING:
    from k8s_rdma.sim.cluster.objects import JsonObject


def untyped(obj: JsonObject) -> JsonObject:
    """Without `kind` and `apiVersion`."""
    return {name: value for name, value in obj.items() if name not in {"kind", "apiVersion"}}


def cached_pod(pod: JsonObject) -> JsonObject:
    """kube-scheduler drops pods' `managedFields` on receipt, to save memory; it keeps those of nodes."""
    kept = {name: value for name, value in metadata(pod).items() if name != "managedFields"}
    return {**untyped(pod), "metadata": kept}
