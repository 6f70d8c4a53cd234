"""Connections to device plugins, the checks of a registration, and the devices that each plugin lists.

Source: `pkg/kubelet/cm/devicemanager/plugin/v1beta1/server.go`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from k8s_rdma.core.devices.pod_devices import (
    DEVICE_PLUGIN_VERSION,
    AllocateResponse,
    Choice,
    OfferedDevice,
    PluginOptions,
    PluginRegistration,
)
from k8s_rdma.errors import K8sRdmaError, MalformedError
from k8s_rdma.kube import grpc_calls
from k8s_rdma.kube.grpc_calls import AioRpcError, RefusedCallError, StatusCode
from k8s_rdma.wire.device_plugin import (
    ALLOCATE,
    GET_DEVICE_PLUGIN_OPTIONS,
    GET_PREFERRED_ALLOCATION,
    LIST_AND_WATCH,
    PRE_START_CONTAINER,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path

    from k8s_rdma.wire.protobuf import Method

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_MAX_DOMAIN = 253
_MAX_NAME = 63
_QUOTA = "requests."

RequestT = TypeVar("RequestT")
Answer = TypeVar("Answer")

PRE_START_TIMEOUT_S = 30.0
_ALLOCATE_TIMEOUT_S = 60.0  # kubelet's own has no end


def check_registration(registration: PluginRegistration) -> None:
    """Raise RefusedCallError, with the code that every error of kubelet has, if kubelet refuses this."""
    if registration.version != DEVICE_PLUGIN_VERSION:
        raise RefusedCallError(
            StatusCode.UNKNOWN,
            f'requested API version "{registration.version}" is not supported by kubelet. Supported version '
            f'is ["{DEVICE_PLUGIN_VERSION}"]',
        )
    if not _is_extended_resource(registration.resource):
        raise RefusedCallError(StatusCode.UNKNOWN, f'the ResourceName "{registration.resource}" is invalid')


def _is_extended_resource(resource: str) -> bool:
    """Report whether a domain other than Kubernetes' own qualifies the name, and a quota can name it, too."""
    domain, slash, name = resource.partition("/")
    return bool(
        slash
        and "kubernetes.io/" not in resource
        and not resource.startswith(_QUOTA)
        and _DOMAIN.fullmatch(domain)
        and len(_QUOTA + domain) <= _MAX_DOMAIN
        and _NAME.fullmatch(name)
        and len(name) <= _MAX_NAME
    )


class PluginError(K8sRdmaError):
    """A plugin failed a request; the message is as in gRPC's library for Go."""


@dataclass(slots=True)
class ListedDevices:
    """The devices of one resource.

    options: of its plugin. stopped: when the plugin ended (the loop's clock); unset while it runs.
    """

    devices: dict[str, OfferedDevice] = field(default_factory=dict)
    healthy: set[str] = field(default_factory=set)
    unhealthy: set[str] = field(default_factory=set)
    options: PluginOptions = field(default_factory=PluginOptions)
    stopped: float | None = None

    def start(self, options: PluginOptions) -> None:
        """Note that a plugin has registered; its list follows."""
        self.options = options
        self.stopped = None

    def update(self, devices: Sequence[OfferedDevice]) -> None:
        """Take the plugin's list: devices that are not in it are gone."""
        self.devices = {device.id: device for device in devices}
        self.healthy = {device.id for device in devices if not device.unhealthy}
        self.unhealthy = set(self.devices) - self.healthy

    def stop(self, now: float) -> None:
        """Note that the plugin ended: no device is healthy, but all are kept for a while."""
        self.unhealthy |= self.healthy
        self.healthy = set()
        self.stopped = now


class PluginClient:
    """A connection to a plugin's socket."""

    def __init__(self, resource: str, socket: Path) -> None:
        self.resource = resource
        self.options = PluginOptions()
        self._channel = grpc_calls.connect(socket)

    async def connect(self, *, timeout_s: float) -> None:
        """Ask for the plugin's options once it is connected; PluginError if it does not serve in time."""
        call = grpc_calls.call(
            self._channel, GET_DEVICE_PLUGIN_OPTIONS, None, timeout_s=timeout_s, wait_for_ready=True
        )
        try:
            self.options = await call
        except (AioRpcError, MalformedError) as error:
            if isinstance(error, AioRpcError) and error.code() is StatusCode.DEADLINE_EXCEEDED:
                raise PluginError("failed to dial device plugin: context deadline exceeded") from error
            raise PluginError(f"failed to get device plugin options: {_error(error)}") from error

    async def lists(self) -> AsyncGenerator[Sequence[OfferedDevice], None]:
        """Yield the plugin's lists until it ends them; PluginError if it does not end them by returning."""
        try:
            async for devices in grpc_calls.answers(self._channel, LIST_AND_WATCH, None):
                yield devices
        except (AioRpcError, MalformedError) as error:
            raise _error(error) from error

    async def preferred(self, choice: Choice) -> tuple[str, ...]:
        """Call GetPreferredAllocation; PluginError."""
        answers = await self._call(GET_PREFERRED_ALLOCATION, (choice,))
        return answers[0] if answers else ()

    async def allocate(self, ids: tuple[str, ...]) -> AllocateResponse:
        """Call Allocate for the devices of a container; PluginError."""
        answers = await self._call(ALLOCATE, (ids,))
        if not answers:
            raise PluginError("no containers return in allocation response &AllocateResponse{}")
        return answers[0]

    async def pre_start(self, ids: tuple[str, ...]) -> None:
        """Call PreStartContainer before a container with these devices starts; PluginError."""
        await self._call(PRE_START_CONTAINER, ids, timeout_s=PRE_START_TIMEOUT_S)

    async def close(self) -> None:
        """End the connection."""
        await self._channel.close()

    async def _call(
        self, method: Method[RequestT, Answer], request: RequestT, *, timeout_s: float = _ALLOCATE_TIMEOUT_S
    ) -> Answer:
        try:
            return await grpc_calls.call(self._channel, method, request, timeout_s=timeout_s)
        except (AioRpcError, MalformedError) as error:
            raise _error(error) from error


def _error(error: AioRpcError | MalformedError) -> PluginError:
    if isinstance(error, MalformedError):
        return PluginError(f"rpc error: code = Internal desc = {error.message}")
    code = "".join(part.capitalize() for part in error.code().name.split("_"))
    return PluginError(f"rpc error: code = {code} desc = {error.details()}")
