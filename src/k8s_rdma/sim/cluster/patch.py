"""JSON merge patch (RFC 7386) and strategic merge patch, as far as pods and nodes need it.

A strategic merge patch is a merge patch in which some lists are merged by a key of their elements
(source: API conventions, and the `patchMergeKey` tags of `k8s.io/api/core/v1/types.go`).
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from k8s_rdma.sim.cluster.status import bad_request

_MERGE_KEYS = {
    "addresses": "type",
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostIPs": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "podIPs": "ip",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumes": "name",
}


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386, section 2; neither argument is changed."""
    if not isinstance(patch, dict):
        return deepcopy(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def strategic_merge_patch(target: Any, patch: Any) -> Any:
    """As `merge_patch`, with the known lists merged by key; StatusError 400 for an element without it."""
    if not isinstance(patch, dict):
        return deepcopy(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        key = _MERGE_KEYS.get(name)
        if value is None:
            merged.pop(name, None)
        elif key is not None and isinstance(value, list):
            merged[name] = _merge_by_key(name, merged.get(name) or [], value, key)
        elif not name.startswith("$"):  # directives such as $setElementOrder only order what is merged
            merged[name] = strategic_merge_patch(merged.get(name), value)
    return merged


def _merge_by_key(field: str, target: list[Any], patch: list[Any], key: str) -> list[Any]:
    merged = list(target)
    for element in patch:
        if not isinstance(element, dict) or key not in element:
            raise bad_request(f"map: {element} does not contain declared merge key: {key} (field {field})")
        at = next((i for i, present in enumerate(merged) if present.get(key) == element[key]), None)
        if element.get("$patch") == "delete":
            if at is not None:
                del merged[at]
        elif at is None:
            merged.append(deepcopy(element))
        else:
            merged[at] = strategic_merge_patch(merged[at], element)
    return merged
