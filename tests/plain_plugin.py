"""A device plugin that lists configured devices and records the requests it receives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k8s_rdma.core.devices.pod_devices import (
    AllocateResponse,
    Choice,
    OfferedDevice,
    PluginOptions,
    PluginRegistration,
)
from k8s_rdma.kube import grpc_calls
from k8s_rdma.wire.device_plugin import (
    ALLOCATE,
    GET_DEVICE_PLUGIN_OPTIONS,
    GET_PREFERRED_ALLOCATION,
    LIST_AND_WATCH,
    PRE_START_CONTAINER,
    REGISTER,
)
from k8s_rdma_demo.kubelet.device_manager import KUBELET_SOCKET

if TYPE_CHECKING:
    from k8s_rdma.kube.grpc_calls import Handler
    from k8s_rdma.wire.protobuf import Method

_REGISTER_TIMEOUT_S = 20.0


def nothing(_: Sequence[str]) -> AllocateResponse:
    """Return the empty response."""
    return AllocateResponse()


def first(choice: Choice) -> tuple[str, ...]:
    """Prefer the devices that must be included, then the first by name."""
    optional = sorted(set(choice.available) - set(choice.must_include))
    return (*choice.must_include, *optional)[: choice.size]


@dataclass(slots=True, kw_only=True)
class PlainPlugin:
    """One resource. calls: name and devices of every call but ListAndWatch, in order.

    before_response: is called between the question of Allocate and its answer.
    """

    plugin_dir: Path
    resource: str
    devices: tuple[OfferedDevice, ...]
    options: PluginOptions = field(default_factory=PluginOptions)
    response: Callable[[Sequence[str]], AllocateResponse] = nothing
    before_response: Callable[[], Awaitable[None]] | None = None
    prefer: Callable[[Choice], tuple[str, ...]] = first
    calls: list[tuple[str, object]] = field(default_factory=list)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition, init=False)
    _ended: int = field(default=0, init=False)

    @property
    def endpoint(self) -> str:
        """Its socket's name."""
        return f"{self.resource.replace('/', '_')}.sock"

    @asynccontextmanager
    async def registered(self) -> AsyncIterator[None]:
        """Serve, and register once; gone when the block ends."""
        async with self.serving():
            await self.register()
            yield

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve the plugin's methods until the block ends, which removes the socket."""
        server = grpc_calls.new_server()
        handlers: dict[Method[Any, Any], Handler] = {
            GET_DEVICE_PLUGIN_OPTIONS: grpc_calls.handler(GET_DEVICE_PLUGIN_OPTIONS, self._options),
            LIST_AND_WATCH: grpc_calls.stream_handler(LIST_AND_WATCH, self._lists),
            GET_PREFERRED_ALLOCATION: grpc_calls.handler(GET_PREFERRED_ALLOCATION, self._prefer),
            ALLOCATE: grpc_calls.handler(ALLOCATE, self._allocate),
            PRE_START_CONTAINER: grpc_calls.handler(PRE_START_CONTAINER, self._pre_start),
        }
        grpc_calls.add_service(server, handlers)
        server.add_insecure_port(grpc_calls.address(self.plugin_dir / self.endpoint))
        await server.start()
        try:
            yield
        finally:
            await server.stop(None)

    async def register(self) -> None:
        """Make itself known to the kubelet of this directory; grpc.aio.AioRpcError."""
        registration = PluginRegistration(
            resource=self.resource, endpoint=self.endpoint, options=self.options
        )
        channel = grpc_calls.connect(self.plugin_dir / KUBELET_SOCKET)
        try:
            await grpc_calls.call(channel, REGISTER, registration, timeout_s=_REGISTER_TIMEOUT_S)
        finally:
            await channel.close()

    async def change(self, *devices: OfferedDevice) -> None:
        """List others from now on."""
        async with self._changed:
            self.devices = devices
            self._changed.notify_all()

    async def end_lists(self) -> None:
        """End every ListAndWatch there is."""
        async with self._changed:
            self._ended += 1
            self._changed.notify_all()

    async def _lists(self, _: None) -> AsyncGenerator[Sequence[OfferedDevice], None]:
        ended_before = self._ended
        while self._ended == ended_before:
            listed = self.devices
            yield listed
            async with self._changed:
                await self._changed.wait_for(lambda: self._ended > ended_before or self.devices is not listed)  # noqa: B023

    async def _options(self, _: None) -> PluginOptions:
        self.calls.append(("GetDevicePluginOptions", None))
        return self.options

    async def _prefer(self, choices: Sequence[Choice]) -> Sequence[tuple[str, ...]]:
        self.calls.append(("GetPreferredAllocation", tuple(choices)))
        return [self.prefer(choice) for choice in choices]

    async def _allocate(self, containers: Sequence[tuple[str, ...]]) -> Sequence[AllocateResponse]:
        self.calls.append(("Allocate", tuple(containers)))
        if self.before_response is not None:
            await self.before_response()
        return [self.response(ids) for ids in containers]

    async def _pre_start(self, ids: tuple[str, ...]) -> None:
        self.calls.append(("PreStartContainer", ids))
