"""The CNI verbs as calls of the CNI executable, and their answers.

Source: CNI specification 1.1.0, section 2. Calls for one container run one after the other; those of
different containers meet only at the worker.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from k8s_rdma.agent.calls import AgentCall
from k8s_rdma.agent.cni.add import AddCommand
from k8s_rdma.agent.cni.check import CheckCommand
from k8s_rdma.agent.cni.delete import DeleteCommand
from k8s_rdma.agent.cni.node_access import ContainerLocks
from k8s_rdma.agent.software_caps import SoftwareCaps
from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma.wire.cni_request import CniEnvironment, decode_netconf, decode_network, parse_environment
from k8s_rdma.wire.cni_result import encode_error, encode_result
from k8s_rdma.wire.cni_socket import Reply, SocketRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from k8s_rdma.agent.node import Node
    from k8s_rdma.agent.report import Reporter
    from k8s_rdma.core.step import NetnsRef
    from k8s_rdma.linux.netns import Namespaces

_PODS_CHANGE = frozenset({"ADD", "DEL"})
"""The commands that come with a pod's beginning and end, and so with a change of devices in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CniCommands:
    """The commands of one node. locks: held by them, one for each container."""

    add: AddCommand
    delete: DeleteCommand
    check: CheckCommand
    caps: SoftwareCaps
    locks: ContainerLocks


class Service:
    """Answers the CNI executable, and publishes the changes of its calls."""

    def __init__(
        self,
        *,
        node: Node,
        commands: CniCommands,
        namespaces: Namespaces,
        reporter: Reporter,
        pods_changed: Callable[[], None] = lambda: None,
    ) -> None:
        """Wait for the first call. pods_changed: called after each ADD and DEL, failed ones too."""
        self._node = node
        self._commands = commands
        self._namespaces = namespaces
        self._reporter = reporter
        self._pods_changed = pods_changed

    async def call(
        self, request: SocketRequest, netns: int | None, still_waiting: Callable[[], bool]
    ) -> Reply:
        """Answer one call of the CNI executable. A failure is an answer, too.

        still_waiting: reports whether the caller still waits for the answer.
        """
        command = request.env.get("CNI_COMMAND", "")
        ledger, hardware = self._node.ledger, self._node.hardware

        async def perform() -> Reply:
            return Reply(exit_status=0, stdout=await self._perform(request, netns, still_waiting))

        async def publish() -> None:
            # A receipt is reported while its ADD goes on: its end is another ledger, if only an equal one.
            if ledger is not self._node.ledger or hardware != self._node.hardware:
                await self._reporter.publish()

        reply = await AgentCall(
            name="cni_call",
            fields=_log_fields(request.env),
            perform=perform,
            failed=partial(_failure, request),
            publish=publish,
            logs_success=command != "STATUS",  # containerd asks every 5 s
        ).answer()
        if command in _PODS_CHANGE:
            self._pods_changed()
        return reply

    async def _perform(
        self, request: SocketRequest, netns: int | None, still_waiting: Callable[[], bool]
    ) -> bytes:
        call, stdin = parse_environment(request.env), request.stdin
        with self._open_namespace(call, netns) as sandbox:
            match call.command:
                case "ADD":
                    return await self._add(call, stdin, sandbox, still_waiting)
                case "DEL":
                    network, _ = decode_network(stdin)
                    await self._commands.delete.delete(call, network, stdin)
                case "CHECK":
                    await self._commands.check.check(call, stdin)
                case "GC":
                    await self._commands.delete.collect(call, stdin)
                case "STATUS":
                    await self._commands.check.require_ready(call, stdin)
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
        result = await self._commands.add.add(call, sandbox, stdin, still_waiting)
        if result is not None:
            return result.result
        netconf = decode_netconf(stdin)
        return encode_result([], netconf.cni_version, netconf.prev_result)

    @contextmanager
    def _open_namespace(self, call: CniEnvironment, netns: int | None) -> Iterator[NetnsRef | None]:
        """Let the kernel reach the sandbox by the call's descriptor, until the block ends."""
        if netns is None:
            yield None
            return
        sandbox = self._namespaces.hold(netns, call.netns or "")
        try:
            yield sandbox
        finally:
            self._namespaces.release(sandbox)


def _failure(request: SocketRequest, error: K8sRdmaError) -> Reply:
    try:
        _, version = decode_network(request.stdin)
    except K8sRdmaError:
        version = "1.0.0"
    return Reply(exit_status=1, stdout=encode_error(error, version))


def _log_fields(env: Mapping[str, str]) -> dict[str, str]:
    """Collect the log fields of a call, which may be malformed."""
    fields = {"command": env.get("CNI_COMMAND", ""), "container": env.get("CNI_CONTAINERID", "")}
    args = dict(pair.partition("=")[::2] for pair in env.get("CNI_ARGS", "").split(";"))
    name = args.get("K8S_POD_NAME")
    return fields | {"pod": f"{args.get('K8S_POD_NAMESPACE', '')}/{name}"} if name else fields
