"""Pods that no node fitted or that their namespace's limit refused, and what would let one of them fit.

kube-scheduler tries a refused pod again when a cluster event could help it; RDMA capacity that comes
free makes none. So somebody must notice it, and touch the node object. Values in, values out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain, islice, zip_longest
from typing import TYPE_CHECKING

from k8s_rdma.core.ids import NodeName, PodUid
from k8s_rdma.core.request import Request

if TYPE_CHECKING:
    from collections.abc import Iterable


_MAX_PODS = 10_000
MAX_INTERFACES = 100_000
"""Of all that wait; each takes 2 KiB at worst, and pods' owners decide how many there are."""

_MAX_AGE_S = 900.0
"""kube-scheduler tries every refused pod again after 5 minutes at most; one that it has not tried for three
times that long is waiting for something else, or was not seen to end."""


_MAX_COMPARED = 64
"""Requests that a change is compared with, those refused last. Any touch makes the scheduler try all pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limited:
    """A pod that the limit of its namespace refused; some of the nodes that it was asked about."""

    namespace: str
    uid: PodUid
    request: Request
    nodes: tuple[NodeName, ...] = ()


@dataclass(frozen=True, slots=True)
class _Pod:
    """limited: whether the limit of its namespace refused it, and not nodes. together: with its gang."""

    namespace: str
    request: Request
    refused_at: float
    limited: bool = False
    together: bool = False


class Waiting:
    """Who waits, and for what.

    Nodes are not kept per pod (a thousand pods may wait for five thousand nodes): a node is of interest
    when it refused anyone who may still be waiting.
    """

    def __init__(self) -> None:
        self._pods: dict[PodUid, _Pod] = {}
        self._limited: dict[str, dict[PodUid, Limited]] = {}
        self._requests: dict[str, dict[Request, int]] = {}
        self._uids: dict[str, dict[PodUid, None]] = {}
        self._interfaces: Counter[str] = Counter()
        self._nodes: dict[NodeName, float] = {}
        self._together: Counter[tuple[str, Request]] = Counter()

    def __len__(self) -> int:
        """How many pods wait."""
        return len(self._pods)

    def refuse(
        self, uid: PodUid, request: Request, nodes: Iterable[NodeName], at: float, namespace: str
    ) -> None:
        """No node fits the pod; these refused it for a reason that may pass."""
        self._add(uid, _Pod(namespace, request, at))
        requests = self._requests.setdefault(namespace, {})
        requests[request] = requests.pop(request, 0) + 1  # the last one refused comes last
        self._trim()
        self._nodes.update(dict.fromkeys(nodes, at))

    def gather(self, uid: PodUid) -> None:
        """The pod waits for room beside others of its gang: any room that comes free may help."""
        pod = self._pods.get(uid)
        if pod is not None and not pod.together:
            self._pods[uid] = replace(pod, together=True)
            self._together[pod.namespace, pod.request] += 1

    def limit(self, pod: Limited, at: float) -> None:
        """The namespace's limit refused the pod; no node was asked."""
        self._add(pod.uid, _Pod(pod.namespace, pod.request, at, limited=True))
        self._limited.setdefault(pod.namespace, {})[pod.uid] = pod
        self._trim()

    def settle(self, uid: PodUid) -> None:
        """The pod fits somewhere, is bound, or is gone."""
        self._remove(uid)
        if not self._pods:
            self._nodes.clear()

    def pods_before(self, at: float) -> list[PodUid]:
        """Those that were refused before that time, and not since."""
        return [uid for uid, pod in self._pods.items() if pod.refused_at < at]

    def expire(self, now: float) -> None:
        """Forget pods and nodes that nobody asked about for long."""
        limit = now - _MAX_AGE_S
        for uid in self.pods_before(limit):
            self.settle(uid)
        for node in [node for node, at in self._nodes.items() if at < limit]:
            del self._nodes[node]

    def nodes(self) -> list[NodeName]:
        """Those that refused someone who may still be waiting."""
        return list(self._nodes)

    def interesting(self, node: NodeName) -> bool:
        """Whether the node refused someone who may still be waiting."""
        return node in self._nodes

    def touched(self, node: NodeName) -> None:
        """The node was touched: whoever it refuses again will say so."""
        self._nodes.pop(node, None)

    def requests(self) -> list[tuple[str, Request]]:
        """What nodes are waited for with, and in which namespaces; those refused last first.

        When it is much not all of it, but of each namespace as many as of others.
        """
        waiting = [
            [(namespace, request) for request in islice(reversed(requests), _MAX_COMPARED)]
            for namespace, requests in reversed(self._requests.items())
        ]
        rounds = zip_longest(*waiting[:_MAX_COMPARED])
        return list(islice(filter(None, chain.from_iterable(rounds)), _MAX_COMPARED))

    def waits(self, namespace: str, request: Request) -> bool:
        """Whether a pod of the namespace waits with that request."""
        return request in self._requests.get(namespace, ())

    def wait_together(self, namespace: str, request: Request) -> bool:
        """Whether a pod of a gang waits with that request."""
        return (namespace, request) in self._together

    def namespaces(self) -> list[str]:
        """Those whose limit refused someone who waits."""
        return list(self._limited)

    def limited(self, namespace: str) -> list[Limited]:
        """Whom the namespace's limit refused, the one that waits for longest first."""
        return list(self._limited.get(namespace, {}).values())

    def _add(self, uid: PodUid, pod: _Pod) -> None:
        self._remove(uid)
        self._pods[uid] = pod
        self._uids.setdefault(pod.namespace, {})[uid] = None
        self._interfaces[pod.namespace] += len(pod.request.interfaces)

    def _trim(self) -> None:
        """Beyond the limits, the pods of who has most interfaces go, the one that waits for longest first."""
        while len(self._pods) > _MAX_PODS or self._interfaces.total() > MAX_INTERFACES:
            greediest = max(self._interfaces, key=self._interfaces.__getitem__)
            self._remove(next(iter(self._uids[greediest])))

    def _remove(self, uid: PodUid) -> None:
        pod = self._pods.pop(uid, None)
        if pod is None:
            return
        namespace = pod.namespace
        del self._uids[namespace][uid]
        self._interfaces[namespace] -= len(pod.request.interfaces)
        if not self._uids[namespace]:
            del self._uids[namespace], self._interfaces[namespace]
        if pod.together:
            self._together[namespace, pod.request] -= 1
            if not self._together[namespace, pod.request]:
                del self._together[namespace, pod.request]
        if pod.limited:
            del self._limited[namespace][uid]
            if not self._limited[namespace]:
                del self._limited[namespace]
            return
        requests = self._requests[namespace]
        requests[pod.request] -= 1
        if not requests[pod.request]:
            del requests[pod.request]
        if not requests:
            del self._requests[namespace]
