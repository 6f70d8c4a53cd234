"""Prepared claims beside kubelet's calls: their `status.devices`, and those that kubelet forgets.

It does not ask if a claim has a new pod before the end of the former one, nor once its checkpoint is lost.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import structlog

from k8s_rdma.core.backoff import Backoff
from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.errors import API_ERRORS, ApiRefusedError
from k8s_rdma.kube.informer import REAL_TIME, Time
from k8s_rdma.wire.claim_status import ClaimState, decode_state, decode_uid, prepared_devices, refused_devices
from k8s_rdma.wire.claims import NO_POD, ClaimAnswer, ClaimName, ClaimQuestion, Offers, Prepare, PreparedClaim

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from k8s_rdma.core.types import NodeName
    from k8s_rdma.deviceplugin.resource import Observable
    from k8s_rdma.errors import K8sRdmaError
    from k8s_rdma.kube.resource_slices import SlicesApi

_log = structlog.get_logger()

SETTLE_S = 5.0
"""The time that a claim is without a sandbox before its status says so: one that starts has it sooner."""

FIRST_RETRY_S, LAST_RETRY_S, LAST_HANDOVER_S = 1.0, 300.0, 60.0
"""The delays between attempts to apply a claim's status, and to hand a claim over."""

HANDOVER_DELAY_S = 0.5
"""The time from the end of a pod's sandbox to the first attempt: kubelet mostly unprepares claims sooner."""

PAUSE_S = 0.1
"""The time between two claims: no node writes more than ten a second."""

MOST_REFUSED, MOST_REJECTIONS = 256, 3
"""The refusals that wait to be written, the latest of all; and how often the API server may reject one.
Kubelet makes an event of each."""


@dataclass(slots=True)
class _Entry:
    """A claim that something is to be done for. due_s: when; infinite once it has been."""

    claim: ClaimName
    prepared: PreparedClaim | None = None
    refusal: str = ""
    due_s: float = math.inf
    rejections: int = 0
    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_RETRY_S, LAST_RETRY_S))
    problem: str = ""

    def devices(self, pool: str, found: ClaimState, now: str) -> list[dict[str, Any]]:
        if self.prepared is not None:
            return prepared_devices(self.prepared, pool, found, now)
        return refused_devices(pool, self.refusal, found, now)

    def report(self, event: str, problem: str) -> None:
        """Log a problem once."""
        if problem != self.problem:
            _log.warning(event, claim=f"{self.claim.namespace}/{self.claim.name}", error=problem)
        self.problem = problem


class _Entries:
    """Entries by the UIDs of their claims, each attempted when it is due."""

    def __init__(self, offers: Observable[Offers | None], time: Time) -> None:
        self._offers = offers
        self._time = time
        self._change = asyncio.Event()
        self.by_uid: dict[str, _Entry] = {}

    def notify(self) -> None:
        """Have entries that are due now attempted now."""
        self._change.set()

    async def run(
        self, observe: Callable[[Offers], None], attempt: Callable[[_Entry], Awaitable[None]]
    ) -> NoReturn:
        """Observe each change of the offers, and attempt all due writes, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(observe))
            while True:
                self._change.clear()
                entry = min(self.by_uid.values(), key=lambda entry: entry.due_s, default=None)
                left_s = math.inf if entry is None else entry.due_s - self._time.monotonic()
                if entry is not None and left_s <= 0:
                    await attempt(entry)
                    await self._time.pause(PAUSE_S)
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if math.isinf(left_s) else left_s):
                        await self._change.wait()

    async def _follow(self, observe: Callable[[Offers], None]) -> NoReturn:
        offers = self._offers.value
        while True:
            if offers is not None:
                observe(offers)
                self.notify()
            offers = await self._offers.wait_for_change(offers)


class ClaimStatuses:
    """Applies `status.devices` of the node's prepared claims, again whenever they change.

    writes: the number of statuses applied. failures: of attempts in vain, by HTTP status or `errors.Reason`.
    """

    def __init__(
        self, api: SlicesApi, node: NodeName, offers: Observable[Offers | None], time: Time = REAL_TIME
    ) -> None:
        """offers: the agent's latest."""
        self._api = api
        self._node = node
        self._time = time
        self._entries = _Entries(offers, time)
        self.writes = 0
        self.failures: Counter[str] = Counter()

    def refuse(self, claim: ClaimName, why: str) -> None:
        """Have the claim's status say why it is not prepared, unless it was before."""
        entries = self._entries.by_uid
        entry = entries.get(claim.uid)
        if entry is not None and entry.prepared is not None:
            return
        entries.pop(claim.uid, None)
        refused = [uid for uid, queued in entries.items() if queued.prepared is None]
        if len(refused) >= MOST_REFUSED:
            del entries[refused[0]]
        entries[claim.uid] = _Entry(claim, refusal=why, due_s=self._time.monotonic())
        self._entries.notify()

    async def run(self) -> NoReturn:
        """Write until cancelled."""
        await self._entries.run(self._observe, self._attempt)

    def _observe(self, offers: Offers) -> None:
        """Have changes written; forget claims that are unprepared."""
        now_s = self._time.monotonic()
        prepared = {claim.claim.uid: claim for claim in offers.claims}
        entries = {
            uid: entry
            for uid, entry in self._entries.by_uid.items()
            if uid in prepared or entry.prepared is None
        }
        for uid, claim in prepared.items():
            if uid not in entries or entries[uid].prepared != claim:
                due_s = now_s if claim.attached else now_s + SETTLE_S
                entries[uid] = _Entry(claim.claim, prepared=claim, due_s=due_s)
        self._entries.by_uid = entries

    async def _attempt(self, entry: _Entry) -> None:
        try:
            await self._apply(entry)
        except (*API_ERRORS, MalformedError) as error:
            entry.due_s = self._time.monotonic() + entry.backoff.fail()
            why = str(error.status) if isinstance(error, ApiRefusedError) else error.reason
            self.failures[why] += 1
            entry.report("claim_status_not_written", error.message)
            entry.rejections += _is_final(error)
            if entry.rejections >= MOST_REJECTIONS:
                self._forget_refusal(entry)
            return
        entry.due_s = math.inf
        self._forget_refusal(entry)

    def _forget_refusal(self, entry: _Entry) -> None:
        if entry.prepared is None and self._entries.by_uid.get(entry.claim.uid) is entry:
            del self._entries.by_uid[entry.claim.uid]

    async def _apply(self, entry: _Entry) -> None:
        """Apply the status if it differs from the API server's; not to a claim that is gone."""
        claim = entry.claim
        found = await read_claim(self._api, claim)
        if found is None or found.uid != claim.uid:
            return
        now = self._time.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        devices = entry.devices(self._node, found, now)
        if devices != list(found.statuses.values()):
            await self._api.apply_claim_status(claim.namespace, claim.name, {"devices": devices}, claim.uid)
            self.writes += 1


class Handovers:
    """Hands prepared VFs over to pods that take the claims of others.

    Kubelet calls the driver for the first pod of a claim and after the last one: where a pod with a claim was
    deleted by force, and another one with the same claim comes before its end, it asks for neither. A claim
    is handed over when the API server has its former pod no more, and reserves it for another pod alone; the
    agent refuses while the former one has interfaces.
    """

    def __init__(
        self,
        api: SlicesApi,
        node: NodeName,
        offers: Observable[Offers | None],
        ask: Callable[[ClaimQuestion], Awaitable[ClaimAnswer]],
        time: Time = REAL_TIME,
    ) -> None:
        """ask: asks the agent."""
        self._api = api
        self._node = node
        self._ask = ask
        self._time = time
        self._entries = _Entries(offers, time)

    def hurry(self, claim: ClaimName) -> None:
        """Check a claim now: another pod may have it."""
        if (entry := self._entries.by_uid.get(claim.uid)) is not None:
            entry.due_s = self._time.monotonic()
            self._entries.notify()

    async def run(self) -> NoReturn:
        """Check until cancelled each prepared claim whose pod has been without a sandbox for a moment."""
        await self._entries.run(self._observe, self._attempt)

    def _observe(self, offers: Offers) -> None:
        due_s = self._time.monotonic() + HANDOVER_DELAY_S
        entries = {}
        for prepared in offers.claims:
            uid = prepared.claim.uid
            entry = self._entries.by_uid.get(uid)
            if entry is None or entry.prepared is None or entry.prepared.pod_uid != prepared.pod_uid:
                backoff = Backoff(FIRST_RETRY_S, LAST_HANDOVER_S)
                entry = _Entry(prepared.claim, prepared=prepared, due_s=due_s, backoff=backoff)
            if not prepared.attached:
                entries[uid] = entry
        self._entries.by_uid = entries

    async def _attempt(self, entry: _Entry) -> None:
        if entry.prepared is None:
            raise AssertionError
        entry.due_s = math.inf  # unless another pod hurries meanwhile
        try:
            finished = await self._try_to_hand_over(entry, entry.prepared)
        except (*API_ERRORS, MalformedError) as error:  # unknown is not gone
            entry.report("claim_not_handed_over", error.message)
            finished = False
        if not finished:
            entry.due_s = min(entry.due_s, self._time.monotonic() + entry.backoff.fail())

    async def _try_to_hand_over(self, entry: _Entry, prepared: PreparedClaim) -> bool:
        """Report whether all is done: no pod waits for the VFs of the claim, or one has them now."""
        claim = entry.claim
        document = await self._api.get_claim_document(claim.namespace, claim.name)
        found = decode_state(document) if document is not None else None
        if document is None or found is None or found.uid != claim.uid:
            return True
        on_node = any(device.pool == self._node for device in found.allocated)
        if not on_node or not found.consumers - {prepared.pod_uid}:
            return True
        if prepared.pod_uid in found.consumers or await self._exists(prepared):
            return False
        pod = await self._api.get_pod_document(claim.namespace, found.pod) if found.pod else None
        question = Prepare(
            claim=claim,
            resource=msgspec.Raw(document),
            pod=NO_POD if pod is None else msgspec.Raw(pod),
            wait_s=0.0,
        )
        answer = await self._ask(ClaimQuestion(prepare=question, abandoned_by=prepared.pod_uid))
        if answer.error:
            entry.report("claim_not_handed_over", answer.error)
            return False
        name = f"{claim.namespace}/{claim.name}"
        _log.info("claim_handed_over", claim=name, pod=found.pod, former=prepared.pod_uid)
        return True

    async def _exists(self, prepared: PreparedClaim) -> bool:
        """Report whether the API server has the pod that a claim was prepared for."""
        document = await self._api.get_pod_document(prepared.claim.namespace, prepared.pod)
        return document is not None and decode_uid(document) == prepared.pod_uid


def _is_final(error: K8sRdmaError) -> bool:
    """Report whether the same attempt fails again, unless somebody changes rights or the claim."""
    if isinstance(error, ApiRefusedError):
        return error.status in (HTTPStatus.FORBIDDEN, HTTPStatus.UNPROCESSABLE_ENTITY)
    return isinstance(error, MalformedError)


@dataclass(frozen=True, slots=True, kw_only=True)
class AbandonmentTimes:
    """The age from which a prepared claim may be abandoned, and the interval of these checks."""

    youngest_s: float = 300.0
    every_s: float = 600.0


ABANDONMENT_TIMES = AbandonmentTimes()


class AbandonedClaims:
    """Ends prepared claims that kubelet never unprepares, for example after the loss of its checkpoint.

    A prepared claim is abandoned if it is gone in two checks running, or no longer reserved for its pod, and
    the pod has no interfaces on the node. The agent is the judge of the latter.

    count: of checks so far.
    """

    def __init__(
        self,
        api: SlicesApi,
        offers: Observable[Offers | None],
        ask: Callable[[ClaimQuestion], Awaitable[ClaimAnswer]],
        times: AbandonmentTimes,
        time: Time = REAL_TIME,
    ) -> None:
        """ask: asks the agent."""
        self._api = api
        self._offers = offers
        self._ask = ask
        self._times = times
        self._time = time
        self._first_seen: dict[tuple[str, str], float] = {}
        self._missing: set[str] = set()
        self.count = 0

    async def run(self) -> NoReturn:
        """Check until cancelled: when claims of the start are old enough, then at each interval."""
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
        prepared = ((claim.claim.uid, claim.pod_uid) for claim in claims)
        self._first_seen = {pair: self._first_seen.get(pair, now_s) for pair in prepared}

    async def _check(self, offers: Offers | None) -> None:
        now_s = self._time.monotonic()
        missing, self._missing = self._missing, set()
        for prepared in offers.claims if offers is not None else ():
            age_s = now_s - self._first_seen[prepared.claim.uid, prepared.pod_uid]
            if age_s >= self._times.youngest_s and not prepared.attached:
                with suppress(*API_ERRORS, MalformedError):  # unknown is not gone
                    await self._end_if_abandoned(prepared, missing)
                await self._time.pause(PAUSE_S)

    async def _end_if_abandoned(self, prepared: PreparedClaim, missing: Collection[str]) -> None:
        """missing: the UIDs of claims that were gone at the previous check."""
        claim = prepared.claim
        found = await read_claim(self._api, claim)
        if found is None:
            self._missing.add(claim.uid)
            if claim.uid not in missing:
                return
        elif found.uid == claim.uid and prepared.pod_uid in found.consumers:
            return
        answer = await self._ask(ClaimQuestion(unprepare=claim, abandoned_by=prepared.pod_uid))
        name = f"{claim.namespace}/{claim.name}"
        if answer.error:
            _log.warning("abandoned_claim_not_unprepared", claim=name, error=answer.error)
        else:
            _log.warning("abandoned_claim_unprepared", claim=name, pod=prepared.pod)


async def read_claim(api: SlicesApi, claim: ClaimName) -> ClaimState | None:
    """Read a claim by its name, if it exists. API errors, and MalformedError."""
    document = await api.get_claim_document(claim.namespace, claim.name)
    return None if document is None else decode_state(document)
