"""Leader election: of several processes only the holder of a Lease acts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, TypeAlias

import structlog

from k8s_rdma.kube.errors import API_ERRORS, ApiRefusedError
from k8s_rdma.kube.published_api import LeaseApi, LeaseView

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Sleep: TypeAlias = Callable[[float], Awaitable[None]]

_OFTEN = 1 / 5
"""The interval between two renewals, as a share of the Lease's duration."""

_POLL_SHARE = 1 / 15
"""The interval between two reads of another's Lease, as a share of its duration. A renewal counts from the
moment of the read, so this much is added to the time that a crash costs."""

_BINDING = 2 / 3
"""The time after a renewal in which a bind may begin, as a share of the Lease's duration; the rest is for the
request."""

_CONFLICT = (404, 409)
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderElectionConfig:
    """holder: this process, unlike any before it. lease_s: the Lease's duration, whole seconds."""

    namespace: str
    name: str
    holder: str
    lease_s: int


@dataclass(slots=True)
class _Read:
    """Questions to the API server, numbered: the last that began, the last answered, and its answer."""

    begun: int = 0
    answered: int = 0
    obstacle: str = ""


class LeaderElector:
    """Acquires, renews and releases the Lease for this process.

    clock: seconds, monotonic.
    sleep: by the same clock.
    obstacle: why it does not hold the Lease, for people.
    """

    def __init__(
        self,
        api: LeaseApi,
        terms: LeaderElectionConfig,
        clock: Callable[[], float],
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._api = api
        self._terms = terms
        self._clock = clock
        self._sleep = sleep
        self._view: LeaseView | None = None
        self._renew_deadline = self._confirmed_at = float("-inf")
        self._is_leader = False
        self._reading = asyncio.Lock()
        self._read = _Read()
        self.obstacle = "it was not read yet"

    @property
    def name(self) -> str:
        """The Lease as `namespace/name`."""
        return f"{self._terms.namespace}/{self._terms.name}"

    @property
    def noticed_s(self) -> float:
        """The time for which a former holder may take itself for the holder."""
        return _BINDING * self._terms.lease_s

    def holds(self) -> bool:
        """Report whether a bind may begin now, by the clock."""
        return self._is_leader and self._clock() < self._renew_deadline

    async def confirm(self, since: float = inf) -> str:
        """Confirm with the API server that this process holds the Lease; return why not, empty if it does.

        A renewal or a question that began after `since` is a confirmation as well; by default only one after
        this call counts. One question answers all who wait for it.
        """
        if self._confirmed_at > since and self.holds():
            return ""
        next_read = self._read.begun + 1
        async with self._reading:
            if self._read.answered < next_read:
                self._read.begun = number = self._read.begun + 1
                self._read.obstacle = await self._read_lease()
                self._read.answered = number
            return self._read.obstacle

    async def acquire(self) -> bool:
        """Wait until this process holds the Lease; return whether it was given back."""
        given_back = await self._acquire()
        self._is_leader = True
        self.obstacle = "it could not be renewed in time"
        _log.info("lease_held", lease=self.name, holder=self._terms.holder, given_back=given_back)
        return given_back

    async def run(self) -> None:
        """Renew the Lease; return when another has taken it."""
        while True:
            await self._sleep(_OFTEN * self._terms.lease_s)
            if not await self._renew():
                return

    async def release(self) -> None:
        """Give the Lease back, so that the next process need not wait. No write may be in doubt."""
        if not self._is_leader:
            return
        self._is_leader = False
        try:
            # # Read, because a renewal that was cut short may have been written.
            lease = await self._api.get_lease(self._terms.namespace, self._terms.name)
            if lease is None or lease.holder != self._terms.holder:
                return
            await self._api.write_lease(replace(lease, holder=""))
        except API_ERRORS as error:
            _log.warning("lease_not_released", lease=self.name, error=error.message)
        else:
            _log.info("lease_released", lease=self.name)

    async def _read_lease(self) -> str:
        """Return the reason why the Lease is not this process's; empty if it is."""
        began = self._clock()
        try:
            lease = await self._api.get_lease(self._terms.namespace, self._terms.name)
        except API_ERRORS as error:
            return error.message
        holder = lease.holder if lease else ""
        if holder == self._terms.holder:
            self._confirmed_at = began
            return ""
        return f"lease {self.name} is held by {holder}" if holder else f"lease {self.name} has no holder"

    async def _acquire(self) -> bool:
        """Wait until the Lease is taken; return whether it was given back.

        A missing one is taken at once, but somebody may have deleted it under its holder.
        """
        observed, observed_at, given_back = None, self._clock(), False
        while True:
            try:
                lease = await self._api.get_lease(self._terms.namespace, self._terms.name)
                if (
                    lease is None or lease.holder != self._terms.holder
                ):  # else: taken by a write without answer
                    given_back = lease is not None and not lease.holder
                if lease != observed:
                    observed, observed_at = lease, self._clock()
                mine = lease is not None and lease.holder == self._terms.holder
                expired = lease is not None and self._clock() - observed_at >= lease.duration_s
                if lease is None or given_back or mine or expired:
                    await self._write(lease)
                    return given_back
                self._wait_for(lease)
            except API_ERRORS as error:
                self.obstacle = error.message
                _log.warning("lease_not_taken", lease=self.name, error=error.message)
            await self._sleep(_POLL_SHARE * self._terms.lease_s)

    def _wait_for(self, lease: LeaseView | None) -> None:
        why = f"held by {lease.holder}" if lease else "not there"
        if self.obstacle != why:
            self.obstacle = why
            _log.info("lease_waits", lease=self.name, why=why)

    async def _renew(self) -> bool:
        """Try to; False when another has taken the Lease."""
        try:
            await self._write(self._view)
        except API_ERRORS as error:
            _log.warning("lease_not_renewed", lease=self.name, error=error.message)
            if isinstance(error, ApiRefusedError) and error.status in _CONFLICT:
                return await self._still_mine()
        return True

    async def _still_mine(self) -> bool:
        """Look again: it may have been renewed by a write without an answer.

        One that was deleted is lost: another may have held it meanwhile.
        """
        try:
            lease = await self._api.get_lease(self._terms.namespace, self._terms.name)
        except API_ERRORS as error:
            _log.warning("lease_not_read", lease=self.name, error=error.message)
            return True
        self._view = lease
        if lease is not None and lease.holder == self._terms.holder:
            return True
        self._is_leader, self._renew_deadline = False, float("-inf")
        _log.error("lease_lost", lease=self.name, to=lease.holder if lease else None)
        return False

    async def _write(self, lease: LeaseView | None) -> None:
        terms, began = self._terms, self._clock()
        mine = LeaseView(
            namespace=terms.namespace,
            name=terms.name,
            holder=terms.holder,
            duration_s=terms.lease_s,
            version=lease.version if lease else "",
        )
        self._view = await self._api.write_lease(mine)
        self._confirmed_at, self._renew_deadline = began, began + _BINDING * terms.lease_s
