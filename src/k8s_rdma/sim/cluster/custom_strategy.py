"""What the API server does to objects of custom resources.

Source: `pkg/registry/customresource/strategy.go` and `status_strategy.go` of apiextensions-apiserver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.sim.cluster.objects import metadata

if TYPE_CHECKING:
    from k8s_rdma.sim.cluster.objects import JsonObject
    from k8s_rdma.sim.cluster.resources import Target

_NOT_COUNTED = frozenset({"metadata", "kind", "apiVersion"})
"""What may change without a new generation."""


def new_object(obj: JsonObject, *, has_status: bool) -> JsonObject:
    """As it is created: without a status where that is a subresource of its own."""
    made = {**obj, "metadata": {**metadata(obj), "generation": 1}}
    if has_status:
        made.pop("status", None)
    return made


def updated(target: Target, old: JsonObject, new: JsonObject) -> JsonObject:
    """As it is written: the status alone by its subresource, all but the status by the object itself.

    Another generation with every change but of the metadata (labels and annotations among them).
    """
    if target.subresource == "status":
        return _with_status_of(old, new)
    if target.resource.has_status:
        new = _with_status_of(new, old)
    if _counted(new) != _counted(old):
        new["metadata"] = {**metadata(new), "generation": metadata(old).get("generation", 0) + 1}
    return new


def _with_status_of(obj: JsonObject, other: JsonObject) -> JsonObject:
    made = {name: value for name, value in obj.items() if name != "status"}
    return {**made, "status": other["status"]} if "status" in other else made


def _counted(obj: JsonObject) -> JsonObject:
    return {name: value for name, value in obj.items() if name not in _NOT_COUNTED}
