"""Changes of running pods' rates: programs them, and reports the outcome.

The extender admits a change and writes the pod's placement anew, signed and of the next generation. It counts
the larger of two reservations until the node reports that generation. An unsigned placement has none, so that
without keys nothing changes. A change that is refused or fails is tried again with exponential backoff, and
sooner for a later generation or when the node's state has changed.

A claim's allocation is immutable, but for caps, which pods' owners ask for in an annotation. A cap takes
nothing from others, so this agent alone decides: within the namespace's policy, between the claim's
reservation and the link. The claim's own cap holds for an interface that the annotation does not name, and
again once the annotation is gone. A change that a crash interrupts is undone, and then made anew.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

import structlog

from k8s_rdma.agent.cluster.api_cluster import Cluster
from k8s_rdma.agent.cni.node_access import NodeAccess
from k8s_rdma.core.backoff import Backoff
from k8s_rdma.core.inventory import CLAIMS_POOL
from k8s_rdma.core.ledger import Pod, Receipt
from k8s_rdma.core.namespace_policy import NamespacePolicies
from k8s_rdma.core.reprogramming import caps_by_vf, has_caps
from k8s_rdma.core.types import PodUid
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.process import wait_for_first
from k8s_rdma.wire.placement_annotation import (
    MAX_STATUS_MESSAGE,
    CapsRequest,
    RatesStatus,
    digest,
    encode_rates_status,
)
from k8s_rdma.wire.rest import MAX_REFUSAL, RatesRefusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from k8s_rdma.agent.cluster.api_cluster import CapsRequests
    from k8s_rdma.agent.report import Reporter
    from k8s_rdma.core.types import ContainerId

_log = structlog.get_logger()

FIRST_RETRY_S = 1.0
"""Also the least time between two attempts for one generation or for the caps of one pod, however often its
annotation is edited, and until a pod is tried whose ADD, CHECK or DEL is under way."""

LAST_RETRY_S = 60.0
"""Also the time after which caps that were refused are tried again, and a lost status of them is written."""


@dataclass(slots=True, kw_only=True)
class _Refusal:
    """A change that was not made: its pod and generation, why, and the node's state after the attempt.

    tried_at: seconds of the monotonic clock.
    """

    pod: Pod
    generation: int
    why: str = ""
    state: object = None
    tried_at: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_RETRY_S, LAST_RETRY_S))


@dataclass(slots=True)
class _RateChanges:
    """Changes rates of the node's pods, pod by pod; used on the agent's loop.

    now: in seconds. pause: as `asyncio.sleep`.
    """

    access: NodeAccess
    cluster: Cluster
    now: Callable[[], float] = field(default=time.monotonic, kw_only=True)
    pause: Callable[[float], Awaitable[None]] = field(default=asyncio.sleep, kw_only=True)

    async def _wait(self, *changes: Awaitable[object], retry_s: float | None) -> None:
        """Wait until one of these is over, or until it is time to try again."""
        await wait_for_first(*changes, *([] if retry_s is None else [self.pause(retry_s)]))

    def _containers(self, pod: PodUid) -> frozenset[ContainerId]:
        return frozenset(receipt.attachment.container for receipt in self.access.node.ledger.of_pod(pod))


@dataclass(slots=True)
class LiveRates(_RateChanges):
    """Changes rates as placements do; nothing until `recover`.

    changed, refused: the numbers of changes, and of attempts that were refused or failed.
    """

    changed: int = field(default=0, init=False)
    refused: int = field(default=0, init=False)
    _refusals: dict[Pod, _Refusal] = field(default_factory=dict, init=False)

    def problems(self) -> tuple[str, ...]:
        """The changes that are not made, one sentence each."""
        return tuple(
            f"pod {refusal.pod.full_name}: the rates of its placement's generation "
            f"{refusal.generation} are not programmed: {refusal.why}"
            for refusal in self._refusals.values()
        )

    def refusals(self) -> Mapping[PodUid, RatesRefusal]:
        """The changes that are not made, by pod."""
        return {
            pod.uid: RatesRefusal(generation=refusal.generation, message=refusal.why[:MAX_REFUSAL])
            for pod, refusal in self._refusals.items()
        }

    async def recover(self) -> None:
        """Undo changes that a crash interrupted; `run` tries again what fails."""
        for receipt in tuple(self.access.node.ledger.receipts.values()):
            if receipt.change is not None:
                try:
                    await self.access.worker.run(self.access.node.undo_rate_change, receipt.pod.uid)
                except K8sRdmaError as error:
                    self._refuse(receipt.pod, receipt.change.generation, error)

    async def run(self, reporter: Reporter) -> NoReturn:
        """Change rates until cancelled. reporter: reports the outcome, and changes of the node."""
        while True:
            placements, report = self.cluster.placements(), reporter.now()
            problems, changed = self.problems(), self.changed
            retry_s = await self.change_all()
            if (problems, changed) != (self.problems(), self.changed):
                await reporter.publish()
            changes = self.cluster.wait_for_placements(placements), reporter.wait_for_change(report)
            await self._wait(*changes, retry_s=retry_s)

    async def change_all(self) -> float | None:
        """Make the changes that are due. Returns the time until the next one is, None where none waits."""
        waiting = self._waiting()
        for pod in self._refusals.keys() - waiting:
            del self._refusals[pod]
        delays = [await self._change(pod) for pod in waiting]
        return min((delay for delay in delays if delay is not None), default=None)

    def _waiting(self) -> list[Pod]:
        """List the pods with other rates than those of their placements, or an incomplete change."""
        placements = self.cluster.placements()
        return list(
            dict.fromkeys(
                receipt.pod
                for receipt in self.access.node.ledger.receipts.values()
                if receipt.change is not None
                or (
                    receipt.pod.uid in placements
                    and receipt.is_outdated(placements[receipt.pod.uid].generation)
                )
            )
        )

    async def _change(self, pod: Pod) -> float | None:
        """Change the rates of a pod if that is due. Returns the time until it is tried again, if it is."""
        placement = self.cluster.placements().get(pod.uid)
        generation = placement.generation if placement else 0
        delay_s = self._delay_s(pod, generation)
        if delay_s > 0:
            return delay_s
        containers = self._containers(pod.uid)
        if any(map(self.access.locks.busy, containers)):
            return FIRST_RETRY_S
        begun = self.now()
        async with self.access.locks.all_alone(containers):
            try:
                if placement is None:
                    await self.access.worker.run(self.access.node.undo_rate_change, pod.uid)
                    return None
                changed = await self.access.worker.run(self.access.node.change_rates, pod.uid, placement)
            except K8sRdmaError as error:
                return self._refuse(pod, generation, error)
        self._refusals.pop(pod, None)
        if changed:
            self._note_changed(pod, changed, begun)
        return None

    def _delay_s(self, pod: Pod, generation: int) -> float:
        """The time until a change may be tried; 0 or less for at once."""
        refusal = self._refusals.get(pod)
        if refusal is None or refusal.generation != generation:
            return 0
        if self._state() == refusal.state:
            return refusal.backoff.left_s(self.now())
        return refusal.tried_at + FIRST_RETRY_S - self.now()

    def _state(self) -> object:
        """The node's state, to be compared."""
        return self.access.node.ledger, self.access.node.hardware

    def _refuse(self, pod: Pod, generation: int, error: K8sRdmaError) -> float:
        """Note a failed attempt, and report it. Returns the time until the next one."""
        self.refused += 1
        refusal = self._refusals.get(pod)
        if refusal is None or refusal.generation != generation:
            refusal = self._refusals[pod] = _Refusal(pod=pod, generation=generation)
        why_before, refusal.why = refusal.why, error.message
        refusal.state, refusal.tried_at = self._state(), self.now()
        delay_s = refusal.backoff.fail(refusal.tried_at)
        if why_before != error.message:
            _log.warning(
                "rates_refused",
                pod=pod.full_name,
                generation=generation,
                reason=error.reason,
                error=error.message,
                details=error.details,
            )
        message = f"the rates of generation {generation} are not programmed: {error.message}"
        self.cluster.rates_changed(pod, message, refused=True)
        return delay_s

    def _note_changed(self, pod: Pod, receipts: Iterable[Receipt], begun: float) -> None:
        self.changed += 1
        rates = [
            f"{interface.ifname}: min {interface.min_tx_rate_mbps}, max {interface.max_tx_rate_mbps} Mb/s"
            for receipt in receipts
            for interface in receipt.interfaces
            if interface.pool != CLAIMS_POOL
        ]
        generation = max(receipt.generation for receipt in receipts)
        _log.info(
            "rates_changed",
            pod=pod.full_name,
            generation=generation,
            rates=rates,
            duration_ms=round((self.now() - begun) * 1e3, 3),
        )
        message = f"the rates of generation {generation} are programmed: {'; '.join(rates)}"
        self.cluster.rates_changed(pod, message, refused=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """An attempt for an annotation's text. why: the refusal; empty for none. state: the node's afterwards."""

    pod: Pod
    text: str
    why: str
    state: object
    tried_at: float


@dataclass(slots=True)
class ClaimCaps(_RateChanges):
    """Changes caps of interfaces by ResourceClaim as pods' annotations do."""

    policies: Callable[[], NamespacePolicies]
    _attempts: dict[PodUid, _Attempt] = field(default_factory=dict, init=False)

    def problems(self) -> tuple[str, ...]:
        """The changes that are not made, one sentence each."""
        return tuple(
            f"pod {attempt.pod.full_name}: the caps of its annotation are not programmed: {attempt.why}"
            for attempt in self._attempts.values()
            if attempt.why
        )

    async def run(self, reporter: Reporter) -> NoReturn:
        """Change caps until cancelled. reporter: reports the outcome, and changes of the node."""
        while True:
            requests, report = await self.cluster.wait_for_caps(None), reporter.now()
            problems, ledger = self.problems(), self.access.node.ledger
            retry_s = await self.change_all(requests)
            if (problems, ledger) != (self.problems(), self.access.node.ledger):
                await reporter.publish()
            changes = self.cluster.wait_for_caps(requests), reporter.wait_for_change(report)
            await self._wait(*changes, retry_s=retry_s)

    async def change_all(self, requests: CapsRequests) -> float | None:
        """Make the changes that are due. Returns the time until the next one is, None where none waits."""
        pods = {
            receipt.pod.uid: receipt.pod
            for receipt in self.access.node.ledger.receipts.values()
            if receipt.pod.uid in requests
            and any(interface.pool == CLAIMS_POOL for interface in receipt.interfaces)
        }
        for uid in self._attempts.keys() - pods.keys():
            del self._attempts[uid]
        delays = [await self._change(pod, requests[uid]) for uid, pod in pods.items()]
        return min((delay for delay in delays if delay is not None), default=None)

    async def _change(self, pod: Pod, request: CapsRequest) -> float | None:
        """Change the caps of a pod if that is due. Returns the time until it is tried again, if it is."""
        delay_s = self._delay_s(pod, request)
        if delay_s > 0:
            return delay_s
        receipts, containers = self.access.node.ledger.of_pod(pod.uid), self._containers(pod.uid)
        if any(map(self.access.locks.busy, containers)):
            return FIRST_RETRY_S
        try:
            named = request.caps()
            caps = caps_by_vf(receipts, self.access.node.ledger.promised_to(pod.uid), named)
            if not has_caps(receipts, caps):
                self.policies().permit_caps(pod.namespace, named)
                async with self.access.locks.all_alone(containers):
                    changed = await self.access.worker.run(self.access.node.change_caps, pod.uid, caps)
                if not changed:
                    return FIRST_RETRY_S
                self._note_changed(pod, changed)
        except K8sRdmaError as error:
            return self._end(pod, request, error.message)
        return self._end(pod, request, "")

    def _delay_s(self, pod: Pod, request: CapsRequest) -> float:
        """The time until an attempt may be made; 0 or less for at once."""
        attempt = self._attempts.get(pod.uid)
        if attempt is None:
            return 0
        unchanged = attempt.text == request.text and self._state() == attempt.state
        return attempt.tried_at + (LAST_RETRY_S if unchanged else FIRST_RETRY_S) - self.now()

    def _state(self) -> object:
        return self.access.node.ledger, self.access.node.hardware, self.policies()

    def _note_changed(self, pod: Pod, receipts: Iterable[Receipt]) -> None:
        shown = [
            f"{interface.ifname}: max {interface.max_tx_rate_mbps} Mb/s"
            for receipt in receipts
            for interface in receipt.interfaces
            if interface.pool == CLAIMS_POOL
        ]
        _log.info("claim_caps_changed", pod=pod.full_name, caps=shown)
        self.cluster.rates_changed(pod, f"the caps are programmed: {'; '.join(shown)}", refused=False)

    def _end(self, pod: Pod, request: CapsRequest, why: str) -> float | None:
        """Note an attempt, and write its outcome to the pod. Returns the time until the next one, if any."""
        last = self._attempts.get(pod.uid)
        self._attempts[pod.uid] = _Attempt(
            pod=pod, text=request.text, why=why, state=self._state(), tried_at=self.now()
        )
        if why and (last is None or last.why != why):
            _log.warning("claim_caps_refused", pod=pod.full_name, error=why)
            self.cluster.rates_changed(pod, f"the caps are not programmed: {why}", refused=True)
        status = RatesStatus(
            state="refused" if why else "programmed",
            request=digest(request.text),
            message=why[:MAX_STATUS_MESSAGE],
        )
        if not (request.text or request.status_text) or request.status() == status:
            return LAST_RETRY_S if why else None
        self.cluster.caps_decided(pod, encode_rates_status(status))
        return LAST_RETRY_S
