"""The agent at work: calls come in, state goes out, and what nobody asks for is put right."""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma.wire.cni_environment import CniEnvironment, parse_environment
from k8s_rdma.wire.cni_result import IpamResult, ResultInterface, encode_error, encode_result
from k8s_rdma.wire.frame import Reply
from k8s_rdma.wire.netconf import decode_netconf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from k8s_rdma.agent.node import Node
    from k8s_rdma.agent.report import Reporter
    from k8s_rdma.agent.verbs import Verbs
    from k8s_rdma.agent.worker import Worker
    from k8s_rdma.core.ledger import Receipt
    from k8s_rdma.core.step import NetnsRef
    from k8s_rdma.linux.netns import Namespaces
    from k8s_rdma.wire.frame import Request

_log = structlog.get_logger()

SETTLE_S = 0.5
"""Changes of the hardware come in bursts, most of them the agent's own, which it knows of: it is looked at
once after each, and not so soon that the next call of a burst finds the kernel being asked."""

RECONCILE_S = 10.0
"""How often sandboxes are checked for being gone: a look at each namespace's file, no netlink."""


class Service:
    """Answers `cni.sock`, publishes on `state.sock`, reconciles."""

    def __init__(
        self, *, node: Node, verbs: Verbs, worker: Worker, namespaces: Namespaces, reporter: Reporter
    ) -> None:
        """Nothing runs until `recover`."""
        self._node = node
        self._verbs = verbs
        self._worker = worker
        self._namespaces = namespaces
        self._reporter = reporter
        self.hardware_changed = asyncio.Event()

    async def recover(self) -> None:
        """Undo or complete what a crash or a reboot cut short; before anyone may ask for more."""
        if await self._verbs.reconcile():
            await self._worker.run(self._node.refresh)

    async def watch(self) -> None:
        """Look again when the hardware changed, end what lost its sandbox; until cancelled."""
        observed = True
        while True:
            try:
                async with asyncio.timeout(RECONCILE_S):
                    await self.hardware_changed.wait()
                await asyncio.sleep(SETTLE_S)
            except TimeoutError:
                pass
            changed = False
            if self.hardware_changed.is_set() or not observed:
                self.hardware_changed.clear()
                observed, changed = await self._refresh()
            if await self._verbs.reconcile() or changed:
                await self._reporter.publish()

    async def _refresh(self) -> tuple[bool, bool]:
        """Whether the hardware could be observed, and whether anything was new."""
        try:
            return True, await self._worker.run(self._node.refresh)
        except K8sRdmaError as error:
            # The last good observation stands until the next look.
            _log.exception("observe_failed", error=str(error))
            return False, False

    async def call(self, request: Request, netns: int | None, still_waiting: Callable[[], bool]) -> Reply:
        """Answer one call of the CNI executable; what goes wrong is the answer, too.

        still_waiting: tells whether anybody will take the answer.
        """
        started = time.monotonic()
        command = request.env.get("CNI_COMMAND", "")
        with structlog.contextvars.bound_contextvars(
            operation=uuid.uuid4().hex[:8], command=command, container=request.env.get("CNI_CONTAINERID", "")
        ):
            before = self._node.ledger
            try:
                reply = Reply(exit_status=0, stdout=await self._perform(request, netns, still_waiting))
                _log.info("cni_call", duration_ms=_since(started))
            except K8sRdmaError as error:
                reply = self._failure(request, error)
                _log.warning(
                    "cni_call_refused",
                    reason=error.reason,
                    error=str(error),
                    details=error.details,
                    duration_ms=_since(started),
                )
            except Exception as error:
                _log.exception("cni_call_failed", duration_ms=_since(started))
                fault = K8sRdmaError(
                    f"the agent has a fault: {error!r}; its log has more", reason=Reason.INTERNAL
                )
                reply = self._failure(request, fault)
            if self._node.ledger is not before:
                await self._reporter.publish()
            return reply

    async def _perform(self, request: Request, netns: int | None, still_waiting: Callable[[], bool]) -> bytes:
        call = parse_environment(request.env)
        if call.command == "ADD":
            with self._held(call, netns) as sandbox:
                return await self._add(call, request.stdin, sandbox, still_waiting)
        if call.command == "GC":
            await self._verbs.collect(decode_netconf(request.stdin, strict=False))
        elif call.command == "CHECK":
            await self._verbs.check(call)
        elif call.command == "DEL":
            with self._held(call, netns):
                await self._verbs.delete(call)
        return b""

    async def _add(
        self, call: CniEnvironment, stdin: bytes, sandbox: NetnsRef | None, still_waiting: Callable[[], bool]
    ) -> bytes:
        if sandbox is None:
            msg = f"CNI_NETNS {call.netns}: the executable could not open it"
            raise K8sRdmaError(msg, reason=Reason.INVALID_ENVIRONMENT)
        given = await self._verbs.add(call, sandbox, stdin, still_waiting)
        netconf = decode_netconf(stdin)
        interfaces = _result_interfaces(*given) if given else []
        return encode_result(interfaces, netconf.cni_version, netconf.prev_result)

    @contextmanager
    def _held(self, call: CniEnvironment, netns: int | None) -> Iterator[NetnsRef | None]:
        """Let the kernel reach the sandbox by the descriptor that came with the call, while it lasts."""
        if netns is None:
            yield None
            return
        sandbox = self._namespaces.hold(netns, call.netns or "")
        try:
            yield sandbox
        finally:
            self._namespaces.release(sandbox)

    def _failure(self, request: Request, error: K8sRdmaError) -> Reply:
        try:
            version = decode_netconf(request.stdin, strict=False).cni_version
        except K8sRdmaError:
            version = "1.0.0"
        return Reply(exit_status=1, stdout=encode_error(error, version))


def _result_interfaces(receipt: Receipt, addresses: Mapping[str, IpamResult]) -> list[ResultInterface]:
    return [
        ResultInterface(
            name=interface.ifname,
            mac=interface.home.mac,
            sandbox=receipt.netns.path,
            ipam=addresses.get(interface.ifname, IpamResult()),
        )
        for interface in receipt.interfaces
    ]


def _since(started: float) -> float:
    return round((time.monotonic() - started) * 1e3, 3)
