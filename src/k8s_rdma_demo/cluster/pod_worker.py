"""The pod worker: one pod on its node from its sandbox to its end, and the status reported for it.

Source: `pkg/kubelet/pod_workers.go`, `kuberuntime_manager.go`, `kuberuntime_gc.go`; events and the order of
DELs as recorded from kubelet 1.36 with containerd 2.1.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import structlog

from k8s_rdma.errors import K8sRdmaError, KernelError
from k8s_rdma_demo.cluster.client import ApiError
from k8s_rdma_demo.cluster.cni_plugin import CniError
from k8s_rdma_demo.cluster.containers import ContainerError
from k8s_rdma_demo.cluster.node_devices import REJECTED, NodeServices, RejectedError
from k8s_rdma_demo.cluster.objects import (
    PODS,
    JsonObject,
    annotations_of,
    is_terminating,
    key_of,
    metadata,
    name_of,
    namespace_of,
    nano_timestamp,
    spec_of,
    status_of,
    timestamp,
    uid_of,
)
from k8s_rdma_demo.cluster.sandboxes import AttachError, PodRef, Sandbox

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime


T = TypeVar("T")

_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")

_NOT_FOUND = frozenset({404, 409})  # no such pod, or another one of that name
_TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})
_LATE_DELETES = 2
_log = structlog.get_logger()


def running_status(pod: JsonObject, sandbox: Sandbox | None, node_ip: str, now: datetime) -> JsonObject:
    """The status patch of a pod whose sandbox is up: running, ready, with its addresses.

    sandbox: unset for a pod in the host's network, which has the node's address.
    """
    ips = sandbox.ips if sandbox is not None else [node_ip]
    moment = timestamp(now)
    former = [ip["ip"] for ip in status_of(pod).get("podIPs") or [] if ip["ip"] not in ips]
    return {
        "phase": "Running",
        "conditions": [_condition(kind, pod, moment) for kind in _CONDITIONS],
        "hostIP": node_ip,
        "hostIPs": [{"ip": node_ip}],
        "podIP": ips[0],
        # The list is merged by address: former ones need a delete directive.
        "podIPs": [*({"ip": ip, "$patch": "delete"} for ip in former), *({"ip": ip} for ip in ips)],
        "startTime": status_of(pod).get("startTime") or moment,
        "containerStatuses": [_container(container, moment) for container in spec_of(pod)["containers"]],
    }


def _condition(kind: str, pod: JsonObject, moment: str) -> JsonObject:
    generation = metadata(pod).get("generation", 1)
    return {
        "type": kind,
        "observedGeneration": generation,
        "status": "True",
        "lastTransitionTime": moment,
        "reason": None,
        "message": None,
    }


def _container(container: JsonObject, moment: str) -> JsonObject:
    return {
        "name": container["name"],
        "state": {"running": {"startedAt": moment}},
        "lastState": {},
        "ready": True,
        "restartCount": 0,
        "image": container["image"],
        "imageID": "",
        "started": True,
    }


class _NotStartedError(K8sRdmaError):
    """A sandbox could not be had; about: the `reason` of the event that says so."""

    def __init__(self, about: str, message: str) -> None:
        super().__init__(message)
        self.about = about


class PodWorker:
    """Keeps a sandbox for the pod until the pod shall end, then takes it down and lets the object go.

    sandboxes: those of the pod that a former kubelet left.
    """

    def __init__(self, services: NodeServices, pod: JsonObject, sandboxes: list[Sandbox]) -> None:
        self._services = services
        self._config = services.config
        self._pod = pod
        self._received_at = nano_timestamp()
        self._sandboxes = {sandbox.container_id: sandbox for sandbox in sandboxes}
        self._deleted: list[Sandbox] = []
        self._is_deleted = False
        self._sandbox_is_dead = False
        self._ending = asyncio.Event()
        self._wake = asyncio.Event()
        self.update(pod)

    def update(self, pod: JsonObject | None) -> None:
        """Take the changed object of the pod; absent: it was deleted, and with it the reason to run."""
        if pod is None:
            self._is_deleted = True
        else:
            self._pod = pod
        if self._is_deleted or is_terminating(self._pod):
            self._ending.set()
            self._wake.set()

    def lose_sandbox(self, container_id: str | None = None) -> None:
        """Take down a sandbox that has died, and make another one.

        container_id: of that sandbox; unset: the pod's current one.
        """
        if container_id is not None and container_id not in self._sandboxes:
            return
        self._sandbox_is_dead = True
        self._wake.set()

    async def run(self) -> None:
        """Run the pod from its sandbox to its end; return when it is gone from this node."""
        if not await self._admit():
            await self._ending.wait()
        elif spec_of(self._pod).get("hostNetwork"):
            await self._keep_in_host_network()
        else:
            await self._keep_sandbox()
        if self._is_deleted:
            await self._release()
        await self._repeat_until_done(self._teardown)
        await self._unprepare_claims()
        await self._release()
        await self._delete_pod()
        await self._delete_late()

    # While it runs

    async def _admit(self) -> bool:
        """Admit the pod; kubelet rejects, for good, a pod that cannot have its devices."""
        if status_of(self._pod).get("phase") in _TERMINAL_PHASES:
            return False
        if self._ending.is_set() or self._services.devices is None:
            return True
        try:
            await self._services.devices.admit(self._pod)
        except RejectedError as error:
            await self._services.recorder.warning(self._pod, REJECTED, str(error))
            await self._patch_status(
                {"phase": "Failed", "reason": REJECTED, "message": f"Pod was rejected: {error}"}
            )
            return False
        return True

    async def _release(self) -> None:
        if self._services.devices is not None:
            await self._services.devices.release(uid_of(self._pod))

    async def _keep_in_host_network(self) -> None:
        await self._retry(self._prepare_claims)
        if await self._create_containers(None):
            await self._report(None)
        await self._ending.wait()

    async def _keep_sandbox(self) -> None:
        await self._retry(self._prepare_claims)
        current = await self._reusable_sandbox()
        while not self._ending.is_set():
            if current is None:
                current = await self._retry(self._try_to_start)
                continue
            self._sandbox_is_dead = False
            self._wake.clear()
            if await self._create_containers(current):
                await self._report(current)
            while not self._ending.is_set() and not self._sandbox_is_dead:
                await self._wake.wait()
                self._wake.clear()
            if not self._ending.is_set():
                current = None
                message = "Pod sandbox changed, it will be killed and re-created."
                await self._services.recorder.normal(self._pod, "SandboxChanged", message)

    async def _reusable_sandbox(self) -> Sandbox | None:
        """Return the running sandbox of a former kubelet, if there is one."""
        started = [sandbox for sandbox in self._sandboxes.values() if sandbox.result is not None]
        dead = await self._services.runtime.list_dead(started)
        return next((sandbox for sandbox in started if sandbox not in dead), None)

    async def _retry(self, step: Callable[[], Awaitable[T]]) -> T | None:
        """Repeat a step until it succeeds; return its result, unless the pod shall end meanwhile."""
        pause_s = self._config.start_retry_s
        while not self._ending.is_set():
            try:
                return await step()
            except _NotStartedError as error:
                await self._services.recorder.warning(self._pod, error.about, error.message)
            await self._wait(self._ending, pause_s)
            pause_s = min(2 * pause_s, self._config.max_start_retry_s)
        return None

    async def _prepare_claims(self) -> None:
        if self._services.devices is None:
            return
        try:
            await self._services.devices.prepare_claims(self._pod)
        except ContainerError as error:
            message = f"Failed to prepare dynamic resources: {error.message}"
            raise _NotStartedError("FailedPrepareDynamicResources", message) from error

    async def _unprepare_claims(self) -> None:
        while self._services.devices is not None:
            try:
                await self._services.devices.unprepare_claims(uid_of(self._pod))
            except ContainerError as error:
                _log.warning("claims.not_unprepared", pod=name_of(self._pod), error=error.message)
                await asyncio.sleep(self._config.stop_retry_s)
            else:
                return

    async def _try_to_start(self) -> Sandbox:
        await self._teardown_before_start()
        if why := self._services.network_error:
            message = f"network is not ready: container runtime network not ready: {why}"
            raise _NotStartedError("NetworkNotReady", message)
        try:
            sandbox = await self._services.runtime.create(self._reference())
        except KernelError as error:
            raise _NotStartedError("FailedCreatePodSandBox", _not_created(error.message)) from error
        self._save(sandbox)
        try:
            attached = await self._services.runtime.attach(sandbox)
        except AttachError as error:
            self._forget(sandbox)
            if error.leftover is not None:
                self._save(error.leftover)
            raise _NotStartedError("FailedCreatePodSandBox", _not_created(error.kubelet_message)) from error
        self._save(attached)
        if attached.container_id != sandbox.container_id:
            self._forget(sandbox)
        return attached

    async def _create_containers(self, sandbox: Sandbox | None) -> bool:
        """Make the containers, after as many tries as it takes; False: their sandbox shall end meanwhile."""
        pause_s = self._config.start_retry_s
        while not self._ending.is_set() and not self._sandbox_is_dead:
            if self._services.devices is None:
                return True
            try:
                await self._services.devices.create(self._pod, sandbox.container_id if sandbox else "")
            except ContainerError as error:
                await self._services.recorder.warning(self._pod, "Failed", f"Error: {error.message}")
            else:
                return True
            await self._wait(self._wake, pause_s)
            pause_s = min(2 * pause_s, self._config.max_start_retry_s)
        return False

    async def _teardown_before_start(self) -> None:
        try:
            await self._teardown()
        except CniError as error:
            raise _NotStartedError("FailedKillPod", self._not_killed(error)) from error

    def _reference(self) -> PodRef:
        """Return the pod as the runtime gets it, with the annotations that kubelet adds."""
        added = {"kubernetes.io/config.seen": self._received_at, "kubernetes.io/config.source": "api"}
        return PodRef(
            namespace=namespace_of(self._pod),
            name=name_of(self._pod),
            uid=uid_of(self._pod),
            annotations={**annotations_of(self._pod), **added},
        )

    async def _report(self, sandbox: Sandbox | None) -> None:
        await self._patch_status(
            running_status(self._pod, sandbox, self._services.node_ip, self._config.clock())
        )

    async def _patch_status(self, status: JsonObject) -> None:
        try:
            await self._services.client.patch_status(PODS, key_of(self._pod), status)
        except ApiError as error:
            if error.code not in _NOT_FOUND:
                _log.warning("pod.not_reported", pod=name_of(self._pod), error=error.message)

    # When it ends

    async def _teardown(self) -> None:
        """Stop containers and every sandbox there is; CniError leaves those that are not yet stopped."""
        if self._services.devices is not None:
            self._services.devices.containers.remove(uid_of(self._pod))
        for sandbox in list(self._sandboxes.values()):
            await self._services.runtime.delete(sandbox)
            self._forget(sandbox)
            self._deleted.append(sandbox)

    async def _delete_pod(self) -> None:
        """Delete the pod's object for good, unless that was done without waiting for this node."""
        while not self._is_deleted:
            try:
                await self._services.client.delete_now(PODS, self._pod)
            except ApiError as error:
                if error.code not in _NOT_FOUND:
                    await asyncio.sleep(self._config.stop_retry_s)
                    continue
            return

    async def _delete_late(self) -> None:
        """Run DEL again, as the removal of a stopped sandbox does: without namespace and result of ADD."""
        if self._config.late_delete_s is None or not self._deleted:
            return
        await asyncio.sleep(self._config.late_delete_s)
        for sandbox in self._deleted:
            remove = partial(self._services.runtime.detach, replace(sandbox, result=None))
            for _ in range(_LATE_DELETES):
                await self._repeat_until_done(remove)

    async def _repeat_until_done(self, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                return await step()
            except CniError as error:
                await self._services.recorder.warning(self._pod, "FailedKillPod", self._not_killed(error))
            await asyncio.sleep(self._config.stop_retry_s)

    # Records of sandboxes

    def _save(self, sandbox: Sandbox) -> None:
        self._sandboxes[sandbox.container_id] = sandbox
        self._services.sandboxes.save(sandbox)

    def _forget(self, sandbox: Sandbox) -> None:
        self._sandboxes.pop(sandbox.container_id, None)
        self._services.sandboxes.remove(sandbox)

    @staticmethod
    async def _wait(event: asyncio.Event, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return

    def _not_killed(self, error: CniError) -> str:
        sandbox = next(iter(self._sandboxes), "")
        return (
            f'error killing pod: failed to "KillPodSandbox" for "{uid_of(self._pod)}" with '
            f'KillPodSandboxError: "rpc error: code = Unknown desc = failed to destroy network for sandbox '
            f'\\"{sandbox}\\": {error}"'
        )


def _not_created(why: str) -> str:
    return f"Failed to create pod sandbox: rpc error: code = Unknown desc = {why}"
