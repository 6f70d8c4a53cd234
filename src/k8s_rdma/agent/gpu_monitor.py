"""The node's GPUs, as kubelet gives them to pods and the machine has them."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.core.devices.gpu_demand import is_gpu
from k8s_rdma.core.inventory import Gpu, in_order
from k8s_rdma.errors import K8sRdmaError, Reason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

    from k8s_rdma.core.devices.pod_devices import PodDevices
    from k8s_rdma.kube.pod_resources import PodResources

    Device = tuple[str, str]
    """A device: its resource and its id."""

    LocateGpus = Callable[[Collection[Device]], Awaitable[Mapping[Device, Gpu]]]

_log = structlog.get_logger()

GPUS_STAND_S = 60.0
"""The time for which the last known GPUs are reported while kubelet does not answer."""

GPU_QUERY_S = 15.0
"""The longest time for all of one query of GPUs."""

SETTLE_S = 0.5
"""The time before a query of GPUs after a call: calls come in bursts, and kubelet limits queries."""


class GpuMonitor:
    """Follows the node's GPUs: kubelet says which there are and which pods have, the machine where they are.

    pods_changed: to be set when a pod may have got devices or given some back. Kubelet takes them back when
        a pod is over, after its DEL: the next query of the interval shows that.
    """

    def __init__(  # noqa: PLR0913 - where GPUs are, who says so, and the pace
        self,
        kubelet: PodResources | None,
        locate: LocateGpus,
        *,
        present: Callable[[], Awaitable[bool]] | None = None,
        own_resources: Collection[str] = (),
        every_s: float = 10.0,
        timeout_s: float = GPU_QUERY_S,
    ) -> None:
        """Ask kubelet in `run` alone.

        kubelet: None if its socket is not known: then there are no GPUs. locate: as
        `linux.gpus.Gpus.by_device`. own_resources: of our device plugin; they are not GPUs.
        present: whether the machine has GPUs. Kubelet is not asked if it has no GPU: the first question
            loads gRPC, of 13 MiB. None to ask always.
        """
        self._kubelet = kubelet
        self._locate = locate
        self._present = present
        self._own_resources = frozenset(own_resources)
        self._every_s = every_s
        self._timeout_s = timeout_s
        self._gpus: tuple[Gpu, ...] = ()
        self._silent_since_s: float | None = None
        self.pods_changed = asyncio.Event()

    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs by the last answer, ordered; empty once kubelet has been silent for `GPUS_STAND_S`."""
        return self._gpus

    async def run(self, publish: Callable[[], Awaitable[None]]) -> None:
        """Follow until cancelled. publish: awaited after each change."""
        while self._kubelet is not None:
            previous = self._gpus
            await self._refresh(self._kubelet)
            if self._gpus != previous:
                await publish()
            await self._wait()

    async def _refresh(self, kubelet: PodResources) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                self._gpus = await self._query(kubelet)
        except (K8sRdmaError, TimeoutError) as error:
            self._fail(str(error) or f"no answer in {self._timeout_s:g} s")
        else:
            self._silent_since_s = None

    async def _query(self, kubelet: PodResources) -> tuple[Gpu, ...]:
        if self._present is not None and not await self._present():
            return ()
        allocatable = {device for device in await kubelet.allocatable() if self._is_gpu(device)}
        if not allocatable:
            return ()
        pods = await kubelet.all()
        if not pods and any(gpu.in_use for gpu in self._gpus):
            msg = "kubelet knows no pods, as just after its start"
            raise K8sRdmaError(msg, reason=Reason.KUBELET_FAILURE)
        allocated = {device for device in _devices(pods) if self._is_gpu(device)}
        located = await self._locate(allocatable | allocated)
        in_use = {located[device] for device in allocated & located.keys()}
        devices = Counter(located[device] for device in allocatable & located.keys())
        return in_order(replace(gpu, in_use=gpu in in_use, devices=number) for gpu, number in devices.items())

    def _is_gpu(self, device: Device) -> bool:
        resource, _ = device
        return is_gpu(resource) and resource not in self._own_resources

    def _fail(self, error: str) -> None:
        """Forget the GPUs when they have stood long enough; log the first failure."""
        now_s = asyncio.get_running_loop().time()
        if self._silent_since_s is None:
            self._silent_since_s = now_s
            _log.warning("gpus_unknown", error=error)
        if now_s >= self._silent_since_s + GPUS_STAND_S:
            self._gpus = ()

    async def _wait(self) -> None:
        """Wait until the next query is due: after a change of pods, or when known GPUs stand no longer."""
        timeout_s = self._every_s
        if self._gpus and self._silent_since_s is not None:
            stand_s = self._silent_since_s + GPUS_STAND_S - asyncio.get_running_loop().time()
            timeout_s = min(timeout_s, stand_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.pods_changed.wait()
                await asyncio.sleep(SETTLE_S)
        self.pods_changed.clear()


def _devices(pods: Iterable[PodDevices]) -> set[Device]:
    return {
        (devices.resource, device_id) for pod in pods for devices in pod.devices for device_id in devices.ids
    }
