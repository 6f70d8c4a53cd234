"""Plugin server of one resource, which survives every change of kubelet and its directory."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto, unique
from time import monotonic
from typing import TYPE_CHECKING, NoReturn

import structlog

from k8s_rdma.core.backoff import Backoff
from k8s_rdma.deviceplugin.resource import (
    KUBELET_SOCKET,
    Followers,
    Resource,
    ResourceEndpoint,
    SocketFile,
    check_path,
    is_served,
    open_endpoint,
    register,
    socket_at,
    socket_name,
)
from k8s_rdma.errors import K8sRdmaError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


_log = structlog.get_logger()

SETTLE_S = 0.1
"""Delay between the end of kubelet's call and the next registration with the same kubelet. When a call ends,
kubelet forgets the endpoint that the resource has by then, even a new one (Kubernetes 1.36, `runClient` in
`pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go`)."""

FIRST_CALL_GRACE_S = 10.0
"""Time for kubelet's first call after a registration."""

FIRST_RETRY_S = 0.1
LAST_RETRY_S = 5.0
"""Longest delay between registrations that the same kubelet refuses; a new kubelet resets it."""

LAST_SERVE_S = 1.0
"""Longest delay between attempts to serve. Each one changes the directory, which wakes the server: without a
delay a failed attempt would be followed by the next at once, for ever."""


class PluginServer:
    """Server of one resource: whenever it is woken it compares the state with the due one, and acts on it."""

    def __init__(
        self, resource: Resource, directory: Path, *, clock: Callable[[], float] = monotonic
    ) -> None:
        """Serve in kubelet's directory. MalformedError when its path is too long for sockets."""
        self.resource = resource
        self.problem = "not served yet"
        """Reason why kubelet does not follow the resource; empty while it does."""
        self._path = directory / socket_name(resource.name)
        check_path(self._path)
        self._kubelet = directory / KUBELET_SOCKET
        self._clock = clock
        self._woken = asyncio.Event()
        self._endpoint: ResourceEndpoint | None = None
        self._renew = False
        self._registered_kubelet: SocketFile | None = None
        self._was_followed = False
        self._state_since = 0.0
        self._refusing_kubelet: SocketFile | None = None
        self._register_backoff = Backoff(FIRST_RETRY_S, LAST_RETRY_S)
        self._serve_backoff = Backoff(FIRST_RETRY_S, LAST_SERVE_S)

    def wake(self) -> None:
        """Note that something may have changed."""
        self._woken.set()

    def renew(self) -> None:
        """Serve and register again, as after a start."""
        self._renew = True
        self.wake()

    def publish(self) -> None:
        """Send the resource's new list to kubelet."""
        if self._endpoint is not None:
            self._endpoint.followers.publish(self.resource.message)

    @property
    def followed(self) -> bool:
        """Report whether kubelet follows the endpoint's list."""
        return self._endpoint is not None and self._endpoint.followers.count > 0

    async def run(self) -> NoReturn:
        """Serve and register until cancelled; then remove the socket."""
        try:
            while True:
                self._woken.clear()
                pause_s = await self._step_isolated()
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._woken.wait()
        finally:
            if self._endpoint is not None:
                await self._endpoint.close()

    async def _step_isolated(self) -> float | None:
        """Take a step; its failure is logged and stays that of this resource."""
        try:
            return await self._step()
        except K8sRdmaError as error:
            self._failed(error.message)
        except Exception:
            self._failed("a fault of the device plugin, see its log")
            _log.exception("resource_failed", resource=self.resource.name)
        return LAST_RETRY_S

    async def _step(self) -> float | None:
        """Do all that is due; return the time to wait for a change, if it is limited."""
        state = self._observe()
        match state.next_action():
            case Action.SERVE:
                return await self._try_to_serve()
            case Action.REGISTER:
                return await self._try_to_register(state.kubelet)
            case Action.NOTHING:
                self._log_state(state)
                return state.grace_left_s() or None

    def _observe(self) -> ServingState:
        identity = socket_at(self._path)
        ours = self._endpoint is not None and self._endpoint.socket_file == identity
        replaced = not ours and self._endpoint is not None and identity is not None and is_served(self._path)
        return ServingState(
            is_served_here=ours and not self._renew,
            has_successor=replaced and not self._renew,
            kubelet=socket_at(self._kubelet),
            registered=self._registered_kubelet,
            followed=self.followed,
            was_followed=self._was_followed,
            since_s=self._clock() - self._state_since,
        )

    async def _try_to_serve(self) -> float:
        """Serve, unless a failure was just before; return the time until the next step."""
        if (early_s := self._serve_backoff.left_s(self._clock())) > 0:
            return early_s
        try:
            await self._serve()
        except Exception:
            if self._path.parent.is_dir():  # else it is served as soon as it is one
                self._serve_backoff.fail(self._clock())
            raise
        self._serve_backoff.reset()
        return 0.0

    async def _serve(self) -> None:
        followers = Followers(self.resource.message, self._followers_changed)
        endpoint = await open_endpoint(self._path, self.resource.handlers(followers), followers)
        _log.info("serving", resource=self.resource.name, socket=str(self._path))
        self._renew = False
        previous, self._endpoint = self._endpoint, endpoint
        if previous is None or not previous.followers.count:
            self._registered_kubelet = None
        self._state_since = self._clock()
        self._register_backoff.reset()
        if previous is not None:
            await previous.close()

    def _followers_changed(self) -> None:
        self._was_followed |= self.followed
        self._state_since = self._clock()
        self.wake()

    async def _try_to_register(self, kubelet: SocketFile | None) -> float:
        """Register, unless a failure was just before; return the time until the next step."""
        if kubelet != self._refusing_kubelet:
            self._register_backoff.reset()
        if (early_s := self._register_backoff.left_s(self._clock())) > 0:
            return early_s
        # Kubelet may call before it answers.
        self._registered_kubelet, self._was_followed, self._state_since = kubelet, False, self._clock()
        counts = self.resource.counts.registrations
        try:
            await register(self._kubelet, self.resource.registration(self._path.name))
        except K8sRdmaError as error:
            counts[False] += 1
            self._registered_kubelet, self._refusing_kubelet = None, kubelet
            self._register_backoff.fail(self._clock())
            self._failed(error.message)
            return 0.0
        counts[True] += 1
        self._refusing_kubelet = None
        self.problem = (
            "" if self.followed else "kubelet took the registration, and has not asked for the list yet"
        )
        _log.info("registered", resource=self.resource.name, socket=str(self._path))
        return 0.0

    def _log_state(self, state: ServingState) -> None:
        """Log the reason why no step is due."""
        if state.has_successor:
            self._failed(f"another process serves {self._path} now")
        elif state.kubelet is None:
            self._failed(f"there is no {self._kubelet}: kubelet is down")
        elif self.followed:
            self.problem = ""

    def _failed(self, why: str) -> None:
        """Log a problem when it is a new one."""
        if why != self.problem:
            _log.warning("not_registered", resource=self.resource.name, why=why)
        self.problem = why


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingState:
    """The state of one resource's server.

    is_served_here, has_successor: whether the socket at the path is this process's, or another that is
        served.
    kubelet: kubelet's socket.
    registered: socket of the kubelet that took the last registration.
    followed: whether kubelet's call goes on.
    was_followed: whether there was one since that registration.
    since_s: time since kubelet's call ended or, without a call, since that registration.
    """

    is_served_here: bool
    has_successor: bool = False
    kubelet: SocketFile | None = None
    registered: SocketFile | None = None
    followed: bool = False
    was_followed: bool = False
    since_s: float = 0.0

    def next_action(self) -> Action:
        """Return the action that is due."""
        if self.has_successor:
            return Action.NOTHING  # a successor has taken over: two that replaced each other would never end
        if not self.is_served_here:
            return Action.SERVE
        if self.kubelet is None or self.grace_left_s() > 0:
            return Action.NOTHING
        return Action.NOTHING if self.kubelet == self.registered and self.followed else Action.REGISTER

    def grace_left_s(self) -> float:
        """Return the time for which kubelet is left alone; 0 if the time is up."""
        if self.kubelet is None or self.kubelet != self.registered or self.followed:
            return 0.0
        return max(0.0, (SETTLE_S if self.was_followed else FIRST_CALL_GRACE_S) - self.since_s)


@unique
class Action(Enum):
    """The next action of a server."""

    SERVE = auto()
    """Open an endpoint, in place of an old one."""
    REGISTER = auto()
    NOTHING = auto()
    """Wait for a change."""
