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
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Generic, NoReturn, TypeVar

import structlog

from k8s_rdma.agent.cluster.api_cluster import PodCluster
from k8s_rdma.agent.cni.node_access import NodeAccess
from k8s_rdma.core.backoff import Backoff
from k8s_rdma.core.inventory import CLAIMS_POOL
from k8s_rdma.core.ledger import Pod, Receipt
from k8s_rdma.core.namespace_policy import NamespacePolicies
from k8s_rdma.core.reprogramming import caps_by_vf, has_caps
from k8s_rdma.core.types import PodUid
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.process import wait_for_first
from k8s_rdma.wire.claim_caps import CapsRequest
from k8s_rdma.wire.rates_status import MAX_STATUS_MESSAGE, RatesStatus, digest, encode_rates_status
from k8s_rdma.wire.report import MAX_REFUSAL, RatesRefusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from k8s_rdma.agent.cluster.api_cluster import CapsRequests
    from k8s_rdma.agent.report import Reporter
    from k8s_rdma.core.placement import Placement
    from k8s_rdma.core.types import ContainerId

_log = structlog.get_logger()
_Target = TypeVar("_Target")

FIRST_RETRY_S = 1.0
"""Also the least time between two attempts for one generation or for the caps of one pod, however often its
annotation is edited, and until a pod is tried whose ADD, CHECK or DEL is under way."""

LAST_RETRY_S = 60.0
"""Also the time after which caps that were refused are tried again, and a lost status of them is written."""


@dataclass(slots=True, kw_only=True)
class RateAttempt:
    """The last attempt at a pod's change.

    target: the generation of a placement, or the text of an annotation.
    why: empty if the rates are so.
    state: of the node, after the attempt.
    tried_at: seconds of the monotonic clock.
    """

    pod: Pod
    target: int | str
    backoff: Backoff
    why: str = ""
    state: object = None
    tried_at: float = 0.0


@dataclass(slots=True)
class RateLoop(ABC, Generic[_Target]):
    """Changes rates of the node's pods, pod by pod, as something that is followed wants it.

    Used on the agent's loop. now: in seconds. pause: as `asyncio.sleep`.
    """

    access: NodeAccess
    cluster: PodCluster
    now: Callable[[], float] = field(default=time.monotonic, kw_only=True)
    pause: Callable[[float], Awaitable[None]] = field(default=asyncio.sleep, kw_only=True)
    _attempts: dict[PodUid, RateAttempt] = field(default_factory=dict, init=False)

    subject: ClassVar[str]
    """The rates in a sentence that says that they are not programmed."""

    edit_pause_s: ClassVar[float] = 0.0
    """The least time until other rates are tried that a pod wants meanwhile."""

    first_retry_s: ClassVar[float] = FIRST_RETRY_S

    def problems(self) -> tuple[str, ...]:
        """The changes that are not made, one sentence each."""
        return tuple(
            f"pod {attempt.pod.full_name}: {self.subject.format(attempt.target)} are not programmed: "
            f"{attempt.why}"
            for attempt in self._attempts.values()
            if attempt.why
        )

    async def run(self, reporter: Reporter) -> NoReturn:
        """Change rates until cancelled. reporter: reports the outcome, and changes of the node.

        Those matter only while something is wanted, or has to be undone: most ADDs and DELs need not wake it.
        """
        while True:
            targets, report = await self._targets(None), reporter.now()
            problems, ledger = self.problems(), self.access.node.ledger
            retry_s = await self.change_all(targets)
            if (problems, ledger) != (self.problems(), self.access.node.ledger):
                await reporter.publish()
            await wait_for_first(
                self._targets(targets),
                *([reporter.wait_for_change(report)] if targets or retry_s is not None else []),
                *([] if retry_s is None else [self.pause(retry_s)]),
            )

    async def change_all(self, targets: Mapping[PodUid, _Target]) -> float | None:
        """Make the changes that are due. Returns the time until the next one is, None if no change waits."""
        pods = self._pods(targets)
        for uid in self._attempts.keys() - {pod.uid for pod in pods}:
            del self._attempts[uid]
        delays = [await self._change_if_due(pod, targets.get(pod.uid)) for pod in pods]
        return min((delay for delay in delays if delay is not None), default=None)

    @abstractmethod
    async def _targets(self, previous: Mapping[PodUid, _Target] | None) -> Mapping[PodUid, _Target]:
        """Return the target of each pod; wait until they differ from previous ones."""

    @abstractmethod
    def _pods(self, targets: Mapping[PodUid, _Target]) -> list[Pod]:
        """List the pods that may have other rates than they want."""

    @abstractmethod
    def _key(self, target: _Target | None) -> int | str:
        """Return the generation or the text by which attempts differ."""

    @abstractmethod
    async def _change(self, pod: Pod, target: _Target | None) -> float | None:
        """Make a change, with no call on the pod's containers under way; return the time until the next."""

    async def _change_if_due(self, pod: Pod, target: _Target | None) -> float | None:
        delay_s = self._delay_s(pod, self._key(target))
        if delay_s > 0:
            return delay_s
        if any(map(self.access.locks.busy, self._containers(pod.uid))):
            return FIRST_RETRY_S
        return await self._change(pod, target)

    def _containers(self, pod: PodUid) -> frozenset[ContainerId]:
        return frozenset(receipt.attachment.container for receipt in self.access.node.ledger.of_pod(pod))

    def _delay_s(self, pod: Pod, key: int | str) -> float:
        """Return the time until an attempt may be made; 0 or less for at once."""
        attempt = self._attempts.get(pod.uid)
        if attempt is None:
            return 0
        if attempt.target != key:
            return attempt.tried_at + self.edit_pause_s - self.now()
        if attempt.state == self._state():
            return attempt.backoff.left_s(self.now())
        return attempt.tried_at + FIRST_RETRY_S - self.now()

    def _state(self) -> object:
        """Return the node's state, to be compared."""
        return self.access.node.ledger, self.access.node.hardware

    def _attempted(self, pod: Pod, key: int | str, why: str) -> float:
        """Note an attempt. Returns the time until the next one."""
        attempt = self._attempts.get(pod.uid)
        if attempt is None or attempt.target != key:
            backoff = Backoff(self.first_retry_s, LAST_RETRY_S)
            attempt = self._attempts[pod.uid] = RateAttempt(pod=pod, target=key, backoff=backoff)
        attempt.why, attempt.state, attempt.tried_at = why, self._state(), self.now()
        return attempt.backoff.fail(attempt.tried_at)


@dataclass(slots=True)
class LiveRates(RateLoop["Placement"]):
    """Changes rates as placements do, from `recover` on.

    changed, refused: the numbers of changes, and of attempts that were refused or failed.
    """

    changed: int = field(default=0, init=False)
    refused: int = field(default=0, init=False)

    subject = "the rates of its placement's generation {}"

    def refusals(self) -> Mapping[PodUid, RatesRefusal]:
        """The changes that are not made, by pod."""
        return {
            uid: RatesRefusal(generation=int(attempt.target), message=attempt.why[:MAX_REFUSAL])
            for uid, attempt in self._attempts.items()
        }

    async def recover(self) -> None:
        """Undo changes that a crash interrupted; `run` tries a failed one again."""
        for receipt in tuple(self.access.node.ledger.receipts.values()):
            if receipt.change is not None:
                try:
                    await self.access.worker.run(self.access.node.undo_rate_change, receipt.pod.uid)
                except K8sRdmaError as error:
                    self._refuse(receipt.pod, receipt.change.generation, error)

    async def _targets(self, previous: Mapping[PodUid, Placement] | None) -> Mapping[PodUid, Placement]:
        if previous is None:
            return self.cluster.placements()
        return await self.cluster.wait_for_placements(previous)

    def _pods(self, targets: Mapping[PodUid, Placement]) -> list[Pod]:
        """List the pods with other rates than those of their placements, or an incomplete change."""
        return list(
            dict.fromkeys(
                receipt.pod
                for receipt in self.access.node.ledger.receipts.values()
                if receipt.change is not None
                or (receipt.pod.uid in targets and receipt.is_outdated(targets[receipt.pod.uid].generation))
            )
        )

    def _key(self, target: Placement | None) -> int:
        return target.generation if target else 0

    async def _change(self, pod: Pod, target: Placement | None) -> float | None:
        begun = self.now()
        async with self.access.locks.all_alone(self._containers(pod.uid)):
            try:
                if target is None:
                    await self.access.worker.run(self.access.node.undo_rate_change, pod.uid)
                    return None
                changed = await self.access.worker.run(self.access.node.change_rates, pod.uid, target)
            except K8sRdmaError as error:
                return self._refuse(pod, self._key(target), error)
        self._attempts.pop(pod.uid, None)
        if changed:
            self._note_changed(pod, changed, begun)
        return None

    def _refuse(self, pod: Pod, generation: int, error: K8sRdmaError) -> float:
        """Note a failed attempt, and report it. Returns the time until the next one."""
        self.refused += 1
        last = self._attempts.get(pod.uid)
        is_repeated = last is not None and (last.target, last.why) == (generation, error.message)
        delay_s = self._attempted(pod, generation, error.message)
        if not is_repeated:
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


@dataclass(slots=True)
class ClaimCaps(RateLoop[CapsRequest]):
    """Changes caps of interfaces by ResourceClaim as pods' annotations do."""

    policies: Callable[[], NamespacePolicies]

    subject = "the caps of its annotation"
    edit_pause_s = FIRST_RETRY_S
    first_retry_s = LAST_RETRY_S

    async def _targets(self, previous: CapsRequests | None) -> CapsRequests:
        return await self.cluster.wait_for_caps(previous)

    def _pods(self, targets: CapsRequests) -> list[Pod]:
        return list(
            dict.fromkeys(
                receipt.pod
                for receipt in self.access.node.ledger.receipts.values()
                if receipt.pod.uid in targets
                and any(interface.pool == CLAIMS_POOL for interface in receipt.interfaces)
            )
        )

    def _key(self, target: CapsRequest | None) -> str:
        return target.text if target else ""

    def _state(self) -> object:
        return self.access.node.ledger, self.access.node.hardware, self.policies()

    async def _change(self, pod: Pod, target: CapsRequest | None) -> float | None:
        request = target or CapsRequest()
        receipts, containers = self.access.node.ledger.of_pod(pod.uid), self._containers(pod.uid)
        try:
            named = request.caps()
            caps = caps_by_vf(receipts, self.access.node.ledger.prepared_for(pod.uid), named)
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
        is_repeated = last is not None and last.why == why
        self._attempted(pod, request.text, why)
        if why and not is_repeated:
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
