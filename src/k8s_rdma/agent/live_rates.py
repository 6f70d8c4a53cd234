"""Changes of running pods' rates: programs each later generation of a placement, and reports the outcome.

The extender admits a change and writes the pod's placement anew, signed and of the next generation. It counts
the larger of two reservations until the node reports that generation. An unsigned placement has none, so that
without keys nothing changes. A change that is refused or fails is tried again with exponential backoff, and
sooner for a later generation or when the node's state has changed.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

import structlog

from k8s_rdma.core.backoff import Backoff
from k8s_rdma.core.inventory import CLAIMS_POOL
from k8s_rdma.core.ledger import Pod, Receipt
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.process import wait_for_first
from k8s_rdma.wire.rest import MAX_REFUSAL, RatesRefusal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from k8s_rdma.agent.cluster.api_cluster import Cluster
    from k8s_rdma.agent.cni.node_access import NodeAccess
    from k8s_rdma.agent.report import Reporter
    from k8s_rdma.core.types import PodUid

_log = structlog.get_logger()

FIRST_RETRY_S = 1.0
"""Also the least time between two attempts for one generation, and until a pod is tried whose ADD, CHECK or
DEL is under way."""

LAST_RETRY_S = 60.0


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


class LiveRates:
    """Changes rates of the node's pods as their placements do, pod by pod; used on the agent's loop.

    changed, refused: the numbers of changes, and of attempts that were refused or failed.
    """

    def __init__(
        self,
        access: NodeAccess,
        cluster: Cluster,
        *,
        now: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Change nothing until `recover`. now: in seconds. pause: as `asyncio.sleep`."""
        self._node = access.node
        self._worker = access.worker
        self._locks = access.locks
        self._cluster = cluster
        self._now = now
        self._pause = pause
        self._refusals: dict[Pod, _Refusal] = {}
        self.changed = self.refused = 0

    def problems(self) -> tuple[str, ...]:
        """The changes that are not made, one sentence each."""
        return tuple(
            f"pod {refusal.pod.namespace}/{refusal.pod.name}: the rates of its placement's generation "
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
        for receipt in tuple(self._node.ledger.receipts.values()):
            if receipt.change is not None:
                try:
                    await self._worker.run(self._node.undo_rate_change, receipt.pod.uid)
                except K8sRdmaError as error:
                    self._refuse(receipt.pod, receipt.change.generation, error)

    async def run(self, reporter: Reporter) -> NoReturn:
        """Change rates until cancelled. reporter: reports the outcome, and changes of the node."""
        while True:
            placements, report = self._cluster.placements(), reporter.now()
            problems, changed = self.problems(), self.changed
            retry_s = await self.change_all()
            if (problems, changed) != (self.problems(), self.changed):
                await reporter.publish()
            waits = [self._cluster.wait_for_placements(placements), reporter.wait_for_change(report)]
            await wait_for_first(*waits, *([] if retry_s is None else [self._pause(retry_s)]))

    async def change_all(self) -> float | None:
        """Make the changes that are due. Returns the time until the next one is, None where none waits."""
        waiting = self._waiting()
        for pod in self._refusals.keys() - waiting:
            del self._refusals[pod]
        delays = [await self._change(pod) for pod in waiting]
        return min((delay for delay in delays if delay is not None), default=None)

    def _waiting(self) -> list[Pod]:
        """List the pods with other rates than those of their placements, or an incomplete change."""
        placements = self._cluster.placements()
        return list(
            dict.fromkeys(
                receipt.pod
                for receipt in self._node.ledger.receipts.values()
                if receipt.change is not None
                or (
                    receipt.pod.uid in placements
                    and receipt.is_outdated(placements[receipt.pod.uid].generation)
                )
            )
        )

    async def _change(self, pod: Pod) -> float | None:
        """Change the rates of a pod if that is due. Returns the time until it is tried again, if it is."""
        placement = self._cluster.placements().get(pod.uid)
        generation = placement.generation if placement else 0
        delay_s = self._delay_s(pod, generation)
        if delay_s > 0:
            return delay_s
        containers = {receipt.attachment.container for receipt in self._node.ledger.of_pod(pod.uid)}
        if any(map(self._locks.busy, containers)):
            return FIRST_RETRY_S
        begun = self._now()
        async with self._locks.all_alone(containers):
            try:
                if placement is None:
                    await self._worker.run(self._node.undo_rate_change, pod.uid)
                    return None
                changed = await self._worker.run(self._node.change_rates, pod.uid, placement)
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
            return refusal.backoff.left_s(self._now())
        return refusal.tried_at + FIRST_RETRY_S - self._now()

    def _state(self) -> object:
        """The node's state, to be compared."""
        return self._node.ledger, self._node.hardware

    def _refuse(self, pod: Pod, generation: int, error: K8sRdmaError) -> float:
        """Note a failed attempt, and report it. Returns the time until the next one."""
        self.refused += 1
        refusal = self._refusals.get(pod)
        if refusal is None or refusal.generation != generation:
            refusal = self._refusals[pod] = _Refusal(pod=pod, generation=generation)
        why_before, refusal.why = refusal.why, error.message
        refusal.state, refusal.tried_at = self._state(), self._now()
        delay_s = refusal.backoff.fail(refusal.tried_at)
        if why_before != error.message:
            _log.warning(
                "rates_refused",
                pod=f"{pod.namespace}/{pod.name}",
                generation=generation,
                reason=error.reason,
                error=error.message,
                details=error.details,
            )
        message = f"the rates of generation {generation} are not programmed: {error.message}"
        self._cluster.rates_changed(pod, message, refused=True)
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
            pod=f"{pod.namespace}/{pod.name}",
            generation=generation,
            rates=rates,
            duration_ms=round((self._now() - begun) * 1e3, 3),
        )
        message = f"the rates of generation {generation} are programmed: {'; '.join(rates)}"
        self._cluster.rates_changed(pod, message, refused=False)
