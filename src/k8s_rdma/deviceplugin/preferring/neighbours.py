"""Adds to kubelet's questions where the GPUs are that the pod was given."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.config.devices import ExclusiveResource
from k8s_rdma.deviceplugin.preferring.newcomers import Newcomers
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.kube.pod_resources import KubeletPodResources
from k8s_rdma.linux.gpus import Gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from k8s_rdma.config.devices import DevicePluginConfig
    from k8s_rdma.core.devices.device_plugin_api import Choice, Neighbour
    from k8s_rdma.kube.pod_resources import PodResources

    Places = Callable[[Iterable[tuple[str, str]]], tuple[Neighbour, ...]]

_log = structlog.get_logger()

DEADLINE_S = 0.3
"""A pod's admission waits no longer for a preference that is merely better."""

EVERY_S = 10.0
"""Pods are also looked at when nobody asks, so that the next one that is asked for is the only new one."""


class Neighbours:
    """Asks kubelet which pods have which devices, and the machine where these are.

    places: as `linux.gpus.Gpus.places`, blocking. resources: for whose sake it is asked. ours: all of this
    process. To be closed.
    """

    def __init__(
        self,
        pods: PodResources,
        places: Places,
        *,
        resources: frozenset[str],
        ours: frozenset[str],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pods = pods
        self._places = places
        self._resources = resources
        self._newcomers = Newcomers(ours)
        self._one_at_a_time = asyncio.Lock()
        self._last: Future[tuple[Neighbour, ...]] | None = None
        self._now = now
        self._failing = False

    async def complete(self, resource: str, choice: Choice) -> Choice:
        """The question with what the pod is to be beside; as it was when that cannot be told in time."""
        if resource not in self._resources:
            return choice
        try:
            async with asyncio.timeout(DEADLINE_S):
                devices = self._newcomers.admitted(await self._pods.all(), resource, self._now())
                beside = await self._where(devices) if devices else ()
        except (K8sRdmaError, TimeoutError) as error:
            self._note(error)
            return choice
        self._note(None)
        return replace(choice, beside=beside)

    async def follow(self) -> None:
        """Look at the pods for ever, or not at all, where nobody asks."""
        while self._resources:
            try:
                async with asyncio.timeout(EVERY_S):
                    self._newcomers.look(await self._pods.all(), self._now())
            except (K8sRdmaError, TimeoutError) as error:
                self._note(error)
            else:
                self._note(None)
            await asyncio.sleep(EVERY_S)

    async def close(self) -> None:
        """End the connection to kubelet."""
        await self._pods.close()

    async def _where(self, devices: tuple[tuple[str, str], ...]) -> tuple[Neighbour, ...]:
        """In a thread: a GPU's driver that hangs keeps that one, and neither others nor the process's end."""
        async with self._one_at_a_time:
            if self._last is not None and not self._last.done():
                raise TimeoutError
            found: Future[tuple[Neighbour, ...]] = Future()
            self._last = found
            found.set_running_or_notify_cancel()  # who gives up waiting does not end it
            Thread(target=_have, args=(found, self._places, devices), name="gpus", daemon=True).start()
            return await asyncio.wrap_future(found)

    def _note(self, error: Exception | None) -> None:
        """Say once that devices are chosen without regard to GPUs."""
        if error is not None and not self._failing:
            _log.info("gpus_of_pods_unknown", error=str(error) or f"no answer in {DEADLINE_S} s")
        self._failing = error is not None


def _have(found: Future[tuple[Neighbour, ...]], places: Places, devices: Iterable[tuple[str, str]]) -> None:
    try:
        found.set_result(places(devices))
    except BaseException as error:
        found.set_exception(error)


def neighbours(config: DevicePluginConfig) -> Neighbours:
    """For exclusive resources: of slots and shares one is as near as another."""
    exclusive = (each.name for each in config.resources if isinstance(each, ExclusiveResource))
    return Neighbours(
        KubeletPodResources(Path(config.pod_resources), timeout_s=DEADLINE_S),
        Gpus().places,
        resources=frozenset(exclusive),
        ours=frozenset(config.resource_names()),
    )
