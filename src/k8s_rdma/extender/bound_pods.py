"""Bound pods as they count without a promise: by their requests."""

from __future__ import annotations

from functools import lru_cache
from sys import intern
from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.request import MAX_INTERFACES
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.annotation import read_pod
from k8s_rdma.wire.annotation_values import require_own_network

if TYPE_CHECKING:
    from k8s_rdma.kube.api import PodView


class BoundPod(NamedTuple):
    """A pod's namespace, and the reservations that it asks for, Mb/s, largest first: one an interface."""

    namespace: str
    rates_mbps: tuple[int, ...]

    @classmethod
    def of_view(cls, pod: PodView) -> BoundPod:
        """Return the reservations of the pod's interfaces, and 0 for each device beyond these.

        The present policies do not count, because the pod may be older than they are. A malformed pod has no
        reservations for interfaces, because every agent refuses it.
        """
        try:
            require_own_network(pod.host_network)
            interfaces = read_pod(pod.annotations, strict=False).request.interfaces
        except MalformedError:
            interfaces = ()
        rates = sorted((interface.min_tx_rate_mbps for interface in interfaces), reverse=True)
        devices = min(sum(number for _, number in pod.devices), MAX_INTERFACES)
        return cls(intern(pod.namespace), _shared((*rates, *[0] * (devices - len(rates)))))


@lru_cache(maxsize=4096)
def _shared(rates: tuple[int, ...]) -> tuple[int, ...]:
    """Share one object among all pods with the same rates."""
    return rates
