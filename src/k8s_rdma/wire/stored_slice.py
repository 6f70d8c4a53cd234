"""ResourceSlices as the API server kept them, in the fields that `wire.resource_slice` writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.json import decode
from k8s_rdma.wire.objects.node import ApiTaint

if TYPE_CHECKING:
    from collections.abc import Mapping

TAINTS = "taints"
"""The field that an API server without the feature gate DRADeviceTaints drops."""


class Capacity(msgspec.Struct, frozen=True, rename="camel"):
    """A capacity of a device."""

    value: str = ""
    request_policy: dict[str, Any] | None = None


class Device(msgspec.Struct, frozen=True, rename="camel"):
    """A device of a slice, in the fields that this driver writes."""

    name: str = ""
    allow_multiple_allocations: bool = False
    attributes: dict[str, dict[str, Any]] = {}
    capacity: dict[str, Capacity] = {}
    taints: tuple[ApiTaint, ...] = ()


class SlicePool(msgspec.Struct, frozen=True, rename="camel"):
    """The pool that a slice is of."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class SliceSpec(msgspec.Struct, frozen=True, rename="camel"):
    """A slice's `spec` in the fields that this driver writes; the API server adds others."""

    pool: SlicePool = SlicePool()
    devices: tuple[Device, ...] = ()


_decoder = msgspec.json.Decoder(SliceSpec)


def decode_spec(spec: bytes) -> SliceSpec:
    """Read a slice's `spec`; an empty one if it is malformed."""
    try:
        return decode(spec, _decoder, "spec")
    except MalformedError:
        return SliceSpec()


def equals(found: SliceSpec, spec: Mapping[str, Any]) -> bool:
    """Report whether a slice is as it should be, apart from its pool's generation."""
    pool = msgspec.structs.replace(found.pool, generation=0)
    return msgspec.structs.replace(found, pool=pool) == msgspec.convert(spec, SliceSpec)


def dropped_fields(stored: SliceSpec, spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Name the fields of devices that the API server dropped: those of feature gates that it has off."""
    by_name = {device.name: device for device in stored.devices}
    dropped = set()
    for device in msgspec.convert(spec, SliceSpec).devices:
        found = by_name.get(device.name, Device())
        if not found.allow_multiple_allocations:
            dropped.add("allowMultipleAllocations")
        if not all(found.capacity.get(name, Capacity()).request_policy for name in device.capacity):
            dropped.add("requestPolicy")
        if device.taints and not found.taints:
            dropped.add(TAINTS)
    return tuple(sorted(dropped))
