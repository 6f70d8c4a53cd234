"""Prepared claims beside kubelet's calls: their `status.devices`, and those that kubelet never unprepares."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import structlog

from k8s_rdma.core.backoff import Backoff
from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.api import API_ERRORS, REAL_TIME, Time
from k8s_rdma.wire.claim_status import ClaimState, decode_state, prepared_devices, refused_devices
from k8s_rdma.wire.claims import Answer, ClaimName, Offers, PreparedClaim, Question

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from k8s_rdma.core.types import NodeName
    from k8s_rdma.deviceplugin.resource import Observable
    from k8s_rdma.kube.resource_slices import SlicesApi

_log = structlog.get_logger()

SETTLE_S = 5.0
"""The time that a claim is without a sandbox before its status says so: one that starts has it sooner."""

FIRST_RETRY_S, LAST_RETRY_S = 1.0, 300.0
"""The delays between attempts to apply a claim's status."""

PAUSE_S = 0.1
"""The time between two claims: no node writes more than ten a second."""

MOST_REFUSED = 256
"""Refusals that wait to be written; their events tell of others."""


@dataclass(slots=True)
class _Entry:
    """A claim whose status is to be written. due_s: when; infinite once it has been."""

    claim: ClaimName
    prepared: PreparedClaim | None = None
    refusal: str = ""
    due_s: float = math.inf
    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_RETRY_S, LAST_RETRY_S))
    problem: str = ""

    def devices(self, pool: str, found: ClaimState, now: str) -> list[dict[str, Any]]:
        if self.prepared is not None:
            return prepared_devices(self.prepared, pool, found, now)
        return refused_devices(pool, self.refusal, found, now)


class ClaimStatuses:
    """Applies `status.devices` of the node's prepared claims, again whenever they change."""

    def __init__(
        self, api: SlicesApi, node: NodeName, offers: Observable[Offers | None], time: Time = REAL_TIME
    ) -> None:
        """offers: the agent's latest."""
        self._api = api
        self._node = node
        self._offers = offers
        self._time = time
        self._entries: dict[str, _Entry] = {}
        self._change = asyncio.Event()

    def refuse(self, claim: ClaimName, why: str) -> None:
        """Have the claim's status say why it is not prepared, unless it was before."""
        entry = self._entries.get(claim.uid)
        if entry is None and len(self._entries) >= MOST_REFUSED:
            return
        if entry is None or entry.prepared is None:
            self._entries[claim.uid] = _Entry(claim, refusal=why, due_s=self._time.monotonic())
            self._change.set()

    async def run(self) -> NoReturn:
        """Write until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            while True:
                self._change.clear()
                entry = min(self._entries.values(), key=lambda entry: entry.due_s, default=None)
                left_s = math.inf if entry is None else entry.due_s - self._time.monotonic()
                if entry is not None and left_s <= 0:
                    await self._attempt(entry)
                    await self._time.pause(PAUSE_S)
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if math.isinf(left_s) else left_s):
                        await self._change.wait()

    async def _follow(self) -> NoReturn:
        offers = self._offers.value
        while True:
            if offers is not None:
                self._observe(offers)
            offers = await self._offers.wait_for_change(offers)

    def _observe(self, offers: Offers) -> None:
        """Have written what differs from before; forget claims that are unprepared."""
        now_s = self._time.monotonic()
        prepared = {claim.claim.uid: claim for claim in offers.claims}
        entries = {
            uid: entry for uid, entry in self._entries.items() if uid in prepared or entry.prepared is None
        }
        for uid, claim in prepared.items():
            if uid not in entries or entries[uid].prepared != claim:
                due_s = now_s if claim.attached else now_s + SETTLE_S
                entries[uid] = _Entry(claim.claim, prepared=claim, due_s=due_s)
        self._entries = entries
        self._change.set()

    async def _attempt(self, entry: _Entry) -> None:
        try:
            await self._apply(entry)
        except (*API_ERRORS, MalformedError) as error:
            entry.due_s = self._time.monotonic() + entry.backoff.fail()
            if error.message != entry.problem:
                name = f"{entry.claim.namespace}/{entry.claim.name}"
                _log.warning("claim_status_not_written", claim=name, error=error.message)
            entry.problem = error.message
            return
        entry.due_s = math.inf
        if entry.prepared is None and self._entries.get(entry.claim.uid) is entry:
            del self._entries[entry.claim.uid]

    async def _apply(self, entry: _Entry) -> None:
        """Apply the status where it differs from what the API server has; not to a claim that is gone."""
        claim = entry.claim
        found = await read_claim(self._api, claim)
        if found is None or found.uid != claim.uid:
            return
        now = self._time.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        devices = entry.devices(self._node, found, now)
        if devices != list(found.statuses.values()):
            await self._api.apply_claim_status(claim.namespace, claim.name, {"devices": devices}, claim.uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseTimes:
    """The age from which a promise may be abandoned, and the interval at which claims are read for that."""

    youngest_s: float = 300.0
    every_s: float = 600.0


PROMISE_TIMES = PromiseTimes()


class AbandonedPromises:
    """Ends promises that kubelet never unprepares, as after the loss of its checkpoint.

    A promise is abandoned when its claim is gone, or no longer reserved for its pod, and the pod has no
    interfaces on the node; the agent is the judge of the latter.

    count: of checks so far.
    """

    def __init__(
        self,
        api: SlicesApi,
        offers: Observable[Offers | None],
        ask: Callable[[Question], Awaitable[Answer]],
        times: PromiseTimes,
        time: Time = REAL_TIME,
    ) -> None:
        """ask: asks the agent."""
        self._api = api
        self._offers = offers
        self._ask = ask
        self._times = times
        self._time = time
        self._first_seen: dict[tuple[str, str], float] = {}
        self.count = 0

    async def run(self) -> NoReturn:
        """Check until cancelled: when promises of the start are old enough, then at each interval."""
        due_s = self._time.monotonic() + self._times.youngest_s
        offers = self._offers.value
        while True:
            now_s = self._time.monotonic()
            self._observe(offers, now_s)
            if now_s >= due_s:
                await self._check(offers)
                self.count += 1
                due_s = self._time.monotonic() + self._times.every_s
            with suppress(TimeoutError):
                async with asyncio.timeout(due_s - self._time.monotonic()):
                    offers = await self._offers.wait_for_change(offers)

    def _observe(self, offers: Offers | None, now_s: float) -> None:
        claims = offers.claims if offers is not None else ()
        promises = ((claim.claim.uid, claim.pod_uid) for claim in claims)
        self._first_seen = {promise: self._first_seen.get(promise, now_s) for promise in promises}

    async def _check(self, offers: Offers | None) -> None:
        now_s = self._time.monotonic()
        for prepared in offers.claims if offers is not None else ():
            age_s = now_s - self._first_seen[prepared.claim.uid, prepared.pod_uid]
            if age_s >= self._times.youngest_s and not prepared.attached:
                with suppress(*API_ERRORS, MalformedError):  # unknown is not gone
                    await self._end_if_abandoned(prepared)
                await self._time.pause(PAUSE_S)

    async def _end_if_abandoned(self, prepared: PreparedClaim) -> None:
        claim = prepared.claim
        found = await read_claim(self._api, claim)
        if found is not None and found.uid == claim.uid and prepared.pod_uid in found.consumers:
            return
        answer = await self._ask(Question(unprepare=claim, abandoned_by=prepared.pod_uid))
        name = f"{claim.namespace}/{claim.name}"
        if answer.error:
            _log.warning("abandoned_claim_not_unprepared", claim=name, error=answer.error)
        else:
            _log.warning("abandoned_claim_unprepared", claim=name, pod=prepared.pod)


async def read_claim(api: SlicesApi, claim: ClaimName) -> ClaimState | None:
    """Read a claim by its name; None where there is none. API errors, and MalformedError."""
    document = await api.get_claim_document(claim.namespace, claim.name)
    return None if document is None else decode_state(document)
