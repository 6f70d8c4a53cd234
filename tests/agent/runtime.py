"""A container runtime before the agent's service, on the pretended kernel; it sees the output."""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from agent.machine import PLUGINS, Machine, Verbs
from k8s_rdma.agent.cni.service import Service
from k8s_rdma.agent.report import Reporter
from k8s_rdma.wire.cni_result import SUPPORTED_VERSIONS, WITHOUT_INTERFACES
from k8s_rdma.wire.cni_socket import SocketRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from k8s_rdma.agent.node import Node
    from k8s_rdma.core.step import NetnsRef

ANNOTATIONS = "io.kubernetes.cri.pod-annotations"

every_version = pytest.mark.parametrize("version", SUPPORTED_VERSIONS)
since_interfaces = pytest.mark.parametrize(
    "version", [version for version in SUPPORTED_VERSIONS if version not in WITHOUT_INTERFACES]
)


class PretendedNamespaces:
    """For `linux.netns.Namespaces`: descriptors are numbers of the pretended machine's namespaces."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def hold(self, namespace: int, path: str) -> NetnsRef:
        return self._machine.sandboxes[namespace]

    def release(self, netns: NetnsRef) -> None:
        pass

    def is_own(self, netns: NetnsRef) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Answer:
    """The output; `document` is empty if there was no output."""

    exit_status: int
    document: dict[str, Any]


class Runtime:
    """Calls plugin verbs for pods whose sandboxes it makes; stdin is the network configuration of now.

    Plugins are looked for in the machine's `plugins` before the node's own directories.
    """

    def __init__(self, machine: Machine, node: Node, verbs: Verbs, service: Service) -> None:
        self._machine = machine
        self._service = service
        self._path = f"{machine.directory / 'plugins'}:{PLUGINS}"
        self.node, self.verbs = node, verbs

    async def ask(
        self,
        command: str,
        conf: dict[str, object],
        container: str = "c1",
        *,
        ifname: str = "eth0",
        pod: str | None = "p",
        annotations: dict[str, str] | None = None,
        prev_result: object = None,
    ) -> Answer:
        """annotations: delivered with the call if given. pod: unset for a caller that is not Kubernetes."""
        if annotations is not None:
            conf = conf | {"runtimeConfig": {ANNOTATIONS: annotations}}
        if prev_result is not None:
            conf = conf | {"prevResult": prev_result}
        env = {"CNI_COMMAND": command, "CNI_PATH": self._path}
        netns = None
        if command in ("ADD", "DEL", "CHECK"):
            netns = self._machine.sandbox(container)
            args = f"K8S_POD_NAMESPACE=default;K8S_POD_NAME={pod};K8S_POD_UID=uid-{pod}" if pod else ""
            env |= {
                "CNI_CONTAINERID": container,
                "CNI_NETNS": self._machine.sandboxes[netns].path,
                "CNI_IFNAME": ifname,
                "CNI_ARGS": args,
            }
        request = SocketRequest(env=env, stdin=json.dumps(conf).encode(), has_netns=netns is not None)
        reply = await self._service.call(request, netns, lambda: True)
        return Answer(reply.exit_status, json.loads(reply.stdout or b"{}"))

    def inside(self, container: str = "c1") -> set[str]:
        """The names of the interfaces in a sandbox."""
        sandbox = self._machine.sandboxes[self._machine.sandbox(container)]
        return set(self._machine.kernel.interfaces(sandbox))


@contextmanager
def running(machine: Machine, **how: object) -> Iterator[Runtime]:
    """The agent of a machine, and a runtime before it; plugins may be put into its `plugins`."""
    with machine.running(**how) as (node, verbs):
        reporter = Reporter(node)
        service = Service(
            node=node,
            commands=verbs.commands,
            namespaces=PretendedNamespaces(machine),
            reporter=reporter,
            pods_changed=machine.pods_changed,
        )
        yield Runtime(machine, node, verbs, service)


def in_turn(machine: Machine, scenario: Callable[[Runtime], Awaitable[None]], **how: object) -> None:
    async def whole() -> None:
        with running(machine, **how) as runtime:
            await scenario(runtime)

    asyncio.run(whole())
