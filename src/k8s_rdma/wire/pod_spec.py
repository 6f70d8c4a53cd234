"""Pod specifications (`core/v1` PodSpec): the resources that pods request, in quantities, and their PodGroup.

Sources: `PodSchedulingGroup`, k8s.io/api/core/v1 (Kubernetes 1.36); `PodGroupLabel`,
sigs.k8s.io/scheduler-plugins/apis/scheduling.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from k8s_rdma.core.types import Gang, GangApi

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from k8s_rdma.core.preemption import ResourceDemand
    from k8s_rdma.wire.objects.pod import ContainerDemand, PodSpecDemand, SchedulingGroup

_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+))(?P<suffix>[numkMGTPE]|[KMGTPE]i|[eE][+-]?\d{1,3})?",
    re.ASCII,
)
_BINARY = {f"{letter}i": Fraction(1024) ** power for power, letter in enumerate("KMGTPE", start=1)}
_DECIMAL = {letter: Fraction(1000) ** power for power, letter in enumerate("num", start=-3)} | {
    letter: Fraction(1000) ** power for power, letter in enumerate("kMGTPE", start=1)
}
_SUFFIXES = {"": Fraction(1), **_BINARY, **_DECIMAL}

LABEL = "scheduling.x-k8s.io/pod-group"

_ZERO = Fraction(0)
_HARMLESS_VOLUMES = frozenset(
    {"name", "configMap", "secret", "projected", "emptyDir", "downwardAPI", "hostPath", "image"}
)
"""Volumes that no node has a limited number of, and that pods share."""

_MAX_PARTS = 256
"""Containers and amounts of a pod that are added up, at 10 us each; its owner may write 50,000."""
_MAX_DEVICES = 64
"""Extended resources of a pod, which are kept with each request for as long as it waits."""
_SHARED_PARTS = 64
"""The limit for amounts that caches keep after their pods' end."""

_Amounts: TypeAlias = tuple[tuple[str, str], ...]


def quantity(text: str) -> Fraction:
    """Return a Kubernetes quantity (`500m`, `1Gi`, `2e3`); ValueError if it is no quantity.

    Source: `k8s.io/apimachinery/pkg/api/resource`.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        msg = f"{text!r} is not a quantity"
        raise ValueError(msg)
    suffix = match["suffix"] or ""
    factor = _SUFFIXES.get(suffix)
    if factor is None:  # an exponent
        factor = Fraction(10) ** int(suffix[1:])
    return Fraction(match["number"]) * factor


def gang_of(namespace: str, group: SchedulingGroup | None, labels: Mapping[str, str]) -> Gang | None:
    """Return the gang of a pod, if it belongs to one; the field takes precedence over the label."""
    if group is not None and group.pod_group_name:
        return Gang(api=GangApi.KUBERNETES, namespace=namespace, name=group.pod_group_name)
    if name := labels.get(LABEL):
        return Gang(api=GangApi.COSCHEDULING, namespace=namespace, name=name)
    return None


def demand_of(spec: PodSpecDemand) -> ResourceDemand | None:
    """Return the sum of the pod's resource requests, unless it may take other resources of its node.

    Other resources are a host port, a volume that only one pod can have or that a node has a limited number
    of, a claimed device, resources of the pod as a whole, affinity to other pods, or more amounts than are
    added up. Source: `PodRequests`, `k8s.io/component-helpers/resource`.
    """
    if _uses_other_resources(spec) or _have_ports(spec.containers) or _have_ports(spec.init_containers):
        return None
    try:
        return _requested(spec)
    except ValueError:
        return None


def requested(spec: PodSpecDemand, resource: str) -> Fraction:
    """Return the amount of a resource that the scheduler counts for the pod.

    ValueError for a bad quantity, and for more amounts than are added up.
    """
    return dict(_requested(spec)).get(resource, _ZERO)


def devices_of(spec: PodSpecDemand) -> tuple[tuple[str, int], ...]:
    """Return the devices of extended resources that its containers have while it runs, by name.

    ValueError for a malformed quantity, and for more resources than any node has. kubelet gives a container
    the devices in its limits, and passes an init container's devices on to the containers after it. Its
    PodResources API lists only those containers and restartable init containers.
    Source: `pkg/kubelet/cm/devicemanager/manager.go`, `pkg/kubelet/apis/podresources/server_v1.go`.
    """
    running = spec.containers or ()
    if spec.init_containers:
        running = (*(init for init in spec.init_containers if init.restart_policy == "Always"), *running)
    having = [found for container in running if (found := container.resources) and found.limits]
    if not having:
        return ()
    amounts = tuple([_amounts(resources.limits) for resources in having])
    shares = len(amounts) + sum(map(len, amounts)) <= _SHARED_PARTS
    return _devices(amounts) if shares else _devices.__wrapped__(amounts)


@lru_cache(maxsize=4096)
def _devices(limits: tuple[_Amounts, ...]) -> tuple[tuple[str, int], ...]:
    """Share one object among all pods of an owner."""
    together: dict[str, Fraction | int] = {}
    for name, text in chain.from_iterable(limits):
        if "/" in name:  # devices are whole numbers, which cost a tenth
            amount = int(text) if text.isascii() and text.isdigit() else quantity(text)
            together[name] = together.get(name, 0) + amount
    found = tuple((name, int(amount)) for name, amount in sorted(together.items()) if amount >= 1)
    if len(found) > _MAX_DEVICES:
        msg = f"{len(found)} extended resources are more than {_MAX_DEVICES}"
        raise ValueError(msg)
    return found


def _requested(spec: PodSpecDemand) -> ResourceDemand:
    inits, overhead = spec.init_containers, _amounts(spec.overhead)
    init_requests = (
        tuple([(init.restart_policy == "Always", _requests(init)) for init in inits]) if inits else ()
    )
    requests = tuple([_requests(container) for container in spec.containers or ()])
    parts = 1 + len(overhead) + len(requests) + len(init_requests)
    for amounts in requests:
        parts += len(amounts)
    for _, amounts in init_requests:
        parts += len(amounts)
    if parts > _MAX_PARTS:
        msg = f"{parts} containers and amounts of resources are more than {_MAX_PARTS}"
        raise ValueError(msg)
    add_up = _sum if parts <= _SHARED_PARTS else _sum.__wrapped__
    return add_up(requests, init_requests, overhead)


def _uses_other_resources(spec: PodSpecDemand) -> bool:
    if spec.resources or spec.resource_claims or spec.affinity:
        return True
    return not all(volume.keys() <= _HARMLESS_VOLUMES for volume in spec.volumes or ())


def _have_ports(containers: Iterable[ContainerDemand] | None) -> bool:
    for container in containers or ():
        if container.ports and any(port.host_port for port in container.ports):
            return True
    return False


@lru_cache(maxsize=4096)
def _sum(
    containers: tuple[_Amounts, ...], inits: tuple[tuple[bool, _Amounts], ...], overhead: _Amounts
) -> ResourceDemand:
    """Sum the containers that run together, or take the largest init container; and the overhead.

    Pods of one owner ask for the same, and share one object.
    """
    together: dict[str, Fraction] = {}
    started: dict[str, Fraction] = {}
    for goes_on, container in inits:
        if goes_on:
            _add(together, container)
            _raise(started, together)
        else:
            alone = dict(together)
            _add(alone, container)
            _raise(started, alone)
    for container in containers:
        _add(together, container)
    _raise(together, started)
    _add(together, overhead)
    return tuple(sorted(together.items()))


def _requests(container: ContainerDemand) -> _Amounts:
    return _amounts(container.resources.requests) if container.resources else ()


def _amounts(quantities: dict[str, str] | None) -> _Amounts:
    return tuple(quantities.items()) if quantities else ()


def _add(total: dict[str, Fraction], amounts: _Amounts) -> None:
    for name, text in amounts:
        total[name] = total.get(name, _ZERO) + quantity(text)


def _raise(total: dict[str, Fraction], least: Mapping[str, Fraction]) -> None:
    for name, amount in least.items():
        total[name] = max(total.get(name, _ZERO), amount)
