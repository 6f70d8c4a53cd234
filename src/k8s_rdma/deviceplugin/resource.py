"""One resource: its devices, kubelet's calls, and their counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Protocol

import structlog

from k8s_rdma.core.devices.device_plugin_api import (
    AllocateResponse,
    Choice,
    OfferedDevice,
    PluginOptions,
    PluginRegistration,
)
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.kube.grpc_calls import handler, stream_handler
from k8s_rdma.wire import kubelet as api
from k8s_rdma.wire.protobuf import Form, Method

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from k8s_rdma.core.devices.rdma_devices import DeviceInventory
    from k8s_rdma.deviceplugin.endpoint import Followers, Handlers
    from k8s_rdma.deviceplugin.mode import Mode

    Complete = Callable[[str, Choice], Awaitable[Choice]]

_log = structlog.get_logger()

SHOWN = 4
"""Devices whose reasons are listed; when a PF's fault makes many unhealthy, that is enough."""

_RAW: Form[bytes] = Form(encode=bytes, decode=bytes)
_LISTS: Method[None, bytes] = Method(
    service=api.LIST_AND_WATCH.service,
    name=api.LIST_AND_WATCH.name,
    request=api.LIST_AND_WATCH.request,
    answer=_RAW,
    streams=True,
)


class Resource:
    """Resource of a mode, with its last list of devices."""

    def __init__(self, mode: Mode, devices: InventorySource, complete: Complete) -> None:
        """Serve a mode. complete: adds to kubelet's request for a preference the devices that the pod has."""
        self.name = mode.resource
        self.counts = Counts()
        self.devices: tuple[OfferedDevice, ...] = ()
        self.message = api.LIST_AND_WATCH.answer.encode(())
        """Encoded list for kubelet, shared by all that follow it."""
        self.fault = _fault(self.devices)
        """Reason why no container can have any of it; empty when one can."""
        self._logged_fault = ""
        self._mode = mode
        self._devices = devices
        self._complete = complete
        self._options = PluginOptions(preferred_allocation=mode.prefers)

    def update(self) -> bool:
        """Compute the list from the current inventory; report whether it differs for kubelet."""
        devices = self._mode.offer(self._devices.inventory)
        if devices == self.devices:
            return False
        self.devices = devices
        self.fault = _fault(devices)
        message = api.LIST_AND_WATCH.answer.encode(devices)
        changed, self.message = message != self.message, message
        return changed

    @property
    def unhealthy(self) -> str:
        """Names of the unhealthy devices, and the reasons; empty when there are none."""
        return _reasons(self.devices)

    def log_fault(self) -> None:
        """Log a fault, and its end, once."""
        if self.fault == self._logged_fault:
            return
        self._logged_fault = self.fault
        if self.fault:
            _log.warning("resource_unusable", resource=self.name, why=self.fault, devices=len(self.devices))
        else:
            _log.info("resource_usable", resource=self.name)

    def registration(self, endpoint: str) -> PluginRegistration:
        """Return the registration for kubelet, with a socket's name."""
        return PluginRegistration(resource=self.name, endpoint=endpoint, options=self._options)

    def handlers(self, followers: Followers) -> Handlers:
        """Return the handlers of kubelet's API for an endpoint."""
        return {
            api.GET_DEVICE_PLUGIN_OPTIONS: handler(api.GET_DEVICE_PLUGIN_OPTIONS, self._get_options),
            _LISTS: stream_handler(_LISTS, followers.follow),
            api.GET_PREFERRED_ALLOCATION: handler(api.GET_PREFERRED_ALLOCATION, self._prefer),
            api.ALLOCATE: handler(api.ALLOCATE, self._allocate),
            api.PRE_START_CONTAINER: handler(api.PRE_START_CONTAINER, self._pre_start),
        }

    async def _get_options(self, _request: None) -> PluginOptions:
        return self._options

    async def _prefer(self, choices: Sequence[Choice]) -> Sequence[tuple[str, ...]]:
        completed = [await self._complete(self.name, choice) for choice in choices]
        return [self._mode.prefer(choice, self._devices.inventory) for choice in completed]

    async def _allocate(self, containers: Sequence[tuple[str, ...]]) -> Sequence[AllocateResponse]:
        """Allocate for all containers or for none: kubelet drops the whole response when one fails."""
        started = monotonic()
        inventory = self._devices.inventory
        try:
            allocations = [self._mode.allocate(ids, inventory) for ids in containers]
        except K8sRdmaError as error:
            self.counts.refusals[error.reason] += 1
            _log.warning("not_allocated", resource=self.name, devices=containers, error=error.message)
            raise
        self.counts.allocations += len(allocations)
        took_ms = (monotonic() - started) * 1000
        _log.info("allocated", resource=self.name, devices=containers, took_ms=round(took_ms, 3))
        return allocations

    async def _pre_start(self, _ids: tuple[str, ...]) -> None:
        """Do nothing; kubelet is not told to make this call."""


@dataclass(slots=True, kw_only=True)
class Counts:
    """Counts since the process started.

    allocations: containers that got devices. refusals: refused allocations, by reason. registrations: with
    kubelet, by whether it took them.
    """

    allocations: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    registrations: Counter[bool] = field(default_factory=Counter)


class InventorySource(Protocol):
    """Source of observed devices."""

    @property
    def inventory(self) -> DeviceInventory:
        """Current inventory."""
        ...


def _fault(devices: Sequence[OfferedDevice]) -> str:
    """Return the fault of all devices; counted devices share one."""
    if not devices:
        return "it has no devices: none is selected, or its count is 0"
    if not all(device.unhealthy for device in devices):
        return ""
    first = devices[0].unhealthy
    if all(device.unhealthy == first for device in devices):
        return first
    return _reasons(devices)


def _reasons(devices: Sequence[OfferedDevice]) -> str:
    """Summarize the faults of the unhealthy devices."""
    unhealthy = [device for device in devices if device.unhealthy]
    if not unhealthy:
        return ""
    reasons = [f"{device.id}: {device.unhealthy}" for device in unhealthy[:SHOWN]]
    if len(unhealthy) > SHOWN:
        reasons.append(f"and {len(unhealthy) - SHOWN} more")
    return f"{len(unhealthy)} of {len(devices)} devices are unhealthy: {'; '.join(reasons)}"
