"""ResourceClaims: prepared and unprepared for kubelet, on `claims.sock`.

A prepared claim is on disk, its pod marked and its CDI devices described before kubelet is answered. A claim
that does not fit because others have not ended yet, as after a pod's deletion by force, waits for them:
kubelet tries a failed preparation again only after 60 to 90 s (Kubernetes 1.36, `SyncPod` in
pkg/kubelet/kuberuntime/kuberuntime_manager.go). If no such end is near, it is refused at once.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import structlog

from k8s_rdma.agent.calls import AgentCall
from k8s_rdma.agent.claim_policy import ClaimPolicy, RequestedClaim
from k8s_rdma.agent.node import Node, rejected
from k8s_rdma.agent.pending_calls import PendingCall, PendingCalls, WaitingCalls
from k8s_rdma.agent.release import RatesLeftError
from k8s_rdma.agent.report import SEND_TIMEOUT_S, StatePublisher
from k8s_rdma.agent.unix_sockets import RECEIVE_TIMEOUT_S, is_hung_up, read_lines
from k8s_rdma.core.backoff import Backoff
from k8s_rdma.core.claims import AllocatedClaim, claim_of
from k8s_rdma.core.ledger import ClaimUid, LedgerClaim, Pod
from k8s_rdma.core.macs import addresses_of
from k8s_rdma.core.placement import Rejection
from k8s_rdma.core.types import PodUid
from k8s_rdma.errors import K8sRdmaError, LedgerError, MalformedError, Reason
from k8s_rdma.wire.cdi import CLAIM_CLASS, qualified_name
from k8s_rdma.wire.claims import (
    HEARTBEAT_S,
    MAX_ERROR,
    MAX_LINE_BYTES,
    ClaimAnswer,
    ClaimName,
    ClaimQuestion,
    Prepare,
    PreparedDevice,
    decode_question,
    encode_line,
)
from k8s_rdma.wire.resource_claim import read_allocation, reservation_mbps

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable

    from k8s_rdma.agent.cdi_specs import ClaimSpecs
    from k8s_rdma.agent.cluster.api_cluster import Consumers
    from k8s_rdma.agent.cni.add import PodSources
    from k8s_rdma.agent.cni.delete import DeleteCommand
    from k8s_rdma.agent.worker import Worker

_log = structlog.get_logger()

POLL_S = 0.5
"""The interval between attempts of a claim that waits for VFs which others hold without us."""

LAST_RETRY_S = 30.0
"""The longest delay between attempts to mark pods that share claims."""

MOST_WAITING = 64
"""Claims that wait at a time; others are refused at once, so that there is a connection for who ends one."""


class ClaimCommands:
    """Prepares and unprepares claims, however many at once."""

    def __init__(
        self, node: Node, worker: Worker, specs: ClaimSpecs, delete: DeleteCommand, pods: PodSources
    ) -> None:
        """specs: used on the worker's thread alone. delete: ends attachments that a claim leaves behind."""
        self._node = node
        self._worker = worker
        self._specs = specs
        self._delete = delete
        self._pods = pods
        self._policy = ClaimPolicy(node, pods)
        self._ended = 0
        self._change = asyncio.Condition()
        self._pending: PendingCalls[ClaimUid] = PendingCalls()
        self._unpreparing: Counter[ClaimUid] = Counter()
        self._waiting = WaitingCalls(MOST_WAITING)

    async def prepare(
        self, question: Prepare, still_waiting: Callable[[], bool] = lambda: True
    ) -> tuple[PreparedDevice, ...]:
        """Prepare VFs for a claim, and describe its devices. K8sRdmaError names the obstacle.

        still_waiting: reports whether the caller still waits; no VFs are prepared for one that has given up,
            nor once the claim was unprepared.
        """
        claim = self._prepared_before(question) or self._policy.read(question)
        with self._pending.register(ClaimUid(question.claim.uid), still_waiting) as pending:
            async with self._holding(claim):
                prepared = await self._prepared(claim, question.wait_s, pending)
        return prepared_devices(prepared, self._node.name)

    async def end_abandoned(self, claim: ClaimName, pod: PodUid) -> None:
        """End a claim that is prepared for a pod which is no longer on the node; the pod starts no more.

        K8sRdmaError (`CONFLICT`) while the pod has interfaces, or when the claim is prepared for another one.
        """
        await self._worker.run(self._end_abandoned, claim, pod)
        await self._announce_end()

    def _end_abandoned(self, claim: ClaimName, pod: PodUid) -> None:
        """Judge and end it on the worker's thread, so that no sandbox gets the interfaces in between."""
        uid = ClaimUid(claim.uid)
        prepared = self._node.ledger.claims.get(uid)
        if prepared is None:
            return
        if uid in self._pending:
            msg = f"claim {prepared.namespace}/{prepared.name} is being prepared, not abandoned"
            raise K8sRdmaError(msg, reason=Reason.CONFLICT)
        self._require_abandoned(prepared, pod)
        self._specs.remove(uid)
        self._node.ledger_store.forget_claim(uid, abandoned=True)

    async def hand_over(self, question: Prepare, former: PodUid) -> tuple[PreparedDevice, ...]:
        """Prepare a claim for its new pod in place of a former one, for which kubelet never unprepares it.

        Kubelet, which counts the pods of a claim, calls the driver for the first and after the last of them
        (Kubernetes 1.36, pkg/kubelet/cm/dra/manager.go). K8sRdmaError (`CONFLICT`) while the former pod has
        interfaces, or the claim is not prepared for it; after any error it stays prepared as before.
        """
        requested = self._policy.read(question)
        async with self._holding(requested):
            prepared = await self._worker.run(self._hand_over, requested, former)
        await self._announce_end()
        return prepared_devices(prepared, self._node.name)

    def _hand_over(self, requested: RequestedClaim, former: PodUid) -> LedgerClaim:
        """Judge and prepare on the worker's thread: at all times the claim is prepared for one pod."""
        claim = self._policy.permit(requested)
        prepared = self._node.ledger.claims.get(claim.uid)
        if prepared is None or claim.uid in self._unpreparing:
            msg = f"claim {claim.namespace}/{claim.name} is not prepared, or being unprepared"
            raise K8sRdmaError(msg, reason=Reason.CONFLICT)
        self._require_abandoned(prepared, former)
        successor = self._node.prepare_claim(claim, instead=True)
        if isinstance(successor, Rejection):
            raise rejected(successor, claim.pod)
        self._specs.write(successor, self._node.ledger)
        return successor

    def _require_abandoned(self, prepared: LedgerClaim, pod: PodUid) -> None:
        """Raise K8sRdmaError (`CONFLICT`) if a claim is another pod's, or this pod has interfaces."""
        subject = f"claim {prepared.namespace}/{prepared.name}"
        if prepared.pod.uid != pod:
            msg = f"{subject} is prepared for pod {prepared.pod.uid}, not abandoned by {pod}"
            raise K8sRdmaError(msg, reason=Reason.CONFLICT)
        if self._node.ledger.of_pod(pod):
            msg = f"{subject}: pod {prepared.pod.namespace}/{prepared.pod.name} still has interfaces"
            raise K8sRdmaError(msg, reason=Reason.CONFLICT)

    async def unprepare(self, claim: ClaimName) -> None:
        """End a prepared claim, and first the attachments that its pod still has of it.

        K8sRdmaError when that fails: then the claim stays prepared. Who prepares the claim meanwhile waits.
        """
        uid = ClaimUid(claim.uid)
        self._pending.cancel(uid)
        self._unpreparing[uid] += 1
        try:
            # On the worker, behind a preparation that it has begun.
            prepared = await self._worker.run(lambda: self._node.ledger.claims.get(uid))
            if prepared is not None:
                await self._end_attachments(prepared)
                await self._worker.run(self._specs.remove, prepared.uid)
                await self._worker.run(self._node.ledger_store.forget_claim, prepared.uid)
        finally:
            self._unpreparing -= Counter([uid])
        await self._announce_end()

    @asynccontextmanager
    async def _holding(self, requested: AllocatedClaim | RequestedClaim) -> AsyncIterator[None]:
        """Hold the addresses that a claim asks for, until it is prepared; then they are held anyway."""
        if not isinstance(requested, RequestedClaim):
            yield
            return
        self._policy.permit(requested)  # a claim that the policy refuses reserves no address
        addresses = addresses_of(entry.interface for entry in requested.claim.interfaces)
        async with self._pods.addresses.holding(addresses, by_claim=True):
            yield

    async def _announce_end(self) -> None:
        self._pods.addresses.note_end()
        async with self._change:
            self._ended += 1
            self._change.notify_all()

    async def guard(self) -> NoReturn:
        """Have pods refused that share a claim with another one, until cancelled.

        Kubelet prepares a claim for the first of its pods, and starts the others without a call (Kubernetes
        1.36, pkg/kubelet/cm/dra/manager.go). So they are marked at once, beside the worker, which may be
        busy with another pod for longer than kubelet takes to make a sandbox.
        """
        consumers: Consumers | None = None
        backoff, problem = Backoff(POLL_S, LAST_RETRY_S), ""
        while True:
            consumers = await self._pods.cluster.wait_for_consumers(consumers)
            try:
                await asyncio.to_thread(self._node.ledger_store.set_consumers, consumers)
            except LedgerError as error:
                if error.message != problem:
                    _log.warning("sharing_pods_not_marked", error=error.message)
                consumers, problem = None, error.message
                await asyncio.sleep(backoff.fail())
            else:
                backoff.reset()
                problem = ""

    def _prepared_before(self, question: Prepare) -> AllocatedClaim | None:
        """Return a claim as it was prepared, if this is the same allocation: a prepared claim stands.

        Neither a policy that has changed since nor a further pod that the claim is reserved for ends it.
        """
        allocation = read_allocation(question)
        prepared = self._node.ledger.claims.get(ClaimUid(allocation.uid))
        if prepared is None or prepared.pod.uid not in allocation.consumers:
            return None
        claim = claim_of(prepared)
        same = len(claim.interfaces) == len(allocation.results) and all(
            (entry.request, entry.device, entry.share_id, entry.interface.min_tx_rate_mbps)
            == (*result[:3], reservation_mbps(result[3], entry.interface.max_tx_rate_mbps))
            for entry, result in zip(claim.interfaces, allocation.results, strict=True)
        )
        return replace(claim, consumers=allocation.consumers) if same else None

    async def _prepared(
        self, requested: AllocatedClaim | RequestedClaim, wait_s: float, pending: PendingCall
    ) -> LedgerClaim:
        """Prepare a claim, or wait. requested: permitted already if it was prepared before."""
        claim = requested.claim if isinstance(requested, RequestedClaim) else requested
        deadline_s, scan = time.monotonic() + wait_s, True
        while True:
            ended, may_end = self._ended, self._may_end(claim.pod)
            try:
                prepared = await self._worker.run(partial(self._prepare, requested, pending, scan=scan))
                if not isinstance(prepared, Rejection):
                    return prepared
                failure = rejected(prepared, claim.pod)
            except K8sRdmaError as error:
                failure = error
            left_s, scan = deadline_s - time.monotonic(), False
            passes = failure.reason is Reason.UNREADABLE_NODE or (
                # A pod that ended meanwhile may have made room after the refusal.
                failure.reason is Reason.INSUFFICIENT and (may_end or self._may_end(claim.pod))
            )
            if left_s <= 0 or self._waiting.full or not passes:
                raise failure
            with self._waiting.waiting(), suppress(TimeoutError):
                async with asyncio.timeout(min(POLL_S, left_s)), self._change:
                    await self._change.wait_for(partial(self._ended_since, ended))

    def _may_end(self, pod: Pod) -> bool:
        """Report whether any claim or pod with VFs, or the pod itself, ends or is not known to stay.

        The scheduler binds this pod after the end of those whose claims made room for it; so once the watch
        has this pod, it also has their ends.
        """
        ledger = self._node.ledger
        pods = {pod.uid, *(prepared.pod.uid for prepared in ledger.claims.values())}
        pods.update(receipt.pod.uid for receipt in ledger.receipts.values())
        return bool(self._unpreparing) or not pods <= self._pods.cluster.lasting_pods()

    def _prepare(
        self, requested: AllocatedClaim | RequestedClaim, pending: PendingCall, *, scan: bool
    ) -> LedgerClaim | Rejection:
        """Judge, prepare and describe, on the worker's thread, unless that is of no use any more."""
        claim = self._policy.permit(requested) if isinstance(requested, RequestedClaim) else requested
        if not pending.still_waiting():
            msg = f"claim {claim.namespace}/{claim.name}: kubelet does not wait for it any more"
            raise K8sRdmaError(msg, reason=Reason.CONFLICT)
        if claim.uid in self._unpreparing:
            why = f"claim {claim.namespace}/{claim.name} is being unprepared"
            return Rejection(node=self._node.name, reason=Reason.INSUFFICIENT, message=why)
        prepared = self._node.prepare_claim(claim, scan=scan)
        if not isinstance(prepared, Rejection):
            self._specs.write(prepared, self._node.ledger)
        return prepared

    def _ended_since(self, ended: int) -> bool:
        return self._ended != ended

    async def _end_attachments(self, prepared: LedgerClaim) -> None:
        vfs = {interface.vf for interface in prepared.interfaces}
        for receipt in self._node.ledger.of_pod(prepared.pod.uid):
            if any(interface.vf in vfs for interface in receipt.interfaces):
                with suppress(RatesLeftError):  # its receipt keeps the VFs from others until they are reset
                    await self._delete.end_if(receipt.attachment, lambda _: True)


def prepared_devices(prepared: LedgerClaim, pool: str) -> tuple[PreparedDevice, ...]:
    """Describe a claim's devices for kubelet. pool: of the node's ResourceSlices."""
    return tuple(
        PreparedDevice(
            request=interface.request,
            pool=pool,
            device=interface.device,
            share_id=interface.share_id,
            cdi=(qualified_name(name, device_class=CLAIM_CLASS),),
        )
        for name, interface in zip(prepared.device_names(), prepared.interfaces, strict=True)
    )


class ClaimsSocket:
    """Serves `claims.sock`: each connection has one question."""

    def __init__(
        self, commands: ClaimCommands, offers: StatePublisher, *, heartbeat_s: float = HEARTBEAT_S
    ) -> None:
        """offers: what followers get; published again after each answer."""
        self._commands = commands
        self._offers = offers
        self._heartbeat_s = heartbeat_s

    async def talk(self, connection: socket.socket) -> None:
        """Serve one connection until its question is answered, or its follower hangs up.

        A caller that hangs up ends what waits for others; kubelet gets prepared devices when it asks again.
        """
        lines = read_lines(connection, MAX_LINE_BYTES)
        async with aclosing(lines):
            try:
                async with asyncio.timeout(RECEIVE_TIMEOUT_S):
                    question = decode_question(await anext(lines))
            except StopAsyncIteration:
                return
            except MalformedError as error:
                await _send(connection, _failure(error))
                return
            if question.follow:
                await self._follow(connection, lines)
            else:
                await _send(connection, await self._answer(question, lambda: not is_hung_up(connection)))

    async def _answer(self, question: ClaimQuestion, still_waiting: Callable[[], bool]) -> ClaimAnswer:
        """Answer a question; a failure is an answer, too."""
        name = question.prepare.claim if question.prepare else question.unprepare
        return await AgentCall(
            name="claim_call",
            fields={
                "command": "prepare" if question.prepare else "unprepare",
                "claim": f"{name.namespace}/{name.name}" if name else "",
            },
            perform=partial(self._perform, question, still_waiting),
            failed=_failure,
            publish=self._offers.publish,
        ).answer()

    async def _perform(self, question: ClaimQuestion, still_waiting: Callable[[], bool]) -> ClaimAnswer:
        former = None if question.abandoned_by is None else PodUid(question.abandoned_by)
        if question.prepare is not None and former is not None:
            return ClaimAnswer(devices=await self._commands.hand_over(question.prepare, former))
        if question.prepare is not None:
            return ClaimAnswer(devices=await self._commands.prepare(question.prepare, still_waiting))
        if question.unprepare is not None and former is not None:
            await self._commands.end_abandoned(question.unprepare, former)
        elif question.unprepare is not None:
            await self._commands.unprepare(question.unprepare)
        return ClaimAnswer()

    async def _follow(self, connection: socket.socket, lines: AsyncIterator[bytes]) -> None:
        """Send the offers after each change and as heartbeats, until the follower hangs up or says more."""
        sending = asyncio.ensure_future(self._stream(connection))
        hang_up = asyncio.ensure_future(anext(lines, None))
        try:
            await asyncio.wait((sending, hang_up), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, hang_up):
                task.cancel()
            await asyncio.gather(sending, hang_up, return_exceptions=True)

    async def _stream(self, connection: socket.socket) -> None:
        sent = None
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._heartbeat_s):
                    sent = await self._offers.wait_for_change(sent)
            if sent is None:
                continue
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await asyncio.get_running_loop().sock_sendall(connection, sent)


def _failure(error: K8sRdmaError) -> ClaimAnswer:
    return ClaimAnswer(error=error.message[:MAX_ERROR], reason=error.reason)


async def _send(connection: socket.socket, answer: ClaimAnswer) -> None:
    async with asyncio.timeout(SEND_TIMEOUT_S):
        await asyncio.get_running_loop().sock_sendall(connection, encode_line(answer))
