"""Which pod kubelet is admitting: it does not say when it asks a device plugin.

But it admits one pod after the other, and tells by PodResources at once what a pod has been given of other
resources. So the pod is the one that has come, or got devices of others, since the last look. Nothing is
inferred, and so no preference given for the sake of GPUs, when

- none has devices: kubelet goes through a container's resources in no order, so that GPUs may be next; or
- several have, so that it may be any of them; or
- it is the first look: then what is there is taken for old.

A pod that got devices of others alone, just before a pod that has none of them, is taken for it: devices near
that pod's GPUs are then preferred for no reason, which does no harm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from k8s_rdma.core.devices.pod_devices import PodDevices

    Pod = tuple[str, str]
    Device = tuple[str, str]

NEW_S = 1.0
"""For so long what a pod has got is new: kubelet asks for each container and resource of a pod anew."""


class Newcomers:
    """Remembers since when each pod is there, and has what. now: seconds of a monotonic clock."""

    def __init__(self, ours: frozenset[str]) -> None:
        """ours: resources that say nothing about where a pod should be."""
        self._ours = ours
        self._since: dict[tuple[Pod, Device | None], float] | None = None

    def look(self, pods: Sequence[PodDevices], now: float) -> None:
        """Remember what pods have. No pods at all say nothing: kubelet has just started."""
        if not pods:
            return
        known = self._since
        self._since = {
            each: float("-inf") if known is None else known.get(each, now) for each in self._held(pods)
        }

    def admitted(self, pods: Sequence[PodDevices], resource: str, now: float) -> tuple[Device, ...]:
        """Devices (resource and id) of the pod for which kubelet asks about a resource; none if unclear.

        One that has some of the resource already is meant only if there is no other new one: it would be for
        another of its containers.
        """
        if not pods:
            return ()
        self.look(pods, now)
        new: dict[Pod, list[Device]] = {}
        for (pod, device), since in (self._since or {}).items():
            if now - since <= NEW_S:
                new.setdefault(pod, []).extend([device] if device else [])
        served = {(each.namespace, each.name) for each in pods if each.of(resource)}
        candidates = [pod for pod in new if pod not in served] or list(new)
        having = [new[pod] for pod in candidates if new[pod]]
        return tuple(having[0]) if len(having) == 1 else ()

    def _held(self, pods: Sequence[PodDevices]) -> Iterator[tuple[Pod, Device | None]]:
        """Pods, and with each of their devices."""
        for pod in pods:
            yield (pod.namespace, pod.name), None
            for held in pod.devices:
                if held.resource not in self._ours:
                    for each in held.ids:
                        yield (pod.namespace, pod.name), (held.resource, each)
