"""The kubelet stand-in: it runs the network, and with a real runtime the containers, of one node's pods.

Without a real runtime a pod is only its network namespace. Pods outlive the kubelet: the next one finds
their sandboxes in its directory. The node object is registered once, and ready while the network plugins
report success; containerd calls STATUS of the plugins about every 5 s.

    async with running_kubelet("http://127.0.0.1:8080", KubeletConfig(node="w1", ...)) as kubelet:
        kubelet.netns_of("default", "p1")

Source: `pkg/kubelet/kubelet_node_status.go`, `nodestatus/setters.go`.
"""

from __future__ import annotations

import asyncio
import platform
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import structlog

from k8s_rdma_demo.cluster.client import ApiClient, ApiError, EventRecorder, Informer
from k8s_rdma_demo.cluster.cni_plugin import CniError
from k8s_rdma_demo.cluster.cni_runtime import CniRuntime
from k8s_rdma_demo.cluster.cri_runtime import CriContainers, CriRuntime
from k8s_rdma_demo.cluster.node_devices import KubeletConfig, NodeDevices, NodeServices, running_node_devices
from k8s_rdma_demo.cluster.node_lifecycle import NODE_LEASES
from k8s_rdma_demo.cluster.objects import (
    ARCHITECTURE,
    LEASES,
    NODES,
    PODS,
    VERSION,
    JsonObject,
    condition_of,
    status_of,
    timestamp,
    uid_of,
)
from k8s_rdma_demo.cluster.pod_worker import PodWorker
from k8s_rdma_demo.cluster.sandboxes import PodRef, Runtime, Sandbox, SandboxDirectory
from k8s_rdma_demo.kubelet.device_manager import DeviceManager, in_background

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from k8s_rdma_demo.cluster.containers import Container, ContainerCreator

_CONFLICT = 409
_NOT_FOUND = 404
_RETRY_S = 1.0
_RENEWAL = 0.25  # of a Lease's duration (`nodeLeaseRenewIntervalFraction`)
_CAPACITY = {"cpu": "16", "memory": "65806876Ki", "pods": "110"}
_log = structlog.get_logger()


@asynccontextmanager
async def running_kubelet(server: str, config: KubeletConfig) -> AsyncIterator[Kubelet]:
    """Run a node's kubelet until the block ends; entered once the node is known and its pods are seen."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(ApiClient.connecting(server))
        runtime, maker = await stack.enter_async_context(_runtime(config))
        devices = None
        if config.devices is not None:
            devices = await stack.enter_async_context(
                running_node_devices(config, config.devices, client, maker)
            )
        services = NodeServices(
            config=config,
            client=client,
            runtime=runtime,
            recorder=EventRecorder(client=client, component="kubelet", host=config.node, clock=config.clock),
            sandboxes=SandboxDirectory(config.sandboxes),
            devices=devices,
        )
        kubelet = Kubelet(services)
        async with in_background(kubelet.run()):
            await kubelet.synced.wait()
            yield kubelet


@asynccontextmanager
async def _runtime(config: KubeletConfig) -> AsyncIterator[tuple[Runtime, ContainerCreator | None]]:
    """The node's runtime, and the maker of containers."""
    if config.runtime_endpoint is not None:
        async with CriRuntime.connecting(config.runtime_endpoint) as runtime:
            yield runtime, CriContainers(runtime)
    elif config.conflist is not None and config.netns_dir is not None:
        yield CniRuntime(config.cni_path, config.conflist, config.netns_dir), None
    else:
        raise ValueError("needed: runtime_endpoint, or conflist and netns_dir")


class Kubelet:
    """Runs one worker for each pod of the node, until `run` is cancelled."""

    def __init__(self, services: NodeServices) -> None:
        self.synced = asyncio.Event()
        self._services = services
        self._workers: dict[str, PodWorker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._orphans: dict[str, list[Sandbox]] = {}
        self._pods = Informer(
            services.client, PODS, self._on_pod, field_selector=f"spec.nodeName={services.config.node}"
        )
        self._group = asyncio.TaskGroup()

    async def run(self) -> NoReturn:
        """Serve the node until cancelled; its pods stay as they are."""
        await register_node(self._services)
        for sandbox in self._services.sandboxes.load():
            self._orphans.setdefault(sandbox.pod.uid, []).append(sandbox)
        async with self._group as group:
            await watch_network(self._services, group)
            if (devices := self._services.devices) is not None:
                group.create_task(watch_devices(self._services, devices.manager))
            if lease_s := self._services.config.lease_s:
                group.create_task(renew_lease(self._services, lease_s))
            group.create_task(self._pods.run())
            await self._pods.synced.wait()
            if self._services.config.runtime_endpoint is not None:
                group.create_task(self._relist())
            self._end_deleted_pods()
            self.synced.set()
        raise AssertionError

    def sandbox_of(self, namespace: str, name: str) -> Sandbox | None:
        """Return the sandbox of a pod, if it runs here."""
        return self._services.sandboxes.of_pod(namespace, name)

    def netns_of(self, namespace: str, name: str) -> Path | None:
        """The file of a running pod's network namespace, for nsenter(1) or setns(2)."""
        sandbox = self.sandbox_of(namespace, name)
        return Path(sandbox.netns) if sandbox is not None else None

    def containers_of(self, namespace: str, name: str) -> dict[str, Container]:
        """The containers of a pod, by name; empty before the first, or if the kubelet knows no devices."""
        if self._services.devices is None:
            return {}
        pod = self._services.devices.containers.find(namespace, name)
        return {container.name: container for container in pod.containers} if pod is not None else {}

    @property
    def device_manager(self) -> DeviceManager:
        """The device manager of a kubelet with device plugins."""
        if self._services.devices is None:
            raise ValueError("the kubelet was configured without devices")
        return self._services.devices.manager

    def lose_sandbox(self, uid: str) -> None:
        """Act as if the pod's sandbox had died: DEL, then ADD for a new one. KeyError: no such pod here."""
        self._workers[uid].lose_sandbox()

    async def ended(self, uid: str) -> None:
        """Wait until the pod is gone from this node, and the last DEL for it has been run."""
        if (task := self._tasks.get(uid)) is not None:
            await asyncio.wait([task])

    async def _relist(self) -> NoReturn:
        """Detect dead sandboxes (in Kubernetes: the pod lifecycle event generator)."""
        while True:
            await asyncio.sleep(self._services.config.relist_s)
            started = [
                recorded for recorded in self._services.sandboxes.load() if recorded.result is not None
            ]
            for sandbox in await self._services.runtime.list_dead(started):
                if (worker := self._workers.get(sandbox.pod.uid)) is not None:
                    worker.lose_sandbox(sandbox.container_id)

    def _on_pod(self, old: JsonObject | None, new: JsonObject | None) -> None:
        uid = uid_of(new or old or {})
        if (worker := self._workers.get(uid)) is not None:
            worker.update(new)
        elif new is not None:
            self._start(PodWorker(self._services, new, self._orphans.pop(uid, [])), uid)

    def _start(self, worker: PodWorker, uid: str) -> None:
        def forget(_: asyncio.Task[None]) -> None:
            del self._workers[uid], self._tasks[uid]

        self._workers[uid] = worker
        self._tasks[uid] = self._group.create_task(worker.run())
        self._tasks[uid].add_done_callback(forget)

    def _end_deleted_pods(self) -> None:
        """Tear down the sandboxes of pods that were deleted while no kubelet ran."""
        for uid, sandboxes in self._orphans.items():
            worker = PodWorker(self._services, _pod_of(sandboxes[0].pod), sandboxes)
            worker.update(None)
            self._start(worker, uid)
        self._orphans.clear()


def _pod_of(reference: PodRef) -> JsonObject:
    namespace, name = reference.key
    meta = {"namespace": namespace, "name": name, "uid": reference.uid, "resourceVersion": ""}
    return {"metadata": meta, "spec": {}, "status": {}}


async def register_node(services: NodeServices) -> None:
    """Have the Node object there and its address known; an API server that does not answer is waited for."""
    while True:
        try:
            node = await _registered(services)
        except ApiError as error:
            _log.warning("node.not_registered", node=services.config.node, error=error.message)
            await asyncio.sleep(_RETRY_S)
            continue
        services.node_ip = services.config.node_ip or _internal_ip(node) or services.node_ip
        return


async def watch_network(services: NodeServices, group: asyncio.TaskGroup) -> None:
    """Ask the plugins now, report, and go on asking in the background."""
    await _check_runtime(services)
    await _report(services)
    group.create_task(_poll_runtime(services))


async def watch_devices(services: NodeServices, manager: DeviceManager) -> NoReturn:
    """Report at every change of how many devices there are."""
    while True:
        reported = manager.capacity()
        await _report(services)
        await manager.wait_for(lambda: manager.capacity() != reported)  # noqa: B023


async def _poll_runtime(services: NodeServices) -> NoReturn:
    while True:
        await asyncio.sleep(services.config.status_interval_s)
        await _check_runtime(services)
        await _report(services)


async def renew_lease(services: NodeServices, lease_s: float) -> NoReturn:
    """Renew the node's Lease until cancelled. Source: `k8s.io/component-helpers/apimachinery/lease`."""
    while True:
        try:
            await _renew(services, lease_s)
        except ApiError as error:
            _log.warning("lease.not_renewed", node=services.config.node, error=error.message)
        await asyncio.sleep(lease_s * _RENEWAL)


async def _renew(services: NodeServices, lease_s: float) -> None:
    key = NODE_LEASES, services.config.node
    spec = {
        "holderIdentity": services.config.node,
        "leaseDurationSeconds": round(lease_s),
        "renewTime": services.config.clock().strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    }
    try:
        await services.client.patch(LEASES, key, {"spec": spec})
    except ApiError as error:
        if error.code != _NOT_FOUND:
            raise
        meta = {"namespace": NODE_LEASES, "name": services.config.node}
        await services.client.create(LEASES, {"metadata": meta, "spec": spec})


async def _check_runtime(services: NodeServices) -> None:
    try:
        await services.runtime.status()
    except CniError as error:
        why = f"Network plugin returns error: {error}"
        services.network_error = f"NetworkReady=false reason:NetworkPluginNotReady message:{why}"
    else:
        services.network_error = ""


async def _report(services: NodeServices) -> None:
    """Write the Ready condition and the allocatable resources if they differ from the desired ones."""
    key = ("", services.config.node)
    try:
        node = await services.client.get(NODES, key)
        desired = _ready(services)
        reported = condition_of(node, "Ready") or {}
        patch: JsonObject = {}
        if (reported.get("status"), reported.get("message")) != (desired["status"], desired["message"]):
            patch["conditions"] = [desired]
        patch |= _resource_changes(node, services.devices)
        if patch:
            await services.client.patch_status(NODES, key, patch)
    except ApiError as error:
        _log.warning("node.not_reported", node=services.config.node, error=error.message)


async def _registered(services: NodeServices) -> JsonObject:
    key = ("", services.config.node)
    try:
        return await services.client.get(NODES, key)
    except ApiError as error:
        if error.code != _NOT_FOUND or not services.config.register:
            raise
    try:
        return await services.client.create(NODES, _node(services))
    except ApiError as error:
        if error.code != _CONFLICT:
            raise
    return await services.client.get(NODES, key)


def _node(services: NodeServices) -> JsonObject:
    name = services.config.node
    labels = {"kubernetes.io/arch": ARCHITECTURE, "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {
            "capacity": _CAPACITY,
            "allocatable": _CAPACITY,
            "conditions": [_ready(services)],
            "addresses": [
                {"type": "InternalIP", "address": services.config.node_ip or services.node_ip},
                {"type": "Hostname", "address": name},
            ],
            "nodeInfo": {
                "kernelVersion": platform.release(),
                "kubeletVersion": VERSION["gitVersion"],
                "operatingSystem": "linux",
                "architecture": ARCHITECTURE,
            },
        },
    }


def _resource_changes(node: JsonObject, devices: NodeDevices | None) -> JsonObject:
    """Return the changes that make all capacity allocatable, and remove resources that left the capacity.

    Of plugins' resources the devices are the capacity, the healthy ones of them allocatable.
    Source: `nodestatus.MachineInfo`. No resources are reserved for the system.
    """
    status = status_of(node)
    reported_capacity, reported_allocatable = status.get("capacity") or {}, status.get("allocatable") or {}
    of_plugins, healthy = devices.status() if devices is not None else ({}, {})
    capacity = reported_capacity | of_plugins
    allocatable = capacity | healthy
    removed = dict.fromkeys(name for name in reported_allocatable if name not in capacity)
    changes = {
        "capacity": _differing(capacity, reported_capacity),
        "allocatable": _differing(allocatable, reported_allocatable) | removed,
    }
    return {name: changed for name, changed in changes.items() if changed}


def _differing(desired: JsonObject, found: JsonObject) -> JsonObject:
    return {name: value for name, value in desired.items() if found.get(name) != value}


def _ready(services: NodeServices) -> JsonObject:
    now = timestamp(services.config.clock())
    times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
    if services.network_error:
        message = f"container runtime network not ready: {services.network_error}"
        return {"type": "Ready", "status": "False", **times, "reason": "KubeletNotReady", "message": message}
    message = "kubelet is posting ready status"
    return {"type": "Ready", "status": "True", **times, "reason": "KubeletReady", "message": message}


def _internal_ip(node: JsonObject) -> str:
    addresses = status_of(node).get("addresses") or []
    return next((a["address"] for a in addresses if a["type"] == "InternalIP"), "")
