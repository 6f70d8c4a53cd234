"""Which pods the API server has bound where: a node's word for that counts for nothing.

A node may report any UID, any namespace, and any amount. What it reports counts as used on that node, whoever
is said to hold it; towards the limit of a namespace counts a pod that the API server says is that namespace's
and bound to that very node, and no more of it than the pod's own object asks for.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from sys import intern
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.ids import NodeName, PodUid
from k8s_rdma.core.request import MAX_INTERFACES
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.annotation import read_pod

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from k8s_rdma.core.placement import PlacedInterface
    from k8s_rdma.kube.api import PodView


class BoundPod(NamedTuple):
    """A pod's namespace, and the reservations that it asks for, Mb/s, largest first: one an interface."""

    namespace: str
    rates_mbps: tuple[int, ...]


_NOBODY: Mapping[PodUid, BoundPod] = MappingProxyType({})


class BoundPods:
    """The unfinished pods that are bound without a promise that counts, by node.

    on_change: told of every pod that is bound, or not any more, and where.
    """

    def __init__(self, on_change: Callable[[NodeName, PodUid], None] = lambda _node, _uid: None) -> None:
        self.on_change = on_change
        self._nodes: dict[NodeName, dict[PodUid, BoundPod]] = {}
        self._places: dict[PodUid, NodeName] = {}

    def see(self, pod: PodView, node: NodeName) -> None:
        """The pod is bound there, not finished, and was promised nothing. What it asks for now counts."""
        if pod.uid in self._places:
            return
        node = NodeName(intern(node))
        self._places[pod.uid] = node
        self._nodes.setdefault(node, {})[pod.uid] = BoundPod(intern(pod.namespace), _asked(pod))
        self.on_change(node, pod.uid)

    def end(self, uid: PodUid) -> None:
        """The pod is finished or gone."""
        node = self._places.pop(uid, None)
        if node is None:
            return
        del self._nodes[node][uid]
        if not self._nodes[node]:
            del self._nodes[node]
        self.on_change(node, uid)

    def end_missing(self, listed: Collection[PodUid]) -> None:
        """Whoever is not among all pods that there are is gone."""
        for uid in [uid for uid in self._places if uid not in listed]:
            self.end(uid)

    def on(self, node: NodeName) -> Mapping[PodUid, BoundPod]:
        """Those on the node."""
        return self._nodes.get(node, _NOBODY)


def _asked(pod: PodView) -> tuple[int, ...]:
    """What its interfaces reserve, and nothing for each device beyond these, of whatever resource.

    What policies allow by now is not asked: the pod may run since before. One that is malformed has nothing,
    as every agent refuses it.
    """
    try:
        interfaces = read_pod(pod.annotations, strict=False).request.interfaces
    except MalformedError:
        interfaces = ()
    rates = sorted((each.min_tx_rate_mbps for each in interfaces), reverse=True)
    devices = min(sum(number for _, number in pod.devices), MAX_INTERFACES)
    return _shared((*rates, *[0] * (devices - len(rates))))


@lru_cache(maxsize=4096)
def _shared(rates: tuple[int, ...]) -> tuple[int, ...]:
    """One object for all pods that ask for the same."""
    return rates


@lru_cache(maxsize=4096)
def no_more_than(
    held: tuple[PlacedInterface, ...], rates_mbps: tuple[int, ...]
) -> tuple[PlacedInterface, ...]:
    """The interfaces, but for those beyond the number of rates, and none with more than its rate.

    rates_mbps: the largest first; the interface with the largest reservation is held against it.
    """
    largest = sorted(range(len(held)), key=lambda at: -held[at].min_tx_rate_mbps)
    most = dict(zip(largest, rates_mbps, strict=False))
    return tuple(
        each if each.min_tx_rate_mbps <= most[at] else replace(each, min_tx_rate_mbps=most[at])
        for at, each in enumerate(held)
        if at in most
    )
