"""ResourceClaims and DeviceClasses (`resource.k8s.io/v1`).

Source: k8s.io/api/resource/v1, types.go (Kubernetes 1.36).
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from k8s_rdma.wire.objects.meta import WholeMeta
from k8s_rdma.wire.objects.node import ApiToleration

MAX_RESULTS = 32
"""Results of an allocation (`AllocationResultsMaxSize`)."""


class CelExpression(msgspec.Struct, frozen=True):
    """A `CELDeviceSelector`."""

    expression: str = ""


class DeviceSelector(msgspec.Struct, frozen=True):
    """A selector of devices."""

    cel: CelExpression = CelExpression()


class CapacityRequests(msgspec.Struct, frozen=True):
    """The capacities that a request asks for: quantities."""

    requests: dict[str, str | int] | None = None


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A request for devices: `exactly` one kind, or the `first_available` of several requests."""

    name: str = ""
    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] | None = None
    allocation_mode: str = "ExactCount"
    count: int = 1
    admin_access: bool | None = None
    tolerations: tuple[ApiToleration, ...] | None = None
    capacity: CapacityRequests | None = None
    exactly: ClaimRequest | None = None
    first_available: tuple[ClaimRequest, ...] | None = None


class ClaimConstraint(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A constraint on the devices of several requests."""

    requests: tuple[str, ...] | None = None
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class ClaimDevices(msgspec.Struct, frozen=True, kw_only=True):
    """The devices that a claim asks for."""

    requests: tuple[ClaimRequest, ...] | None = None
    constraints: tuple[ClaimConstraint, ...] | None = None


class ClaimSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A claim's specification."""

    devices: ClaimDevices = ClaimDevices()


class AllocationResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A device that was allocated for a request; `share_id` if the device is shared."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str | None = msgspec.field(name="shareID", default=None)
    consumed_capacity: dict[str, str | int] | None = None
    admin_access: bool | None = None


class AllocatedDevices(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of an allocation."""

    results: Annotated[tuple[AllocationResult, ...], msgspec.Meta(max_length=MAX_RESULTS)] | None = None


class ClaimAllocation(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation."""

    devices: AllocatedDevices = AllocatedDevices()


class ClaimConsumer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An entry of `status.reservedFor`."""

    api_group: str | None = None
    resource: str = ""
    name: str = ""
    uid: str = ""


class ClaimStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A claim's status. devices: as drivers wrote them."""

    allocation: ClaimAllocation | None = None
    reserved_for: tuple[ClaimConsumer, ...] | None = None
    devices: tuple[dict[str, Any], ...] | None = None


class KubeClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A ResourceClaim, or the part of a ResourceClaimTemplate that claims are made of."""

    metadata: WholeMeta = WholeMeta()
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()


class DeviceClassSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The specification of a DeviceClass."""

    selectors: tuple[DeviceSelector, ...] | None = None
    extended_resource_name: str | None = None


class DeviceClass(msgspec.Struct, frozen=True, kw_only=True):
    """A DeviceClass."""

    metadata: WholeMeta = WholeMeta()
    spec: DeviceClassSpec = DeviceClassSpec()
