"""Pods as the pod watch shows them: unbound ones that ask for interfaces, bound ones, occupants, signatures.

A bind is made of one version of its pod, so that any later write to the pod refuses it. Of occupants, the
bound pods that may hold interfaces and could make room for others, only what is needed to choose among them
is kept: there are a hundred thousand in a large cluster. Signatures show which key signed each bound pod's
placement: a key that a pod still depends on must not be removed.

A node may report any UID and any namespace. What it reports counts as used on that node, whoever is said to
hold it; towards the limit of a namespace counts a pod that the API server says is that namespace's and
bound to that very node.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from sys import intern
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from k8s_rdma.core.ids import NodeName, PodUid
from k8s_rdma.core.quantities import Demand
from k8s_rdma.core.request import MAX_INTERFACES
from k8s_rdma.errors import MalformedError
from k8s_rdma.extender.metrics import samples
from k8s_rdma.kube.api import PodView
from k8s_rdma.wire.annotation import ANNOTATION, read_pod
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from k8s_rdma.core.placement import PlacedInterface
    from k8s_rdma.extender.metrics import Reading
    from k8s_rdma.wire.placement_keys import KeySource

T = TypeVar("T")

_NO_KEY = ""
_NO_PODS: Mapping[PodUid, Any] = MappingProxyType({})
_MAX_ENDED = 10_000


class PodIndex(ABC):
    """An index of the pod informer: its pods by UID, which leave when they are gone."""

    __slots__ = ()

    @abstractmethod
    def uids(self) -> Iterable[PodUid]:
        """The pods of this index."""

    @abstractmethod
    def on_delete(self, uid: PodUid) -> None:
        """The pod is finished or gone, or is of no interest to this index any more."""

    def retain(self, listed: Collection[PodUid]) -> None:
        """Delete the pods that a list of all pods does not hold."""
        for uid in [uid for uid in self.uids() if uid not in listed]:
            self.on_delete(uid)


class Signatures(PodIndex):
    """The keys' ids by pod; of bound, unfinished pods with a placement, where placements are signed."""

    def __init__(self, keys: KeySource) -> None:
        self._keys = keys
        self._by_uid: dict[PodUid, str] = {}

    def contains(self, uid: PodUid) -> bool:
        """Whether it is known which key signed the pod's, if any."""
        return uid in self._by_uid

    def on_bound(self, uid: PodUid, key_id: str | None) -> None:
        """The pod is bound; key_id: None where no key accepts its placement."""
        self._by_uid[uid] = _NO_KEY if key_id is None else key_id

    def on_delete(self, uid: PodUid) -> None:
        """The pod is finished or gone."""
        self._by_uid.pop(uid, None)

    def uids(self) -> Iterable[PodUid]:
        """The pods of this index."""
        return self._by_uid

    def readings(self) -> dict[str, Reading]:
        """For metrics."""
        return {
            "pods_signed": (
                "Bound pods by the key that signed their placement, and what that key is for now.",
                "gauge",
                lambda: samples(("key", "algorithm", "use"), self.counts()),
            ),
            "placement_keys_not_reloaded": (
                "Whether the files of keys hold what cannot be used; then those of before are in force.",
                "gauge",
                lambda: bool(self._keys.failure),
            ),
        }

    def counts(self) -> dict[tuple[str, ...], float]:
        """Pods by key, algorithm and use: of each key in force, and of removed ones that pods depend on."""
        keys = self._keys()
        if keys is None:
            return {}
        pods = Counter(self._by_uid.values())
        signer = None if keys.signer is None else keys.signer.verifier.id
        counted: dict[tuple[str, ...], float] = {
            (key.id, key.algorithm, "signs" if key.id == signer else "verifies"): pods.pop(key.id, 0)
            for key in keys.accepted
        }
        none = pods.pop(_NO_KEY, 0)
        counted |= {(key_id, "", "removed"): number for key_id, number in pods.items()}
        return counted | ({("", "", "none"): none} if none else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupant:
    """A pod on a node.

    started: `status.startTime` as the API writes it, so that it sorts as text; empty before it runs.
    demand: as in `PodView`. labels: what disruption budgets select it by.
    """

    uid: PodUid
    namespace: str
    name: str
    priority: int
    started: str = ""
    demand: Demand | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@lru_cache(maxsize=16_384)
def _shared_labels(labels: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    """One object for all pods of an owner, which have the same."""
    return dict(labels)


class _PodsByNode(PodIndex, Generic[T]):
    """Pods by the node that they are bound to."""

    def __init__(self) -> None:
        self._nodes: dict[NodeName, dict[PodUid, T]] = {}
        self._places: dict[PodUid, NodeName] = {}

    def uids(self) -> Iterable[PodUid]:
        """The pods on all nodes."""
        return self._places

    def pods_on(self, node: NodeName) -> Mapping[PodUid, T]:
        """The pods on the node."""
        return self._nodes.get(node, _NO_PODS)

    def _put(self, uid: PodUid, node: NodeName, pod: T) -> None:
        self._nodes.setdefault(node, {})[uid] = pod
        self._places[uid] = node

    def _pop(self, uid: PodUid) -> NodeName | None:
        """Delete the pod; answers its node, None where it is not in this index."""
        node = self._places.pop(uid, None)
        if node is not None:
            del self._nodes[node][uid]
            if not self._nodes[node]:
                del self._nodes[node]
        return node


class Occupants(_PodsByNode[Occupant]):
    """The occupants by node, and who of them is on the way out."""

    def __init__(self) -> None:
        super().__init__()
        self._terminating: dict[NodeName, set[PodUid]] = {}
        self._ended: OrderedDict[PodUid, NodeName] = OrderedDict()

    def on_update(self, pod: PodView, node: NodeName) -> None:
        """The pod is bound there, and not finished."""
        if ANNOTATION not in pod.annotations and PLACEMENT_ANNOTATION not in pod.annotations:
            return
        node = NodeName(intern(node))
        occupant = Occupant(
            uid=pod.uid,
            namespace=intern(pod.namespace),
            name=pod.name,
            priority=pod.priority,
            started=pod.started,
            demand=pod.demand,
            labels=_shared_labels(tuple(pod.labels.items())),
        )
        self._put(pod.uid, node, occupant)
        if pod.terminating:
            self._terminating.setdefault(node, set()).add(pod.uid)

    def on_delete(self, uid: PodUid) -> None:
        """The pod is finished or gone; its node may hold its interfaces for a while yet."""
        node = self._pop(uid)
        if node is None:
            return
        self._terminating.setdefault(node, set()).add(uid)
        self._ended[uid] = node
        if len(self._ended) > _MAX_ENDED:
            self._forget(*self._ended.popitem(last=False))

    def terminating(self, node: NodeName) -> Collection[PodUid]:
        """Those who give back by themselves what they hold there: terminating, finished or gone."""
        return self._terminating.get(node, ())

    def _forget(self, uid: PodUid, node: NodeName) -> None:
        terminating = self._terminating[node]
        terminating.discard(uid)
        if not terminating:
            del self._terminating[node]


class BoundPod(NamedTuple):
    """A pod's namespace, and the reservations that it asks for, Mb/s, largest first: one an interface."""

    namespace: str
    rates_mbps: tuple[int, ...]


class BoundPods(_PodsByNode[BoundPod]):
    """The unfinished pods that are bound without a promise that counts, by node.

    on_change: told of every pod that is bound, or not any more, and where.
    """

    def __init__(self, on_change: Callable[[NodeName, PodUid], None] = lambda _node, _uid: None) -> None:
        super().__init__()
        self.on_change = on_change

    def on_update(self, pod: PodView, node: NodeName) -> None:
        """The pod is bound there, not finished, and was promised nothing. What it asks for now counts."""
        if pod.uid in self._places:
            return
        node = NodeName(intern(node))
        self._put(pod.uid, node, BoundPod(intern(pod.namespace), _requested_rates(pod)))
        self.on_change(node, pod.uid)

    def on_delete(self, uid: PodUid) -> None:
        """The pod is finished or gone."""
        node = self._pop(uid)
        if node is not None:
            self.on_change(node, uid)


def _requested_rates(pod: PodView) -> tuple[int, ...]:
    """What its interfaces reserve, and nothing for each device beyond these, of whatever resource.

    What policies allow by now is not asked: the pod may run since before. One that is malformed has nothing,
    as every agent refuses it.
    """
    try:
        interfaces = read_pod(pod.annotations, strict=False).request.interfaces
    except MalformedError:
        interfaces = ()
    rates = sorted((interface.min_tx_rate_mbps for interface in interfaces), reverse=True)
    devices = min(sum(number for _, number in pod.devices), MAX_INTERFACES)
    return _shared((*rates, *[0] * (devices - len(rates))))


@lru_cache(maxsize=4096)
def _shared(rates: tuple[int, ...]) -> tuple[int, ...]:
    """One object for all pods that ask for the same."""
    return rates


@lru_cache(maxsize=4096)
def capped_to_request(
    interfaces: tuple[PlacedInterface, ...], rates_mbps: tuple[int, ...]
) -> tuple[PlacedInterface, ...]:
    """The interfaces, but for those beyond the number of rates, and none with more than its rate.

    rates_mbps: the largest first; the interface with the largest reservation is held against it.
    """
    largest = sorted(range(len(interfaces)), key=lambda index: -interfaces[index].min_tx_rate_mbps)
    most = dict(zip(largest, rates_mbps, strict=False))
    return tuple(
        interface if interface.min_tx_rate_mbps <= most[at] else replace(interface, min_tx_rate_mbps=most[at])
        for at, interface in enumerate(interfaces)
        if at in most
    )


MAX_CHARACTERS = 16 * 1024**2
"""Of all annotations that are kept: pods' owners decide how long they are. Of a pod beyond it the version is
kept, and `latest` does not know it."""

_NOT_KEPT: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class _UnboundPod:
    pod: PodView
    characters: int


class UnboundPods(PodIndex):
    """The pods by UID."""

    def __init__(self, max_characters: int = MAX_CHARACTERS) -> None:
        self._max_characters = max_characters
        self._pods: dict[PodUid, _UnboundPod] = {}
        self._characters = 0

    def __len__(self) -> int:
        """How many there are."""
        return len(self._pods)

    def on_update(self, pod: PodView) -> None:
        """The pod as the API server just told it."""
        self.on_delete(pod.uid)
        if pod.node is not None or pod.finished or not pod.annotations.get(ANNOTATION):
            return
        characters = sum(len(key) + len(value) for key, value in pod.annotations.items())
        if self._characters + characters > self._max_characters:
            pod, characters = replace(pod, annotations=_NOT_KEPT), 0
        self._pods[pod.uid] = _UnboundPod(pod, characters)
        self._characters += characters

    def on_delete(self, uid: PodUid) -> None:
        """The pod is bound, finished or gone."""
        unbound = self._pods.pop(uid, None)
        if unbound is not None:
            self._characters -= unbound.characters

    def uids(self) -> Iterable[PodUid]:
        """The pods of this index."""
        return self._pods

    def latest(self, uid: PodUid) -> PodView | None:
        """The pod as it was last seen; None when that is not known."""
        unbound = self._pods.get(uid)
        return unbound.pod if unbound and unbound.pod.annotations is not _NOT_KEPT else None

    def all(self) -> list[PodView]:
        """All of them; the annotations may be missing."""
        return [pod.pod for pod in self._pods.values()]
