"""The kubelet stand-in: it runs the network, and with a real runtime the containers, of one node's pods.

Without a real runtime a pod is only its network namespace. Pods outlive the kubelet: the next one finds their
sandboxes in its directory.

    async with running_kubelet("http://127.0.0.1:8080", KubeletConfig(node="w1", ...)) as kubelet:
        kubelet.netns_of("default", "p1")
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from k8s_rdma_demo.cluster.background import in_background
from k8s_rdma_demo.cluster.client import ApiClient, Informer
from k8s_rdma_demo.cluster.cni_runtime import CniRuntime
from k8s_rdma_demo.cluster.cri_runtime import CriContainers, CriRuntime
from k8s_rdma_demo.cluster.events import EventRecorder
from k8s_rdma_demo.cluster.node_devices import KubeletConfig, NodeServices, running_node_devices
from k8s_rdma_demo.cluster.node_status import register_node, watch_devices, watch_network
from k8s_rdma_demo.cluster.objects import JsonObject, uid_of
from k8s_rdma_demo.cluster.pod_worker import PodWorker
from k8s_rdma_demo.cluster.resources import PODS
from k8s_rdma_demo.cluster.sandbox import PodRef, Runtime, Sandbox, SandboxDirectory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from k8s_rdma_demo.cluster.containers import Container, ContainerCreator
    from k8s_rdma_demo.kubelet.device_manager import DeviceManager


@asynccontextmanager
async def running_kubelet(server: str, config: KubeletConfig) -> AsyncIterator[Kubelet]:
    """Run a node's kubelet until the block ends; entered once the node is known and its pods are seen."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(ApiClient.connecting(server))
        runtime, maker = await stack.enter_async_context(_runtime(config))
        devices = None
        if config.devices is not None:
            devices = await stack.enter_async_context(
                running_node_devices(config.devices, config.containers, maker)
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
    """The node's runtime, and who makes containers."""
    if config.runtime_endpoint is not None:
        async with CriRuntime.connecting(config.runtime_endpoint) as runtime:
            yield runtime, CriContainers(runtime)
    elif config.conflist is not None and config.netns_dir is not None:
        yield CniRuntime(config.cni_path, config.conflist, config.netns_dir), None
    else:
        raise ValueError("needed: runtime_endpoint, or conflist and netns_dir")


class Kubelet:
    """One worker for each pod of the node; `run` for as long as it shall."""

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
            group.create_task(self._pods.run())
            await self._pods.synced.wait()
            if self._services.config.runtime_endpoint is not None:
                group.create_task(self._relist())
            self._end_deleted_pods()
            self.synced.set()
        raise AssertionError

    def sandbox_of(self, namespace: str, name: str) -> Sandbox | None:
        """The sandbox of a pod that runs here; None when there is none."""
        return self._services.sandboxes.of_pod(namespace, name)

    def netns_of(self, namespace: str, name: str) -> Path | None:
        """The file of a running pod's network namespace, for nsenter(1) or setns(2)."""
        sandbox = self.sandbox_of(namespace, name)
        return Path(sandbox.netns) if sandbox is not None else None

    def containers_of(self, namespace: str, name: str) -> dict[str, Container]:
        """The containers of a pod, by name; none where it has none yet, or the kubelet knows no devices."""
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
        """Return when nothing of the pod is left here, and the last DEL for it has been run."""
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
