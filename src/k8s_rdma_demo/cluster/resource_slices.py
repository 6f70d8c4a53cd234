"""ResourceSlices as the API server keeps them: feature gates, defaults, canonical quantities, limits.

Only the parts that drivers need are here. An object is taken whole or refused with the API server's words.

Source (Kubernetes 1.36): `pkg/registry/resource/resourceslice/strategy.go`, `pkg/apis/resource/validation`,
`pkg/apis/resource/v1/defaults.go`; quantities: `k8s.io/apimachinery/pkg/api/resource`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from k8s_rdma.wire.pod_spec import quantity
from k8s_rdma_demo.cluster.objects import RESOURCE_SLICES, JsonObject, metadata, name_of, spec_of
from k8s_rdma_demo.cluster.quantities import canonical_quantity, canonical_time
from k8s_rdma_demo.cluster.status import invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CONSUMABLE_CAPACITY, TAINTS = "DRAConsumableCapacity", "DRADeviceTaints"
"""Feature gates that are on by default from Kubernetes 1.36."""

_MAX_DEVICES, _MAX_DEVICES_WITH_TAINTS = 128, 64
_MAX_TEXT_BYTES = 64

_IMMUTABLE: dict[str, Callable[[JsonObject], Any]] = {
    "driver": lambda spec: spec.get("driver"),
    "nodeName": lambda spec: spec.get("nodeName"),
    "pool.name": lambda spec: (spec.get("pool") or {}).get("name"),
}


def stored_slice(
    slice_: JsonObject, old: JsonObject | None, *, gates_off: frozenset[str], now: str
) -> JsonObject:
    """The slice as it is stored: without the fields of gates that are off, and with defaults filled in.

    Fields that the old slice has already are kept whatever the gates. now: the time of taints without one.
    StatusError 422 when the slice is wrong, ValueError for a malformed quantity or time.
    """
    generation = metadata(old).get("generation", 0) if old else 0
    spec = {**spec_of(slice_), "devices": [_canonical(d) for d in spec_of(slice_).get("devices") or ()]}
    if CONSUMABLE_CAPACITY in gates_off and not _shares(old):
        for device in spec["devices"]:
            _drop_shares(device)
    if TAINTS in gates_off and not any("taints" in device for device in _devices(old)):
        for device in spec["devices"]:
            device.pop("taints", None)
    _check(slice_, old, spec)
    for device in spec["devices"]:
        _fill_in(device, now)
    if old is None or spec != spec_of(old):
        generation += 1
    return {**slice_, "metadata": {**metadata(slice_), "generation": generation}, "spec": spec}


def _devices(slice_: JsonObject | None) -> list[JsonObject]:
    return spec_of(slice_).get("devices") or [] if slice_ else []


def _capacities(device: JsonObject) -> dict[str, JsonObject]:
    found: dict[str, JsonObject] = device.get("capacity") or {}
    return found


def _shares(slice_: JsonObject | None) -> bool:
    return any(
        "allowMultipleAllocations" in device
        or any("requestPolicy" in capacity for capacity in _capacities(device).values())
        for device in _devices(slice_)
    )


def _drop_shares(device: JsonObject) -> None:
    device.pop("allowMultipleAllocations", None)
    if "capacity" in device:
        device["capacity"] = {
            name: {"value": capacity["value"]} for name, capacity in _capacities(device).items()
        }


def _canonical(device: JsonObject) -> JsonObject:
    return (
        {**device, "capacity": _in_canonical_form(device["capacity"])}
        if device.get("capacity")
        else {**device}
    )


def _fill_in(device: JsonObject, now: str) -> None:
    if "taints" in device:
        device["taints"] = [
            {**taint, "timeAdded": canonical_time(taint.get("timeAdded") or now)}
            for taint in device["taints"]
        ]


def _in_canonical_form(value: Any) -> Any:
    """Write each value of a capacity, which is a quantity, in its canonical form."""
    if isinstance(value, dict):
        return {key: _in_canonical_form(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_in_canonical_form(item) for item in value]
    return canonical_quantity(value)


def _check(slice_: JsonObject, old: JsonObject | None, spec: JsonObject) -> None:
    for path, why in _faults(old, spec):
        raise invalid(RESOURCE_SLICES, name_of(slice_), f"spec.{path}", "FieldValueInvalid", why)


def _faults(old: JsonObject | None, spec: JsonObject) -> Iterator[tuple[str, str]]:
    devices = spec["devices"]
    for path, read in _IMMUTABLE.items():
        if old is not None and read(spec) != read(spec_of(old)):
            yield path, "field is immutable"
    tainted = any(device.get("taints") for device in devices)
    limit = _MAX_DEVICES_WITH_TAINTS if tainted else _MAX_DEVICES
    if len(devices) > limit:
        yield "devices", f"Too many: {len(devices)}: must have at most {limit} items"
    if len({device["name"] for device in devices}) < len(devices):
        yield "devices", "Duplicate value"
    for index, device in enumerate(devices):
        for key, value in (device.get("attributes") or {}).items():
            if len(str(value.get("string", "")).encode()) > _MAX_TEXT_BYTES:
                why = f"Too long: may not be more than {_MAX_TEXT_BYTES} bytes"
                yield f"devices[{index}].attributes[{key}].string", why
        for key, capacity in _capacities(device).items():
            for path, why in _policy_faults(capacity):
                yield f"devices[{index}].capacity[{key}].requestPolicy.{path}", why


def _policy_faults(capacity: JsonObject) -> Iterator[tuple[str, str]]:
    policy, value = capacity.get("requestPolicy") or {}, quantity(capacity["value"])
    for index, option in enumerate(policy.get("validValues") or ()):
        if quantity(option) > value:
            why = f'Invalid value: "{option}": option is larger than capacity value: {capacity["value"]}'
            yield f"validValues[{index}]", why
    allowed = policy.get("validRange") or {}
    if (step := allowed.get("step")) and quantity(allowed["min"]) + quantity(step) > value:
        why = f'Invalid value: "{step}": one step {step} is larger than capacity value: {capacity["value"]}'
        yield "validRange.step", why
