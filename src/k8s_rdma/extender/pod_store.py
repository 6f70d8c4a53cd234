"""Pods as the pod watch shows them: one record for each, with indexes by node and by gang.

Only pods that this extender deals with have a record, and a record keeps only the facts that decisions need,
because a large cluster has a hundred thousand pods. A bind is made of one version of its pod, so that any
later write to the pod refuses it. For this the store keeps that version of an unbound pod. For a bound pod
the store keeps the facts that the choice of victims needs. It also keeps the key that signed the placement,
because a key must not be removed while a pod depends on it.

A node may report any UID and any namespace. The reported interfaces count as used on that node, regardless of
the reported holder. A pod counts towards the limit of a namespace only if the API server has it in that
namespace and bound to that node.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

import msgspec

from k8s_rdma.core.ledger import Pod
from k8s_rdma.core.pod_table import PodLimits, PodTable
from k8s_rdma.core.preemption import Occupant, ResourceDemand
from k8s_rdma.core.types import Gang, NodeName, PodUid
from k8s_rdma.extender.bound_pods import BoundPod
from k8s_rdma.extender.metrics import Reading, samples
from k8s_rdma.kube.api import PodView
from k8s_rdma.wire.annotation import (
    ANNOTATION,
    ANNOTATION_ALIAS,
    requests_interfaces,
)
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION
from k8s_rdma.wire.placement_keys import UNSIGNED, KeySource

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence


MAX_CHARACTERS = 16 * 1024**2
"""The limit for the requests of all unbound pods together, because pods' owners decide their length. For a
pod beyond it, only the version is kept, and `latest` does not know the pod."""
_ENTRY_CHARACTERS = 64
"""An annotation or a resource takes at least as much memory as that many characters, however short it is."""


_SHARED_LABELS = 16
"""Pods with more labels do not share them, because a shared object may outlive the pods and may be long."""

_NO_KEY = ""
_NO_ANNOTATIONS: Mapping[str, str] = MappingProxyType({})
_MAX_ENDED = 10_000
_OCCUPANTS_HAVE = frozenset({ANNOTATION, ANNOTATION_ALIAS, PLACEMENT_ANNOTATION})
_Key = TypeVar("_Key")


class PodIndex(ABC):
    """An index of the pod informer: its pods by UID, which leave when they are gone."""

    __slots__ = ()

    @abstractmethod
    def uids(self) -> Iterable[PodUid]:
        """Return the pods of this index."""

    @abstractmethod
    def on_delete(self, uid: PodUid) -> None:
        """Remove a pod that is finished or gone, or that this index does not need any more."""

    def retain(self, listed: Collection[PodUid]) -> None:
        """Delete the pods that a list of all pods does not hold."""
        for uid in [uid for uid in self.uids() if uid not in listed]:
            self.on_delete(uid)


class _PodRecord(msgspec.Struct, eq=False, gc=False):
    """The facts about one pod that decisions need; a Struct, because there is one for each pod of a cluster.

    unbound: the latest version, if the pod asks for interfaces and is not bound; annotations may be missing.
    taken_at: when the store took that version.
    node: the node that the pod is bound to.
    unpromised: the pod's request, if it was bound without a valid promise.
    namespace: set if the pod is bound and may hold interfaces by annotation, devices or claims.
    key_id: the key that signed its placement; `_NO_KEY` if no key accepts it; None while not known.
    gang: the gang that the pod belongs to.
    placed: whether the pod has a place in its gang, as far as the API server knows.
    home: the node of a bound pod of a gang, even if the pod asks for no interfaces.
    is_occupant: whether the pod is bound and may hold interfaces by annotation; the fields after it, and the
        namespace, are then of its `Occupant`.
    """

    unbound: PodView | None = None
    taken_at: float = inf
    characters: int = 0
    node: NodeName | None = None
    unpromised: BoundPod | None = None
    namespace: str = ""
    key_id: str | None = None
    gang: Gang | None = None
    placed: bool = False
    home: NodeName | None = None
    is_occupant: bool = False
    name: str = ""
    priority: int = 0
    started: str = ""
    demand: ResourceDemand | None = None
    labels: Mapping[str, str] = {}

    def occupant(self, uid: PodUid) -> Occupant:
        """Return the pod as one that could make room; it must be an occupant."""
        return Occupant(
            uid=uid,
            namespace=self.namespace,
            name=self.name,
            priority=self.priority,
            started=self.started,
            demand=self.demand,
            labels=self.labels,
        )

    def is_empty(self) -> bool:
        """Report whether no decision needs the record."""
        return self.unbound is None and self.node is None and self.key_id is None and self.gang is None


class PodStore(PodIndex):
    """The records, filled by the pod informer.

    keys: returns the keys that count now.
    on_unpromised: called with the node and UID of every pod that is bound without a valid promise, and again
        at its end; None if no caller needs these pods.
    """

    def __init__(
        self,
        keys: KeySource = UNSIGNED,
        *,
        on_unpromised: Callable[[NodeName, PodUid], None] | None = None,
        max_characters: int = MAX_CHARACTERS,
    ) -> None:
        self._keys = keys
        self._on_unpromised = on_unpromised
        self._max_characters = max_characters
        self._characters = 0
        self._pods: dict[PodUid, _PodRecord] = {}
        self._unbound: dict[PodUid, _PodRecord] = {}
        self._nodes: dict[NodeName, dict[PodUid, _PodRecord]] = {}
        self._gangs: dict[Gang, dict[PodUid, _PodRecord]] = {}
        self._terminating: dict[NodeName, set[PodUid]] = {}
        self._ended: PodTable[NodeName] = PodTable(PodLimits(pods=_MAX_ENDED))

    def uids(self) -> Iterable[PodUid]:
        """Return the pods with a record."""
        return self._pods

    # events of the informer

    def on_update(self, pod: PodView, now: float = inf) -> None:
        """Take an unfinished pod as the API server just showed it."""
        record = self._pods.get(pod.uid) or _PodRecord()
        if pod.node is None or pod.uid in self._unbound:
            self._set_unbound(pod, record)
            record.taken_at = now
        if pod.gang is not None:
            self._set_gang(pod, pod.gang, record)
        if pod.node is not None:
            if not _OCCUPANTS_HAVE.isdisjoint(pod.annotations):
                self._set_occupant(pod, pod.node, record)
            if record.is_occupant or pod.claims or pod.devices:
                record.namespace = pod.namespace
                self._set_node(pod.uid, pod.node, record)
        self._store(pod.uid, record)

    def on_signature(self, uid: PodUid, key_id: str | None) -> None:
        """Note the key of a bound pod's placement. key_id: None if no key accepts it."""
        record = self._pods.get(uid) or _PodRecord()
        record.key_id = _NO_KEY if key_id is None else key_id
        self._store(uid, record)

    def on_bound_unpromised(self, pod: PodView, node: NodeName) -> None:
        """Take a pod that is bound without a promise. Its request of now counts, not a later one."""
        record = self._pods.get(pod.uid) or _PodRecord()
        if self._on_unpromised is None or record.unpromised is not None:
            return
        record.unpromised = BoundPod.of_view(pod)
        self._set_node(pod.uid, node, record)
        self._store(pod.uid, record)
        self._on_unpromised(node, pod.uid)

    def on_delete(self, uid: PodUid) -> None:
        """Remove a pod that is finished or gone; its node may hold its interfaces for a while yet."""
        record = self._pods.pop(uid, None)
        if record is None:
            return
        self._drop_unbound(uid)
        if record.gang is not None:
            _drop(self._gangs, record.gang, uid)
        if record.node is not None:
            _drop(self._nodes, record.node, uid)
            if record.is_occupant:
                self._end(uid, record.node)
            if record.unpromised is not None and self._on_unpromised is not None:
                self._on_unpromised(record.node, uid)

    # queries

    @property
    def unbound_count(self) -> int:
        """Return the number of unbound pods that ask for interfaces."""
        return len(self._unbound)

    def unbound_pods(self) -> list[PodView]:
        """Return the unbound pods that ask for interfaces; annotations may be missing."""
        return [record.unbound for record in self._unbound.values() if record.unbound is not None]

    def unbound(self, uid: PodUid) -> PodView | None:
        """Return the pod if it is unbound and asks for interfaces; annotations may be missing."""
        record = self._unbound.get(uid)
        return record.unbound if record else None

    def any_pod(self) -> Pod | None:
        """Return a pod that asks for interfaces, an unbound one if there is one."""
        if self._unbound:
            unbound = next(reversed(self._unbound.values())).unbound
            return Pod(namespace=unbound.namespace, name=unbound.name, uid=unbound.uid) if unbound else None
        for uid, record in reversed(self._pods.items()):
            if record.is_occupant:
                return Pod(namespace=record.namespace, name=record.name, uid=uid)
        return None

    def latest(self, uid: PodUid) -> PodView | None:
        """Return the latest version of an unbound pod that asks for interfaces; None if it is not known."""
        pod = self.unbound(uid)
        return pod if pod is not None and pod.annotations is not _NO_ANNOTATIONS else None

    def taken_at(self, pod: PodView) -> float:
        """Return the time when the store took this version of an unbound pod; `inf` if it is not known."""
        record = self._unbound.get(pod.uid)
        return record.taken_at if record and record.unbound is pod else inf

    def is_bound(self, uid: PodUid) -> bool:
        """Report whether the pod is bound and may hold interfaces."""
        record = self._pods.get(uid)
        return record is not None and record.node is not None

    def occupants(self, node: NodeName) -> Mapping[PodUid, Occupant]:
        """Return the bound pods on the node that may hold interfaces."""
        return {uid: self._pods[uid].occupant(uid) for uid in self.occupant_uids(node)}

    def occupant_uids(self, node: NodeName) -> Sequence[PodUid]:
        """Return the UIDs of the bound pods on the node that may hold interfaces."""
        return [uid for uid, record in self._nodes.get(node, {}).items() if record.is_occupant]

    def has_occupant(self, node: NodeName, uid: PodUid) -> bool:
        """Report whether the pod is bound to the node and may hold interfaces there."""
        record = self._nodes.get(node, {}).get(uid)
        return record is not None and record.is_occupant

    def is_bound_in(self, namespace: str, node: NodeName, uid: PodUid) -> bool:
        """Report whether the API server has the pod in the namespace and bound to the node.

        The node's own report does not count here, because a node may report any pod.
        """
        record = self._nodes.get(node, {}).get(uid)
        return record is not None and record.namespace == namespace

    def terminating(self, node: NodeName) -> Collection[PodUid]:
        """Return the pods that free their interfaces without an eviction: terminating, finished or gone."""
        return self._terminating.get(node, ())

    def unpromised(self, node: NodeName) -> Mapping[PodUid, BoundPod]:
        """Return the unfinished pods that are bound to the node without a valid promise."""
        records = self._nodes.get(node, {}).items()
        return {uid: record.unpromised for uid, record in records if record.unpromised is not None}

    def members(self, gang: Gang) -> Mapping[PodUid, bool]:
        """Return the gang's pods, and whether each has a place: it is bound, or asks for no interfaces."""
        return {uid: record.placed for uid, record in self._gangs.get(gang, {}).items()}

    def gang_of(self, uid: PodUid) -> Gang | None:
        """Return the gang that the pod belongs to."""
        record = self._pods.get(uid)
        return record.gang if record else None

    def homes(self, gang: Gang) -> Mapping[PodUid, NodeName]:
        """Return the nodes of the gang's bound pods that are not ending."""
        return {
            uid: record.home
            for uid, record in self._gangs.get(gang, {}).items()
            if record.home is not None and uid not in self.terminating(record.home)
        }

    def has_signature(self, uid: PodUid) -> bool:
        """Report whether it is known which key signed the pod's placement, if any."""
        record = self._pods.get(uid)
        return record is not None and record.key_id is not None

    def signature_counts(self) -> dict[tuple[str, ...], float]:
        """Count pods by key, algorithm and use: keys in force, and removed keys that pods depend on."""
        keys = self._keys()
        if keys is None:
            return {}
        pods = Counter(record.key_id for record in self._pods.values() if record.key_id is not None)
        signer = None if keys.signer is None else keys.signer.verifier.id
        counted: dict[tuple[str, ...], float] = {
            (key.id, key.algorithm, "signs" if key.id == signer else "verifies"): pods.pop(key.id, 0)
            for key in keys.accepted
        }
        none = pods.pop(_NO_KEY, 0)
        counted |= {(key_id, "", "removed"): number for key_id, number in pods.items()}
        return counted | ({("", "", "none"): none} if none else {})

    def readings(self) -> dict[str, Reading]:
        """Return readings for metrics."""
        return {
            "pods_signed": (
                "Bound pods by the key that signed their placement, and what that key is for now.",
                "gauge",
                lambda: samples(("key", "algorithm", "use"), self.signature_counts()),
            ),
            "placement_keys_not_reloaded": (
                "Whether the files of keys hold what cannot be used; then those of before are in force.",
                "gauge",
                lambda: bool(self._keys.failure),
            ),
        }

    def _store(self, uid: PodUid, record: _PodRecord) -> None:
        if record.is_empty():
            self._pods.pop(uid, None)
        else:
            self._pods[uid] = record

    def _set_unbound(self, pod: PodView, record: _PodRecord) -> None:
        self._drop_unbound(pod.uid)
        if pod.node is not None or not requests_interfaces(pod.annotations):
            return
        characters = _characters(pod)
        if self._characters + characters > self._max_characters:
            bare = msgspec.structs.replace(pod, annotations=_NO_ANNOTATIONS, devices=(), demand=None)
            pod, characters = bare, 0
        if pod.claims:  # the agent handles claims, and the owner decides their number
            pod = msgspec.structs.replace(pod, claims=())
        record.unbound, record.characters = pod, characters
        self._unbound[pod.uid] = record
        self._characters += characters

    def _drop_unbound(self, uid: PodUid) -> None:
        record = self._unbound.pop(uid, None)
        if record is not None:
            self._characters -= record.characters
            record.unbound, record.characters = None, 0

    def _set_occupant(self, pod: PodView, node: NodeName, record: _PodRecord) -> None:
        record.is_occupant = True
        record.name, record.priority, record.started = pod.name, pod.priority, pod.started
        record.demand, record.labels = pod.demand, _kept_labels(pod.labels)
        if pod.terminating:
            self._terminating.setdefault(node, set()).add(pod.uid)

    def _set_gang(self, pod: PodView, gang: Gang, record: _PodRecord) -> None:
        if record.gang is not None and record.gang != gang:  # the pod's label may be changed
            _drop(self._gangs, record.gang, pod.uid)
        record.gang = gang
        record.home = pod.node
        record.placed = pod.node is not None or not requests_interfaces(pod.annotations)
        self._gangs.setdefault(gang, {})[pod.uid] = record

    def _set_node(self, uid: PodUid, node: NodeName, record: _PodRecord) -> None:
        record.node = node
        pods = self._nodes.get(node)
        if pods is None:
            pods = self._nodes[node] = {}
        pods[uid] = record

    def _end(self, uid: PodUid, node: NodeName) -> None:
        """Count the pod as terminating from now on; if too many pods have ended, drop the earliest."""
        self._terminating.setdefault(node, set()).add(uid)
        self._ended.put(uid, node)
        while (ended := self._ended.excess()) is not None and (its_node := self._ended.pop(ended)):
            terminating = self._terminating[its_node]
            terminating.discard(ended)
            if not terminating:
                del self._terminating[its_node]


def _characters(pod: PodView) -> int:
    """Return the length of a pod's request."""
    annotations = sum(len(key) + len(value) + _ENTRY_CHARACTERS for key, value in pod.annotations.items())
    return annotations + sum(len(name) + _ENTRY_CHARACTERS for name, _ in (*pod.devices, *(pod.demand or ())))


def _drop(index: dict[_Key, dict[PodUid, _PodRecord]], key: _Key, uid: PodUid) -> None:
    """Take the pod out of an index."""
    pods = index.get(key, {})
    pods.pop(uid, None)
    if not pods:
        index.pop(key, None)


def _kept_labels(labels: Mapping[str, str]) -> Mapping[str, str]:
    return labels if len(labels) > _SHARED_LABELS else _shared_labels(tuple(labels.items()))


@lru_cache(maxsize=16_384)
def _shared_labels(labels: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    """Share one object among all pods of an owner."""
    return dict(labels)
