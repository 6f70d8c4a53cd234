"""Topology: the devices that are nearest to each other and to the pod's GPUs.

Kubelet does not say which pod it is admitting. But it admits one pod after the other, and PodResources shows
at once what a pod has been given of other resources. So the pod is the one that has appeared, or got devices
of other resources, since the last query. There is no guess, and so no preference because of GPUs, when

- no new pod has devices: kubelet takes a container's resources in no order, so that GPUs may come next;
- several have, so that it may be any of them;
- it is the first query: all pods count as old then.

A pod that got devices of other resources alone, just before a pod without any of them, is mistaken for it:
devices near that pod's GPUs are then preferred for no reason, which does no harm.
"""

from __future__ import annotations

import asyncio
import re
import time
from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import nlargest
from itertools import accumulate, combinations, islice, takewhile
from math import comb
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.config.devices import DevicePluginConfig, ExclusiveResource
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.kube.pod_resources import KubeletPodResources, PodResources
from k8s_rdma.linux.gpus import Gpus
from k8s_rdma.process import DetachedCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from k8s_rdma.core.devices.pod_devices import Choice, Neighbour, PodDevices

    Places = Callable[[Iterable[tuple[str, str]]], tuple[Neighbour, ...]]
    Pod = tuple[str, str]
    Device = tuple[str, str]

_log = structlog.get_logger()

ADMISSION_WINDOW_S = 1.0
"""Time for which a pod's devices count as new: kubelet asks anew for each container and resource of a pod."""

MOST_PAIRS = 100_000
"""Most pairs of PFs, in all combinations, that are compared, some 100 ms; beyond it a good one is chosen."""

DEADLINE_S = 0.3
"""Longest wait of a pod's admission for a preference, which is merely better."""

EVERY_S = 10.0
"""Interval of queries without a request, so that the next pod to be admitted is the only new one."""


def neighbours(config: DevicePluginConfig) -> Neighbours:
    """Build the neighbours of exclusive resources: slots and shares are all equally near."""
    exclusive = (resource.name for resource in config.resources if isinstance(resource, ExclusiveResource))
    return Neighbours(
        KubeletPodResources(Path(config.pod_resources), timeout_s=DEADLINE_S),
        Gpus().places,
        resources=frozenset(exclusive),
        ours=frozenset(config.resource_names()),
    )


class Neighbours:
    """Neighbours of the pod that is admitted: kubelet names its devices, and the machine their places.

    places: as `linux.gpus.Gpus.places`, blocking.
    resources: those that take a preference.
    ours: all of this process. To be closed.
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
        self._locate = DetachedCall(places, name="gpus")
        self._resources = resources
        self._admitted_pods = AdmittedPodGuess(ours)
        self._clock = clock
        self._failing = False

    async def complete(self, resource: str, choice: Choice) -> Choice:
        """Return the choice with the pod's neighbours; unchanged when they are not known in time."""
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
        """Follow the pods until cancelled; not at all when no resource takes a preference."""
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
        """Close the connection to kubelet."""
        await self._pods.close()

    def _log_outage(self, error: Exception | None) -> None:
        """Log once that devices are chosen without regard to GPUs."""
        if error is not None and not self._failing:
            _log.info("gpus_of_pods_unknown", error=str(error) or f"no answer in {DEADLINE_S} s")
        self._failing = error is not None


class AdmittedPodGuess:
    """Record of the time at which each pod and each of its devices appeared, by a monotonic clock."""

    def __init__(self, ours: frozenset[str]) -> None:
        """Begin without pods. ours: resources that do not determine where a pod belongs."""
        self._ours = ours
        self._since_s: dict[tuple[Pod, Device | None], float] | None = None

    def update(self, pods: Sequence[PodDevices], now_s: float) -> None:
        """Record the pods' devices. No pods at all are ignored: kubelet has just started."""
        if not pods:
            return
        previous = self._since_s
        self._since_s = {
            allocation: float("-inf") if previous is None else previous.get(allocation, now_s)
            for allocation in self._allocations(pods)
        }

    def admitted(self, pods: Sequence[PodDevices], resource: str, now_s: float) -> tuple[Device, ...]:
        """Return the devices (resource and id) of the pod for which kubelet asks about a resource.

        There are none if the pod is unclear.

        A pod that has some of the resource already counts only if there is no other new one: the request
        would be for another of its containers.
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
        """Yield each pod, and each pod with each of its devices."""
        for pod in pods:
            yield (pod.namespace, pod.name), None
            for device in pod.devices:
                if device.resource not in self._ours:
                    for device_id in device.ids:
                        yield (pod.namespace, pod.name), (device.resource, device_id)


@dataclass(frozen=True, slots=True)
class DevicePlace:
    """The place of a device. pf: its PF; all devices of unknown place share one."""

    pf: str = ""
    numa_node: int | None = None
    pcie_path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCandidate:
    """A device to choose. last: whether it is chosen only when no other is left."""

    id: str
    place: DevicePlace = DevicePlace()
    last: bool = False


def preferred(
    candidates: Sequence[DeviceCandidate],
    must_include: Sequence[str],
    size: int,
    neighbours: Sequence[Neighbour] = (),
) -> tuple[str, ...]:
    """Choose the best `size` candidates, those that must be included among them.

    The best are, each criterion only among those equal by all before it: the fewest with `last`; the fewest
    PFs; the fewest NUMA nodes; PFs below the same PCIe switches (the sum over pairs of PFs of the bridges
    that they share); devices near the neighbours (the sum over devices of the bridges shared with the
    nearest, one more on its NUMA node). Exact where that takes no more than `MOST_PAIRS`, such as 6 of 13
    PFs; the number with `last`, and the number of PFs, always are. Ties go to the first names, with numbers
    in names compared as numbers.
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
    """Return a key that sorts `mlx5_2` before `mlx5_10`."""
    return tuple((text, int(digits or -1)) for text, digits in re.findall(r"(\D*)(\d*)", name))


def _nearest(
    fixed: Sequence[DeviceCandidate],
    free: Sequence[DeviceCandidate],
    count: int,
    neighbours: Sequence[Neighbour],
) -> list[DeviceCandidate]:
    """Choose the best `count` of the free candidates, given the fixed ones."""
    by_place: dict[DevicePlace, list[DeviceCandidate]] = {
        candidate.place: [] for candidate in (*fixed, *free)
    }
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
    found: list[DeviceCandidate] = []
    for pf in sorted(chosen, key=_distance):
        found += by_place[pf.place][: count - len(found)]
    return found


@dataclass(frozen=True, slots=True)
class _Pf:
    """A PF with devices to choose from. nearness: that of each device to the neighbours."""

    place: DevicePlace
    free: int
    nearness: int


def _nearness(place: DevicePlace, neighbours: Iterable[Neighbour]) -> int:
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
    """Count the bridges that two paths share."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _free(pfs: Iterable[_Pf]) -> int:
    return sum(pf.free for pf in pfs)


def _best_pfs(used: Sequence[_Pf], unused: Sequence[_Pf], count: int) -> list[_Pf]:
    """Add to the used PFs the best of the others, as few as have `count` devices free with them."""
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
    """Count the PFs that are needed for so many devices."""
    largest_first = accumulate(sorted((pf.free for pf in pfs), reverse=True), initial=0)
    return next(number for number, free in enumerate(largest_first) if free >= lacking)


def _numa_nodes(pfs: Sequence[_Pf]) -> int:
    return len({pf.place.numa_node for pf in pfs})


def _apart(pfs: Sequence[_Pf]) -> int:
    return -sum(
        _shared(first.place.pcie_path, second.place.pcie_path) for first, second in combinations(pfs, 2)
    )


def _far(count: int) -> Callable[[Sequence[_Pf]], int]:
    """Measure the distance of the nearest `count` devices to the neighbours."""

    def far(pfs: Sequence[_Pf]) -> int:
        nearest_first = (pf for pf in sorted(pfs, key=_distance) for _ in range(min(pf.free, count)))
        return sum(map(_distance, islice(nearest_first, count)))

    return far


def _distance(pf: _Pf) -> int:
    return -pf.nearness


def _good_pfs(used: Sequence[_Pf], unused: Sequence[_Pf], fewest: int, lacking: int) -> list[_Pf]:
    """Choose good PFs if there are too many to compare: near one PF, or on as many NUMA nodes as due."""
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
        """Take the preferred PFs, with the largest of the rest in place of the last ones."""
        count = fewest - large
        return by_preference[:count] + nlargest(large, by_preference[count:], key=lambda pf: pf.free)

    # The more of the largest, the more devices.
    return chosen(bisect_left(range(fewest + 1), lacking, key=lambda large: _free(chosen(large))))
