"""Gangs: their PodGroups, and how many of their pods have a place; until it is enough their binds wait.

A bind waits with its place reserved, and is written when as many places of the gang are reserved as its
PodGroup says: no pod of a gang is bound while fewer pods are promised a place. This holds whatever filter was
asked, also in a process that has just become the one that binds and knows of no pod that another process
filtered.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary

from k8s_rdma.core.pod_group import PodGroup
from k8s_rdma.core.types import Gang, PodUid
from k8s_rdma.extender.node_cache import ClusterState
from k8s_rdma.extender.pod_store import PodStore
from k8s_rdma.kube.api import ClusterApi
from k8s_rdma.kube.errors import (
    API_ERRORS,
    ApiRefusedError,
    ApiUncertainError,
    ApiUnreachableError,
    PodGroupVersionError,
)

if TYPE_CHECKING:
    from k8s_rdma.extender.metrics import Reading
    from k8s_rdma.extender.pod_requests import PendingPod
    from k8s_rdma.http_server.asgi import Samples

    _Waiting = dict[PodUid, asyncio.Future[None]]

T = TypeVar("T")
ApiError = ApiRefusedError | ApiUnreachableError | ApiUncertainError

_YOUNG_S = 10.0
"""A PodGroup is not read again while it is younger: a gang is filtered and bound within that."""
_FAILED_S = 1.0
"""Nor is one that could not be read: kube-scheduler may ask for its pods hundreds of times in a second."""

_MAX_KNOWN = 1000
_MAX_READ = 64
"""PodGroups that one question about evictions reads at most."""


@dataclass(slots=True, kw_only=True)
class Gangs:
    """Gangs' PodGroups, and how many of their members have a place.

    A member that asks for no interfaces counts as one that has a place: who schedules it is who counts it.
    clock: seconds, monotonic.
    """

    api: ClusterApi
    state: ClusterState
    pods: PodStore
    clock: Callable[[], float]
    _unknown_versions: tuple[str, ...] | None = None
    _groups: OrderedDict[Gang, tuple[PodGroup | ApiError, float]] = field(default_factory=OrderedDict)
    _locks: WeakValueDictionary[Gang, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    def placed(self, gang: Gang, added: Iterable[PodUid] = ()) -> int:
        """Count the gang's pods that are bound, being bound, or ask for no interfaces. added: others."""
        members = self.pods.members(gang).items()
        placed = {uid for uid, has_place in members if has_place or self.state.nodes_of(uid)}
        return len(placed.union(added))

    def group(self, gang: Gang) -> PodGroup | None:
        """Return the gang's PodGroup as it was last read, if it is known."""
        group, _ = self._groups.get(gang, (None, 0.0))
        return group if isinstance(group, PodGroup) else None

    def member_count(self, gang: Gang) -> int | None:
        """Return the number of pods that the gang needs, as it was last read, if it is known."""
        group = self.group(gang)
        return None if group is None else group.min_count

    def composite(self, gang: Gang) -> str:
        """The reason why pods of that gang are not bound if it is part of a tree of groups, else empty."""
        group = self.group(gang)
        if group is None or not group.parent:
            return ""
        return (
            f"pod group {gang} is part of the composite pod group {group.parent}, and groups of one are not "
            "held together here; leave parentCompositePodGroupName out"
        )

    def judge(self, pod: PendingPod) -> PendingPod:
        """Return the pod as its PodGroup has it, as far as that is known.

        The priority is the group's, if it has one. A group that binds no pods together makes no gang.
        """
        group = self.group(pod.gang) if pod.gang is not None else None
        if group is None:
            return pod
        priority = pod.priority if group.priority is None else group.priority
        return replace(pod, gang=pod.gang if group.min_count else None, priority=priority)

    async def know(self, gangs: Iterable[Gang], limit_s: float) -> None:
        """Read the PodGroups that were never read, as far as the time allows."""
        unread = [gang for gang in dict.fromkeys(gangs) if self.group(gang) is None][:_MAX_READ]
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                for gang in unread:
                    with suppress(*API_ERRORS):
                        await self.read(gang)

    def may_preempt(self, gang: Gang) -> bool:
        """Report whether pods may be evicted for the gang's, as far as its PodGroup is known."""
        group = self.group(gang)
        return group is None or group.preempts

    def disrupted_together(self, gang: Gang) -> bool | None:
        """Report whether the gang's pods are evicted all or not at all; None if that is not known.

        If the PodGroup is gone, its pods are not evicted together.
        """
        read, _ = self._groups.get(gang, (None, 0.0))
        if isinstance(read, PodGroup):
            return read.disrupted_together
        if isinstance(read, PodGroupVersionError) or not isinstance(read, ApiRefusedError):
            return None
        return False if read.status == HTTPStatus.NOT_FOUND else None

    def readings(self) -> dict[str, Reading]:
        """Readings for metrics."""
        text = (
            "Whether PodGroups cannot be read: this API server has them in these versions only, or in none."
        )
        return {"pod_groups_unreadable": (text, "gauge", self._unreadable)}

    def _unreadable(self) -> Samples:
        served = self._unknown_versions
        return [({"versions": ",".join(served or ())}, served is not None)]

    async def read(self, gang: Gang) -> PodGroup:
        """Read the gang's PodGroup, once for all concurrent callers; API_ERRORS."""
        async with self._locks.setdefault(gang, asyncio.Lock()):
            group, read_at = self._groups.get(gang, (PodGroup(), float("-inf")))
            if self.clock() - read_at >= (_YOUNG_S if isinstance(group, PodGroup) else _FAILED_S):
                group = await self._read(gang)
            if isinstance(group, PodGroup):
                return group
            raise group.with_traceback(None)

    async def _read(self, gang: Gang) -> PodGroup | ApiError:
        group: PodGroup | ApiError
        try:
            group = await self.api.get_pod_group(gang)
        except API_ERRORS as error:
            group = error
        self._unknown_versions = group.served if isinstance(group, PodGroupVersionError) else None
        self._groups[gang] = group, self.clock()
        self._groups.move_to_end(gang)
        if len(self._groups) > _MAX_KNOWN:
            del self._groups[first_of_greediest(self._groups, lambda cached: cached.namespace)]
        return group


def first_of_greediest(items: Iterable[T], namespace: Callable[[T], str]) -> T:
    """Return the first item of the namespace that has most, so that its excess costs no other namespace."""
    counts = Counter(map(namespace, items))
    greediest = max(counts, key=counts.__getitem__)
    return next(item for item in items if namespace(item) == greediest)


@dataclass(slots=True, kw_only=True)
class Quorum:
    """The binds that wait.

    pause_s: how long after the last one of its gang a bind waits for another. longest_s: at most altogether;
    what is reserved for it meanwhile is not available to other pods.
    """

    gangs: Gangs
    pause_s: float = 2.0
    longest_s: float = 5.0
    _waiting: dict[Gang, dict[PodUid, asyncio.Future[None]]] = field(default_factory=dict)
    _arrived: dict[Gang, float] = field(default_factory=dict)

    async def reached(self, gang: Gang, uid: PodUid, min_count: int) -> bool:
        """Wait for the pod's gang; to be called as soon as its place is reserved, which this relies on.

        No call is awaited after the last of them is there or the time is over, so that either all that wait
        go on, or the one whose time is over does not count for others any more once its caller gave up.
        """
        loop = asyncio.get_running_loop()
        began = self._arrived[gang] = loop.time()
        waiting = self._waiting.setdefault(gang, {})
        waiting[uid] = reached = loop.create_future()
        if self.gangs.placed(gang, waiting) >= min_count:
            for granted in waiting.values():
                if not granted.done():
                    granted.set_result(None)
        try:
            while not reached.done():
                end = min(self._arrived[gang] + self.pause_s, began + self.longest_s)
                if end <= loop.time():
                    return False
                await asyncio.wait([reached], timeout=end - loop.time())
            return True
        finally:
            self._leave(gang, uid, waiting)

    def _leave(self, gang: Gang, uid: PodUid, waiting: _Waiting) -> None:
        del waiting[uid]
        if not waiting:
            del self._waiting[gang], self._arrived[gang]
