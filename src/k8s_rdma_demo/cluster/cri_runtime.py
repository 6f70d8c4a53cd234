"""A real container runtime (containerd, CRI-O) behind the stand-in kubelet: sandboxes and containers by CRI.

    async with CriRuntime.connecting(Path("/run/containerd/containerd.sock")) as runtime:
        sandbox = await runtime.attach(await runtime.create(PodRef(...)))

Containers take image, command, args, plain variables, `hostPath` mounts, added capabilities and
`privileged` from the pod. Init containers start beside the others.

Source: kubelet's `pkg/kubelet/kuberuntime/kuberuntime_sandbox.go`; containerd 1.6 `pkg/cri/server`.
"""

from __future__ import annotations

import uuid
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from k8s_rdma.core.devices.pod_devices import AllocateResponse, Mount
from k8s_rdma.kube import grpc_calls
from k8s_rdma.kube.grpc_calls import AioRpcError, StatusCode
from k8s_rdma_demo import cri
from k8s_rdma_demo.cluster.cni_plugin import CniError
from k8s_rdma_demo.cluster.containers import Container, ContainerError
from k8s_rdma_demo.cluster.objects import JsonObject, name_of, namespace_of, spec_of, uid_of
from k8s_rdma_demo.cluster.sandboxes import IFNAME, AttachError, PodRef, Sandbox
from k8s_rdma_demo.cri import ContainerConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from k8s_rdma.wire.protobuf import Method

RequestT = TypeVar("RequestT")
Answer = TypeVar("Answer")

CGROUP_PARENT = "/k8s-rdma"
_TIMEOUT_S = 240.0  # kubelet gives RunPodSandbox twice its `runtimeRequestTimeout` of 2 minutes
_BEGUN = "begun-"


class CriRuntime:
    """A container runtime behind one connection, which is made again after a restart of the runtime.

    A sandbox whose id begins with `begun-` was requested, and its answer is unknown: an operation on it
    applies to every sandbox of its pod.
    """

    def __init__(self, socket: Path, timeout_s: float = _TIMEOUT_S) -> None:
        self._channel = grpc_calls.connect(socket)
        self._timeout_s = timeout_s

    @classmethod
    @asynccontextmanager
    async def connecting(cls, socket: Path, timeout_s: float = _TIMEOUT_S) -> AsyncIterator[CriRuntime]:
        """Connect for as long as the block lasts; the socket need not exist yet."""
        runtime = cls(socket, timeout_s)
        try:
            yield runtime
        finally:
            await runtime.close()

    async def close(self) -> None:
        """End the connection."""
        await self._channel.close()

    async def create(self, pod: PodRef) -> Sandbox:
        """Return only a name for the sandbox that `attach` requests."""
        return Sandbox(container_id=f"{_BEGUN}{uuid.uuid4()}", pod=pod, netns="")

    async def attach(self, sandbox: Sandbox) -> Sandbox:
        """Call RunPodSandbox."""
        try:
            attempts = [existing.attempt for existing in await self._sandboxes_of(sandbox.pod.uid)]
            config = pod_config(sandbox.pod, attempt=max(attempts, default=-1) + 1)
            sandbox_id = await self._call(cri.RUN_POD_SANDBOX, config)
            status = await self._call(cri.POD_SANDBOX_STATUS, sandbox_id)
        except CniError as error:
            raise AttachError(error, sandbox, kubelet_message=error.message) from error
        return replace(sandbox, container_id=sandbox_id, netns=_netns(status), result=_result(status))

    async def delete(self, sandbox: Sandbox) -> None:
        """StopPodSandbox, which ends its containers as well."""
        if sandbox.container_id.startswith(_BEGUN):
            await self.detach(sandbox)
        else:
            await self._call(cri.STOP_POD_SANDBOX, sandbox.container_id)

    async def detach(self, sandbox: Sandbox) -> None:
        """Call StopPodSandbox and RemovePodSandbox."""
        ids = [sandbox.container_id]
        if sandbox.container_id.startswith(_BEGUN):
            ids = [sandbox_id.id for sandbox_id in await self._sandboxes_of(sandbox.pod.uid)]
        for sandbox_id in ids:
            await self._call(cri.STOP_POD_SANDBOX, sandbox_id)
            await self._call(cri.REMOVE_POD_SANDBOX, sandbox_id)

    async def list_dead(self, sandboxes: Sequence[Sandbox]) -> Sequence[Sandbox]:
        """List the sandboxes that the runtime does not report as ready; empty while it does not answer."""
        try:
            listed = await self._call(cri.LIST_POD_SANDBOX, None)
        except CniError:
            return ()
        ready = {sandbox.id for sandbox in listed if sandbox.ready}
        return [sandbox for sandbox in sandboxes if sandbox.container_id not in ready]

    async def status(self) -> None:
        """Check that the runtime and its network are ready; further conditions do not count for kubelet."""
        for condition in await self._call(cri.STATUS, None):
            if condition.type in ("RuntimeReady", "NetworkReady") and not condition.status:
                raise CniError(f"{condition.reason}: {condition.message}")

    async def start_container(self, sandbox: str, pod: PodRef, container: cri.ContainerConfig) -> str:
        """CreateContainer and StartContainer in a pod's sandbox; the container's id."""
        status = await self._call(cri.POD_SANDBOX_STATUS, sandbox)
        attempt = status.sandbox.attempt  # the name without it may be taken, in a sandbox of before
        new = cri.NewContainer(
            sandbox=sandbox,
            pod=pod_config(pod, attempt=attempt),
            container=replace(container, attempt=attempt),
        )
        container_id = await self._call(cri.CREATE_CONTAINER, new)
        await self._call(cri.START_CONTAINER, container_id)
        return container_id

    async def _sandboxes_of(self, uid: str) -> list[cri.PodSandbox]:
        return [sandbox for sandbox in await self._call(cri.LIST_POD_SANDBOX, None) if sandbox.uid == uid]

    async def _call(self, method: Method[RequestT, Answer], request: RequestT) -> Answer:
        try:
            return await grpc_calls.call(self._channel, method, request, timeout_s=self._timeout_s)
        except AioRpcError as error:
            if error.code() is StatusCode.UNAVAILABLE:
                raise CniError(f"the container runtime does not answer: {error.details()}") from error
            raise CniError(error.details() or str(error.code())) from error


def pod_config(pod: PodRef, *, attempt: int) -> cri.PodSandboxConfig:
    """A pod's sandbox as it is asked for."""
    return cri.PodSandboxConfig(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        attempt=attempt,
        annotations=pod.annotations,
        cgroup_parent=CGROUP_PARENT,
    )


def _info(status: cri.PodSandboxStatus) -> dict[str, Any]:
    """Return containerd's own information on a sandbox; empty for a runtime without it."""
    info: dict[str, Any] = msgspec.json.decode(status.info.get("info") or "{}")
    return info


def _netns(status: cri.PodSandboxStatus) -> str:
    spec = _info(status).get("runtimeSpec") or {}
    namespaces = (spec.get("linux") or {}).get("namespaces") or []
    return next(
        (namespace.get("path") or "" for namespace in namespaces if namespace["type"] == "network"), ""
    )


def _result(status: cri.PodSandboxStatus) -> JsonObject:
    """The network as a CNI result. Addresses lack a prefix length because containerd does not keep it."""
    networks: dict[str, Any] = (_info(status).get("cniResult") or {}).get("Interfaces") or {}
    networks = networks or {IFNAME: {"IPConfigs": [{"IP": ip} for ip in status.ips]}}
    interfaces: list[JsonObject] = []
    ips: list[JsonObject] = []
    for name, network in sorted(networks.items()):
        ips += [{"address": ip["IP"], "interface": len(interfaces)} for ip in network.get("IPConfigs") or []]
        interfaces.append(
            {"name": name, "mac": network.get("Mac", ""), "sandbox": network.get("Sandbox", "")}
        )
    return {"cniVersion": "1.0.0", "interfaces": interfaces, "ips": ips}


@dataclass(frozen=True, slots=True)
class CriContainers:
    """Made and started by a runtime."""

    runtime: CriRuntime

    async def create(
        self, pod: JsonObject, sandbox: str, name: str, allocated: AllocateResponse
    ) -> Container:
        """The container of that name; ContainerError."""
        config = container_config(pod, name, allocated)
        reference = PodRef(namespace=namespace_of(pod), name=name_of(pod), uid=uid_of(pod))
        try:
            container_id = await self.runtime.start_container(sandbox, reference, config)
        except CniError as error:
            raise ContainerError(error.message) from error
        return Container(
            name=name,
            id=container_id,
            envs=config.envs,
            annotations=allocated.annotations,
            mounts=config.mounts,
            cdi_devices=allocated.cdi_devices,
        )


def container_config(pod: JsonObject, name: str, allocated: AllocateResponse) -> ContainerConfig:
    """A container of the pod as the runtime is asked for it."""
    spec = spec_of(pod)
    every = [*(spec.get("initContainers") or []), *spec["containers"]]
    container = next(entry for entry in every if entry["name"] == name)
    security = (spec.get("securityContext") or {}) | (container.get("securityContext") or {})
    variables = {variable["name"]: variable.get("value", "") for variable in container.get("env") or []}
    return ContainerConfig(
        name=name,
        image=container["image"],
        command=tuple(container.get("command") or ()),
        args=tuple(container.get("args") or ()),
        envs={**allocated.envs, **variables},
        annotations=allocated.annotations,
        mounts=(*_volumes(spec, container), *allocated.mounts),
        devices=allocated.devices,
        cdi_devices=allocated.cdi_devices,
        capabilities=tuple((security.get("capabilities") or {}).get("add") or ()),
        privileged=security.get("privileged", False),
        user=security.get("runAsUser"),
    )


def _volumes(spec: JsonObject, container: JsonObject) -> tuple[Mount, ...]:
    paths = {
        entry["name"]: entry["hostPath"]["path"]
        for entry in spec.get("volumes") or []
        if entry.get("hostPath")
    }
    return tuple(
        Mount(
            path=volume["mountPath"], host_path=paths[volume["name"]], read_only=volume.get("readOnly", False)
        )
        for volume in container.get("volumeMounts") or []
        if volume["name"] in paths
    )
