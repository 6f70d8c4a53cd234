"""One binder: only the holder of a Lease binds, and only once nothing of the holder before can be written.

A bind without an answer may still take effect for as long as the API server works on it, and the process
that sent it keeps its reservation in memory only. So whoever binds holds a Lease, and gives it back only
when it leaves no such bind. A Lease that was given back, or was never there, is taken at once. One that
was not given back is taken when it was not renewed for as long as it says, and for the API server's own
time after that nothing is bound.

No clocks are compared: a Lease counts from when it was seen to change (as in client-go, leaderelection.go),
and its holder stops binding well before the others may take it, counting from before its last renewal.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import structlog

from k8s_rdma.kube.api import API_ERRORS, ApiRefusedError, LeaseView

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from k8s_rdma.kube.api import LeaseApi

    Sleep: TypeAlias = Callable[[float], Awaitable[None]]

_OFTEN = 1 / 5
"""Of the Lease's duration: between two renewals, and between two looks at another's Lease."""

_BINDING = 2 / 3
"""Of the Lease's duration: how long after a renewal a bind may begin; the rest is for it to be sent."""

_GONE = (404, 409)
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """holder: this process, unlike any before it. lease_s: the Lease's duration, whole seconds.

    settle_s: how long the API server may still work on a write that was not answered.
    """

    namespace: str
    name: str
    holder: str
    lease_s: int = 15
    settle_s: float = 60.0


class Lease:
    """This process's part in the Lease.

    clock: seconds, monotonic. sleep: by the same clock. obstacle: why it does not hold, for people.
    """

    def __init__(
        self, api: LeaseApi, terms: Terms, clock: Callable[[], float], sleep: Sleep = asyncio.sleep
    ) -> None:
        self._api = api
        self._terms = terms
        self._clock = clock
        self._sleep = sleep
        self._view: LeaseView | None = None
        self._until = float("-inf")
        self._settled = False
        self.obstacle = "it was not read yet"

    @property
    def name(self) -> str:
        """`namespace/name`."""
        return f"{self._terms.namespace}/{self._terms.name}"

    def holds(self) -> bool:
        """Whether a bind may begin now."""
        return self._settled and self._clock() < self._until

    async def acquire(self) -> None:
        """Return when this process holds the Lease, and no write of another can take effect any more."""
        while not self._settled:
            self._settled = await self._take() or await self._outlast()
        self.obstacle = "it could not be renewed in time"
        _log.info("lease_held", lease=self.name, holder=self._terms.holder)

    async def keep(self) -> None:
        """Renew the Lease; return when another has taken it."""
        while True:
            await self._rest()
            if not await self._renew():
                return

    async def release(self) -> None:
        """Give the Lease back, so that the next process need not wait; there is nothing in doubt.

        Not while a holder before may still have writes under way: the next one has to wait for those too.
        """
        if not self._settled:
            return
        self._settled = False
        try:
            # Read, since a renewal that was cut short may have been written.
            lease = await self._api.get_lease(self._terms.namespace, self._terms.name)
            if lease is None or lease.holder != self._terms.holder:
                return
            await self._api.write_lease(replace(lease, holder=""))
        except API_ERRORS as error:
            _log.warning("lease_not_released", lease=self.name, error=error.message)
        else:
            _log.info("lease_released", lease=self.name)

    async def _take(self) -> bool:
        """Return when the Lease was taken; whether nobody held it."""
        seen, since, free = None, self._clock(), False
        while True:
            try:
                lease = await self._api.get_lease(self._terms.namespace, self._terms.name)
                if (
                    lease is None or lease.holder != self._terms.holder
                ):  # else: taken by a write without answer
                    free = lease is None or not lease.holder
                if lease != seen:
                    seen, since = lease, self._clock()
                mine = lease is not None and lease.holder == self._terms.holder
                if free or mine or (lease and self._clock() - since >= lease.duration_s):
                    await self._write(lease)
                    return free
                self._wait_for(lease)
            except API_ERRORS as error:
                self.obstacle = error.message
                _log.warning("lease_not_taken", lease=self.name, error=error.message)
            await self._rest()

    async def _outlast(self) -> bool:
        """Hold the Lease until nothing of the holder before can be written; False when it was lost again."""
        until = self._clock() + self._terms.settle_s
        self.obstacle = f"binds of the holder before may take effect for {self._terms.settle_s:g} s"
        _log.warning("lease_not_given_back", lease=self.name, binding_in_s=self._terms.settle_s)
        while self._clock() < until:
            await self._rest()
            if not await self._renew():
                return False
        return True

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
            if isinstance(error, ApiRefusedError) and error.status in _GONE:
                return await self._still_mine()
        return True

    async def _still_mine(self) -> bool:
        """Look again: it may have been deleted, or renewed by a write without an answer."""
        try:
            lease = await self._api.get_lease(self._terms.namespace, self._terms.name)
        except API_ERRORS as error:
            _log.warning("lease_not_read", lease=self.name, error=error.message)
            return True
        self._view = lease
        if lease is None or lease.holder == self._terms.holder:
            return True
        self._settled, self._until = False, float("-inf")
        _log.error("lease_lost", lease=self.name, to=lease.holder)
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
        self._until = began + _BINDING * terms.lease_s

    async def _rest(self) -> None:
        await self._sleep(_OFTEN * self._terms.lease_s)
