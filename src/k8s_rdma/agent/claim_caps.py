"""Caps of interfaces by ResourceClaim: programs those that pods' owners ask for, and reports the outcome.

A claim's allocation is immutable. Its cap takes nothing from others, so this agent alone decides: within the
namespace's policy, between the claim's reservation and the link. The claim's own cap holds for an interface
that the annotation does not name, and again once the annotation is gone. A change is programmed as those of
placements; after a crash `agent.live_rates` undoes it, and it is made anew.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import structlog

from k8s_rdma.core.inventory import CLAIMS_POOL
from k8s_rdma.core.ledger import Pod, Receipt
from k8s_rdma.core.reprogramming import caps_by_vf, has_caps
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.process import wait_for_first
from k8s_rdma.wire.placement_annotation import (
    MAX_STATUS_MESSAGE,
    CapsRequest,
    RatesStatus,
    digest,
    encode_rates_status,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from k8s_rdma.agent.cluster.api_cluster import CapsRequests, Cluster
    from k8s_rdma.agent.cni.node_access import NodeAccess
    from k8s_rdma.agent.report import Reporter
    from k8s_rdma.core.namespace_policy import NamespacePolicies
    from k8s_rdma.core.types import PodUid

_log = structlog.get_logger()

SOON_S = 1.0
"""The least time between two attempts for one annotation, and until a pod is tried whose ADD, CHECK or DEL is
under way."""

RETRY_S = 60.0
"""The time after which a refused change is tried again, and a status written again that was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """An attempt for an annotation's text. why: the refusal; empty for none. state: the node's afterwards."""

    pod: Pod
    text: str
    why: str
    state: object
    tried_at: float


class ClaimCaps:
    """Changes caps of the node's pods as their annotations do, pod by pod; used on the agent's loop."""

    def __init__(
        self,
        access: NodeAccess,
        cluster: Cluster,
        policies: Callable[[], NamespacePolicies],
        *,
        now: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Change nothing until `run`. now: in seconds. pause: as `asyncio.sleep`."""
        self._node = access.node
        self._worker = access.worker
        self._locks = access.locks
        self._cluster = cluster
        self._policies = policies
        self._now = now
        self._pause = pause
        self._attempts: dict[PodUid, _Attempt] = {}

    def problems(self) -> tuple[str, ...]:
        """The changes that are not made, one sentence each."""
        return tuple(
            f"pod {attempt.pod.namespace}/{attempt.pod.name}: the caps of its annotation are not programmed: "
            f"{attempt.why}"
            for attempt in self._attempts.values()
            if attempt.why
        )

    async def run(self, reporter: Reporter) -> NoReturn:
        """Change caps until cancelled. reporter: reports the outcome, and changes of the node."""
        while True:
            requests, report = await self._cluster.wait_for_caps(None), reporter.now()
            problems, ledger = self.problems(), self._node.ledger
            retry_s = await self.change_all(requests)
            if (problems, ledger) != (self.problems(), self._node.ledger):
                await reporter.publish()
            waits = [self._cluster.wait_for_caps(requests), reporter.wait_for_change(report)]
            await wait_for_first(*waits, *([] if retry_s is None else [self._pause(retry_s)]))

    async def change_all(self, requests: CapsRequests) -> float | None:
        """Make the changes that are due. Returns the time until the next one is, None where none waits."""
        pods = {
            receipt.pod.uid: receipt.pod
            for receipt in self._node.ledger.receipts.values()
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
        receipts = self._node.ledger.of_pod(pod.uid)
        containers = {receipt.attachment.container for receipt in receipts}
        if any(map(self._locks.busy, containers)):
            return SOON_S
        try:
            named = request.caps()
            caps = caps_by_vf(receipts, self._node.ledger.promised_to(pod.uid), named)
            if not has_caps(receipts, caps):
                self._policies().permit_caps(pod.namespace, named)
                async with self._locks.all_alone(containers):
                    changed = await self._worker.run(self._node.change_caps, pod.uid, caps)
                if not changed:
                    return SOON_S
                self._note_changed(pod, changed)
        except K8sRdmaError as error:
            return self._end(pod, request, error.message)
        return self._end(pod, request, "")

    def _delay_s(self, pod: Pod, request: CapsRequest) -> float:
        """The time until an attempt may be made; 0 or less for at once."""
        attempt = self._attempts.get(pod.uid)
        if attempt is None or attempt.text != request.text:
            return 0
        delay_s = RETRY_S if self._state() == attempt.state else SOON_S
        return attempt.tried_at + delay_s - self._now()

    def _state(self) -> object:
        return self._node.ledger, self._node.hardware, self._policies()

    def _note_changed(self, pod: Pod, receipts: Iterable[Receipt]) -> None:
        shown = [
            f"{interface.ifname}: max {interface.max_tx_rate_mbps} Mb/s"
            for receipt in receipts
            for interface in receipt.interfaces
            if interface.pool == CLAIMS_POOL
        ]
        _log.info("claim_caps_changed", pod=f"{pod.namespace}/{pod.name}", caps=shown)
        self._cluster.rates_changed(pod, f"the caps are programmed: {'; '.join(shown)}", refused=False)

    def _end(self, pod: Pod, request: CapsRequest, why: str) -> float | None:
        """Note an attempt, and write its outcome to the pod. Returns the time until the next one, if any."""
        last = self._attempts.get(pod.uid)
        self._attempts[pod.uid] = _Attempt(
            pod=pod, text=request.text, why=why, state=self._state(), tried_at=self._now()
        )
        if why and (last is None or last.why != why):
            _log.warning("claim_caps_refused", pod=f"{pod.namespace}/{pod.name}", error=why)
            self._cluster.rates_changed(pod, f"the caps are not programmed: {why}", refused=True)
        status = RatesStatus(
            state="refused" if why else "programmed",
            request=digest(request.text),
            message=why[:MAX_STATUS_MESSAGE],
        )
        if not (request.text or request.status_text) or request.status() == status:
            return RETRY_S if why else None
        self._cluster.caps_decided(pod, encode_rates_status(status))
        return RETRY_S
