"""Topology: the devices that are nearest to each other and to the GPUs that the pod was given.

Kubelet does not say which pod it is admitting. But it admits one pod after the other, and PodResources
shows at once what a pod has been given of other resources. So the pod is the one that has come, or got
devices of others, since the last look. Nothing is inferred, and so no preference given for the sake of
GPUs, when

- none has devices: kubelet goes through a container's resources in no order, so that GPUs may be next; or -
several have, so that it may be any of them; or - it is the first look: then what is there is taken for old.

A pod that got devices of others alone, just before a pod that has none of them, is taken for it: devices
near that pod's GPUs are then preferred for no reason, which does no harm.
"""

from __future__ import annotations

import asyncio
import re
import time
from bisect import bisect_left
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import nlargest
from itertools import accumulate, combinations, islice, takewhile
from math import comb
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.config.devices import ExclusiveResource
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.kube.pod_resources import KubeletPodResources
from k8s_rdma.linux.gpus import Gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from k8s_rdma.config.devices import DevicePluginConfig
    from k8s_rdma.core.devices.device_plugin_api import Choice, Neighbour
    from k8s_rdma.core.devices.pod_devices import PodDevices
    from k8s_rdma.kube.pod_resources import PodResources

    Places = Callable[[Iterable[tuple[str, str]]], tuple[Neighbour, ...]]
    Pod = tuple[str, str]
    Device = tuple[str, str]

_log = structlog.get_logger()

ADMISSION_WINDOW_S = 1.0
"""For so long what a pod has got is new: kubelet asks for each container and resource of a pod anew."""

MOST_PAIRS = 100_000
"""Pairs of PFs in all combinations that are compared, some 100 ms; of more, one that is good is taken."""

DEADLINE_S = 0.3
"""A pod's admission waits no longer for a preference that is merely better."""

EVERY_S = 10.0
"""Pods are also looked at when nobody asks, so that the next one that is asked for is the only new one."""


def neighbours(config: DevicePluginConfig) -> Neighbours:
    """For exclusive resources: of slots and shares one is as near as another."""
    exclusive = (resource.name for resource in config.resources if isinstance(resource, ExclusiveResource))
    return Neighbours(
        KubeletPodResources(Path(config.pod_resources), timeout_s=DEADLINE_S),
        Gpus().places,
        resources=frozenset(exclusive),
        ours=frozenset(config.resource_names()),
    )


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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pods = pods
        self._places = places
        self._resources = resources
        self._admitted_pods = AdmittedPodGuess(ours)
        self._lock = asyncio.Lock()
        self._last: Future[tuple[Neighbour, ...]] | None = None
        self._clock = clock
        self._failing = False

    async def complete(self, resource: str, choice: Choice) -> Choice:
        """The question with what the pod is to be beside; as it was when that cannot be told in time."""
        if resource not in self._resources:
            return choice
        try:
            async with asyncio.timeout(DEADLINE_S):
                devices = self._admitted_pods.admitted(await self._pods.all(), resource, self._clock())
                neighbours = await self._locate(devices) if devices else ()
        except (K8sRdmaError, TimeoutError) as error:
            self._log_outage(error)
            return choice
        self._log_outage(None)
        return replace(choice, neighbours=neighbours)

    async def follow(self) -> None:
        """Look at the pods for ever, or not at all, where nobody asks."""
        while self._resources:
            try:
                async with asyncio.timeout(EVERY_S):
                    self._admitted_pods.update(await self._pods.all(), self._clock())
            except (K8sRdmaError, TimeoutError) as error:
                self._log_outage(error)
            else:
                self._log_outage(None)
            await asyncio.sleep(EVERY_S)

    async def close(self) -> None:
        """End the connection to kubelet."""
        await self._pods.close()

    async def _locate(self, devices: tuple[tuple[str, str], ...]) -> tuple[Neighbour, ...]:
        """In a thread: a GPU's driver that hangs keeps that one, and neither others nor the process's end."""
        async with self._lock:
            if self._last is not None and not self._last.done():
                raise TimeoutError
            found: Future[tuple[Neighbour, ...]] = Future()
            self._last = found
            found.set_running_or_notify_cancel()  # who gives up waiting does not end it
            Thread(target=_resolve, args=(found, self._places, devices), name="gpus", daemon=True).start()
            return await asyncio.wrap_future(found)

    def _log_outage(self, error: Exception | None) -> None:
        """Say once that devices are chosen without regard to GPUs."""
        if error is not None and not self._failing:
            _log.info("gpus_of_pods_unknown", error=str(error) or f"no answer in {DEADLINE_S} s")
        self._failing = error is not None


def _resolve(
    found: Future[tuple[Neighbour, ...]], places: Places, devices: Iterable[tuple[str, str]]
) -> None:
    try:
        found.set_result(places(devices))
    except BaseException as error:
        found.set_exception(error)


class AdmittedPodGuess:
    """Remembers since when each pod is there, and has what. now: seconds of a monotonic clock."""

    def __init__(self, ours: frozenset[str]) -> None:
        """ours: resources that say nothing about where a pod should be."""
        self._ours = ours
        self._since_s: dict[tuple[Pod, Device | None], float] | None = None

    def update(self, pods: Sequence[PodDevices], now_s: float) -> None:
        """Remember what pods have. No pods at all say nothing: kubelet has just started."""
        if not pods:
            return
        previous = self._since_s
        self._since_s = {
            allocation: float("-inf") if previous is None else previous.get(allocation, now_s)
            for allocation in self._allocations(pods)
        }

    def admitted(self, pods: Sequence[PodDevices], resource: str, now_s: float) -> tuple[Device, ...]:
        """Devices (resource and id) of the pod for which kubelet asks about a resource; none if unclear.

        One that has some of the resource already is meant only if there is no other new one: it would be for
        another of its containers.
        """
        if not pods:
            return ()
        self.update(pods, now_s)
        new: dict[Pod, list[Device]] = {}
        for (pod, device), since_s in (self._since_s or {}).items():
            if now_s - since_s <= ADMISSION_WINDOW_S:
                new.setdefault(pod, []).extend([device] if device else [])
        served = {(pod.namespace, pod.name) for pod in pods if pod.device_ids(resource)}
        candidates = [pod for pod in new if pod not in served] or list(new)
        having = [new[pod] for pod in candidates if new[pod]]
        return tuple(having[0]) if len(having) == 1 else ()

    def _allocations(self, pods: Sequence[PodDevices]) -> Iterator[tuple[Pod, Device | None]]:
        """Pods, and with each of their devices."""
        for pod in pods:
            yield (pod.namespace, pod.name), None
            for device in pod.devices:
                if device.resource not in self._ours:
                    for device_id in device.ids:
                        yield (pod.namespace, pod.name), (device.resource, device_id)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a device is. pf: of which it is a function; all of unknown place are in one."""

    pf: str = ""
    numa_node: int | None = None
    pcie_path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A device. last: whether it is to be taken only when no other is left."""

    id: str
    place: Place = Place()
    last: bool = False


def preferred(
    candidates: Sequence[Candidate],
    must_include: Sequence[str],
    size: int,
    neighbours: Sequence[Neighbour] = (),
) -> tuple[str, ...]:
    """The best `size` of them, with those that must be among them.

    Best is, each only among those that are equal by all before it: the fewest that are to be taken last; the
    fewest PFs; the fewest NUMA nodes; PFs below the same PCIe switches (the sum over pairs of them of how
    many bridges they share); devices near what they are to be beside (the sum over devices of how many
    bridges each shares with the nearest, one more on its NUMA node). Exact where that takes no more than
    `MOST_PAIRS`, such as 6 of 13 PFs; what is to be taken last, and the number of PFs, are always
    so. Of equals those with the first names, numbers in names being counted as numbers.
    """
    in_order = sorted(
        {candidate.id: candidate for candidate in candidates}.values(),
        key=lambda candidate: natural(candidate.id),
    )
    required = set(must_include)
    fixed = [candidate for candidate in in_order if candidate.id in required]
    optional = [candidate for candidate in in_order if candidate.id not in required]
    first = [candidate for candidate in optional if not candidate.last]
    if len(fixed) + len(first) < size:
        fixed, first = fixed + first, [candidate for candidate in optional if candidate.last]
    chosen = fixed + _nearest(fixed, first, size - len(fixed), neighbours)
    return tuple(candidate.id for candidate in sorted(chosen, key=lambda candidate: natural(candidate.id)))


def natural(name: str) -> tuple[tuple[str, int], ...]:
    """A key that sorts `mlx5_2` before `mlx5_10`."""
    return tuple((text, int(digits or -1)) for text, digits in re.findall(r"(\D*)(\d*)", name))


def _nearest(
    fixed: Sequence[Candidate], free: Sequence[Candidate], count: int, neighbours: Sequence[Neighbour]
) -> list[Candidate]:
    """The best `count` of the free ones, beside those that are fixed."""
    by_place: dict[Place, list[Candidate]] = {candidate.place: [] for candidate in (*fixed, *free)}
    for candidate in free:
        by_place[candidate.place].append(candidate)
    pfs = [
        _Pf(place=place, free=len(members), nearness=_nearness(place, neighbours))
        for place, members in by_place.items()
    ]
    used = frozenset(candidate.place for candidate in fixed)
    chosen = _best_pfs(
        [pf for pf in pfs if pf.place in used], [pf for pf in pfs if pf.place not in used], count
    )
    found: list[Candidate] = []
    for pf in sorted(chosen, key=_distance):
        found += by_place[pf.place][: count - len(found)]
    return found


@dataclass(frozen=True, slots=True)
class _Pf:
    """A PF with devices to choose from. nearness: of each of them to what they are to be beside."""

    place: Place
    free: int
    nearness: int


def _nearness(place: Place, neighbours: Iterable[Neighbour]) -> int:
    return max(
        (
            _shared(place.pcie_path, neighbour.pcie_path)
            + (place.numa_node is not None and place.numa_node == neighbour.numa_node)
            for neighbour in neighbours
        ),
        default=0,
    )


@lru_cache(maxsize=4096)
def _shared(first: tuple[str, ...], second: tuple[str, ...]) -> int:
    """Number of bridges that two paths have in common."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _free(pfs: Iterable[_Pf]) -> int:
    return sum(pf.free for pf in pfs)


def _best_pfs(used: Sequence[_Pf], unused: Sequence[_Pf], count: int) -> list[_Pf]:
    """Those that are used anyway, and the best of the others, as few as have `count` free with these."""
    lacking = count - _free(used)
    fewest = _fewest(unused, lacking)
    if fewest in (0, len(unused)):
        return [*used, *unused[:fewest]]
    if comb(len(unused), fewest) * comb(len(used) + fewest, 2) > MOST_PAIRS:
        return [*used, *_good_pfs(used, unused, fewest, lacking)]
    best = [[*used, *pfs] for pfs in combinations(unused, fewest) if _free(pfs) >= lacking]
    for measure in (_numa_nodes, _apart, _far(count)):
        least = min(map(measure, best))
        best = [pfs for pfs in best if measure(pfs) == least]
    return best[0]


def _fewest(pfs: Sequence[_Pf], lacking: int) -> int:
    """Number of them that must be used to get so many devices."""
    largest_first = accumulate(sorted((pf.free for pf in pfs), reverse=True), initial=0)
    return next(number for number, free in enumerate(largest_first) if free >= lacking)


def _numa_nodes(pfs: Sequence[_Pf]) -> int:
    return len({pf.place.numa_node for pf in pfs})


def _apart(pfs: Sequence[_Pf]) -> int:
    return -sum(
        _shared(first.place.pcie_path, second.place.pcie_path) for first, second in combinations(pfs, 2)
    )


def _far(count: int) -> Callable[[Sequence[_Pf]], int]:
    """How far `count` devices are from what they are to be beside, the nearest being taken."""

    def far(pfs: Sequence[_Pf]) -> int:
        nearest_first = (pf for pf in sorted(pfs, key=_distance) for _ in range(min(pf.free, count)))
        return sum(map(_distance, islice(nearest_first, count)))

    return far


def _distance(pf: _Pf) -> int:
    return -pf.nearness


def _good_pfs(used: Sequence[_Pf], unused: Sequence[_Pf], fewest: int, lacking: int) -> list[_Pf]:
    """Good ones, where there are too many to compare them all: beside one PF, or as many NUMA nodes need."""
    anchor = used[0] if used else max(unused, key=lambda pf: (pf.nearness, pf.free))
    numa_nodes = {pf.place.numa_node for pf in used or [anchor]}
    by_preference = sorted(
        unused,
        key=lambda pf: (
            pf.place.numa_node not in numa_nodes,
            -_shared(anchor.place.pcie_path, pf.place.pcie_path),
            -pf.nearness,
            -pf.free,
        ),
    )

    def chosen(large: int) -> list[_Pf]:
        """The most liked but some, and the largest of the rest in their place."""
        count = fewest - large
        return by_preference[:count] + nlargest(large, by_preference[count:], key=lambda pf: pf.free)

    # The more of the largest, the more devices.
    return chosen(bisect_left(range(fewest + 1), lacking, key=lambda large: _free(chosen(large))))
