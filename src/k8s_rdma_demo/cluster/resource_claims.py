"""ResourceClaims and their templates as the API server keeps them: defaults and canonical quantities.

Source (Kubernetes 1.36): `pkg/apis/resource/v1/defaults.go`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma_demo.cluster.quantities import canonical_quantity

if TYPE_CHECKING:
    from k8s_rdma_demo.cluster.objects import JsonObject

_EXACT = "ExactCount"


def complete_claim_spec(spec: JsonObject) -> JsonObject:
    """Return the spec of a claim as stored; ValueError for a malformed quantity has the server's words."""
    devices: JsonObject = spec.get("devices") or {}
    if not devices.get("requests"):
        return spec
    return {
        **spec,
        "devices": {**devices, "requests": [_request(request) for request in devices["requests"]]},
    }


def _request(request: JsonObject) -> JsonObject:
    complete = dict(request)
    if request.get("exactly"):
        complete["exactly"] = _choice(request["exactly"])
    if request.get("firstAvailable"):
        complete["firstAvailable"] = [_choice(choice) for choice in request["firstAvailable"]]
    return complete


def _choice(choice: JsonObject) -> JsonObject:
    complete = {**choice, "allocationMode": choice.get("allocationMode") or _EXACT}
    if complete["allocationMode"] == _EXACT:
        complete["count"] = choice.get("count") or 1
    if choice.get("tolerations"):
        complete["tolerations"] = [
            {**entry, "operator": entry.get("operator") or "Equal"} for entry in choice["tolerations"]
        ]
    amounts = (choice.get("capacity") or {}).get("requests")
    if amounts:
        canonical = {name: canonical_quantity(amounts[name]) for name in sorted(amounts)}
        complete["capacity"] = {**choice["capacity"], "requests": canonical}
    return complete
