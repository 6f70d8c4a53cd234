"""The calls of the CNI executable: what each asks for, and its answer."""

from __future__ import annotations

import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma.wire.cni_environment import CniEnvironment, parse_environment
from k8s_rdma.wire.cni_result import encode_error, encode_result
from k8s_rdma.wire.frame import Reply
from k8s_rdma.wire.netconf import decode_netconf, decode_network

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from k8s_rdma.agent.calls.verbs import Verbs
    from k8s_rdma.agent.node import Node
    from k8s_rdma.agent.report import Reporter
    from k8s_rdma.core.step import NetnsRef
    from k8s_rdma.linux.netns import Namespaces
    from k8s_rdma.wire.frame import Request

_log = structlog.get_logger()


class Service:
    """Answers the CNI executable, and publishes what its calls changed."""

    def __init__(self, *, node: Node, verbs: Verbs, namespaces: Namespaces, reporter: Reporter) -> None:
        """Nothing happens until the first call."""
        self._node = node
        self._verbs = verbs
        self._namespaces = namespaces
        self._reporter = reporter

    async def call(self, request: Request, netns: int | None, still_waiting: Callable[[], bool]) -> Reply:
        """Answer one call of the CNI executable; what goes wrong is the answer, too.

        still_waiting: tells whether anybody will take the answer.
        """
        started = time.monotonic()
        with structlog.contextvars.bound_contextvars(**_told_of(request.env)):
            before = self._node.ledger, self._node.hardware
            try:
                reply = Reply(exit_status=0, stdout=await self._perform(request, netns, still_waiting))
                if request.env.get("CNI_COMMAND") != "STATUS":  # containerd asks every 5 s
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
            if before != (self._node.ledger, self._node.hardware):
                await self._reporter.publish()
            return reply

    async def _perform(self, request: Request, netns: int | None, still_waiting: Callable[[], bool]) -> bytes:
        call, stdin = parse_environment(request.env), request.stdin
        with self._held(call, netns) as sandbox:
            match call.command:
                case "ADD":
                    return await self._add(call, stdin, sandbox, still_waiting)
                case "DEL":
                    network, _ = decode_network(stdin)
                    await self._verbs.delete(call, network, stdin)
                case "CHECK":
                    await self._verbs.check(call, stdin)
                case "GC":
                    await self._verbs.collect(call, stdin)
                case "STATUS":
                    await self._verbs.status(call, stdin)
        return b""

    async def _add(
        self, call: CniEnvironment, stdin: bytes, sandbox: NetnsRef | None, still_waiting: Callable[[], bool]
    ) -> bytes:
        if sandbox is None:
            msg = f"CNI_NETNS {call.netns}: the executable could not open it"
            raise K8sRdmaError(msg, reason=Reason.INVALID_ENVIRONMENT)
        if self._namespaces.is_own(sandbox):
            msg = f"CNI_NETNS {call.netns}: is the node's own network namespace, not one of a container"
            raise K8sRdmaError(msg, reason=Reason.INVALID_ENVIRONMENT)
        given = await self._verbs.add(call, sandbox, stdin, still_waiting)
        if given is not None:
            return given.result
        netconf = decode_netconf(stdin)
        return encode_result([], netconf.cni_version, netconf.prev_result)

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
            _, version = decode_network(request.stdin)
        except K8sRdmaError:
            version = "1.0.0"
        return Reply(exit_status=1, stdout=encode_error(error, version))


def _told_of(env: Mapping[str, str]) -> dict[str, str]:
    """What every line of the log says of a call, however wrong the call may be."""
    told = {
        "operation": uuid.uuid4().hex[:8],
        "command": env.get("CNI_COMMAND", ""),
        "container": env.get("CNI_CONTAINERID", ""),
    }
    args = dict(pair.partition("=")[::2] for pair in env.get("CNI_ARGS", "").split(";"))
    name = args.get("K8S_POD_NAME")
    return told | {"pod": f"{args.get('K8S_POD_NAMESPACE', '')}/{name}"} if name else told


def _since(started: float) -> float:
    return round((time.monotonic() - started) * 1e3, 3)
