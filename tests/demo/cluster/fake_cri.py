"""A container runtime that has sandboxes and containers by name alone, behind a real gRPC socket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from k8s_rdma.kube import grpc_calls
from k8s_rdma.kube.grpc_calls import RefusedCallError, StatusCode
from k8s_rdma_demo import cri


@dataclass
class FakeCri:
    """asked: methods that change sandboxes, in order. refusals: answers of methods that refuse, by name."""

    socket: Path
    asked: list[str] = field(default_factory=list)
    refusals: dict[str, str] = field(default_factory=dict)
    sandboxes: dict[str, cri.PodSandbox] = field(default_factory=dict)
    created: dict[str, cri.NewContainer] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    conditions: Sequence[cri.RuntimeCondition] = (cri.RuntimeCondition("NetworkReady", True, "", ""),)
    leaves: bool = False
    """Whether a sandbox that could not be made stays."""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        methods = {
            cri.RUN_POD_SANDBOX: self._run,
            cri.STOP_POD_SANDBOX: self._stop,
            cri.REMOVE_POD_SANDBOX: self._remove,
            cri.POD_SANDBOX_STATUS: self._status,
            cri.LIST_POD_SANDBOX: self._list,
            cri.CREATE_CONTAINER: self._create,
            cri.START_CONTAINER: self._start,
            cri.STATUS: self._conditions,
        }
        server = grpc_calls.new_server()
        handlers = {method: grpc_calls.handler(method, serve) for method, serve in methods.items()}
        grpc_calls.add_service(server, handlers)
        server.add_insecure_port(grpc_calls.address(self.socket))
        await server.start()
        try:
            yield
        finally:
            await server.stop(None)

    def kill(self, sandbox: str) -> None:
        """Its process."""
        found = self.sandboxes[sandbox]
        self.sandboxes[sandbox] = cri.PodSandbox(
            id=found.id, uid=found.uid, attempt=found.attempt, ready=False
        )

    async def _run(self, pod: cri.PodSandboxConfig) -> str:
        self.asked.append("RunPodSandbox")
        made = f"{pod.name}-{pod.attempt}"
        refused = self.refusals.get("RunPodSandbox")
        if refused is None or self.leaves:
            self.sandboxes[made] = cri.PodSandbox(
                id=made, uid=pod.uid, attempt=pod.attempt, ready=refused is None
            )
        self._refuse("RunPodSandbox")
        return made

    async def _stop(self, sandbox: str) -> None:
        self.asked.append(f"StopPodSandbox {sandbox}")
        self._refuse("StopPodSandbox")
        if sandbox in self.sandboxes:
            self.kill(sandbox)

    async def _remove(self, sandbox: str) -> None:
        self.asked.append(f"RemovePodSandbox {sandbox}")
        self.sandboxes.pop(sandbox, None)

    async def _status(self, sandbox: str) -> cri.PodSandboxStatus:
        if sandbox not in self.sandboxes:
            raise RefusedCallError(StatusCode.NOT_FOUND, f"no sandbox {sandbox}")
        told = {
            "runtimeSpec": {
                "linux": {"namespaces": [{"type": "ipc"}, {"type": "network", "path": "/run/netns/n"}]}
            },
            "cniResult": {
                "Interfaces": {
                    "eth0": {"IPConfigs": [{"IP": "10.0.0.1"}], "Mac": "02:00:00:00:00:01"},
                    "rdma0": {"IPConfigs": [{"IP": "10.56.0.1"}]},
                    "lo": {"IPConfigs": None},
                }
            },
        }
        return cri.PodSandboxStatus(
            sandbox=self.sandboxes[sandbox], ips=("10.0.0.1",), info={"info": json.dumps(told)}
        )

    async def _list(self, _: None) -> Sequence[cri.PodSandbox]:
        self._refuse("ListPodSandbox")
        return tuple(self.sandboxes.values())

    async def _create(self, new: cri.NewContainer) -> str:
        self._refuse("CreateContainer")
        made = f"{new.sandbox}/{new.container.name}"
        self.created[made] = new
        return made

    async def _start(self, container: str) -> None:
        self.started.append(container)

    async def _conditions(self, _: None) -> Sequence[cri.RuntimeCondition]:
        return self.conditions

    def _refuse(self, method: str) -> None:
        if (why := self.refusals.get(method)) is not None:
            raise RefusedCallError(StatusCode.UNKNOWN, why)
